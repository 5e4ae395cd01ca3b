"""report.json and its readable form: what an attempt delivered and what that took.

Owns the report's shape. Counts come from the files that each endpoint leaves through `serve --stats-file`; an endpoint
that was killed left none, and its numbers are null.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.codec import DecodeError, decode
from runtime.outputs import Inspection
from runtime.plan import Output
from runtime.state import SCHEMA_VERSION, Classification
from runtime.units import human_duration


@dataclass(frozen=True, slots=True)
class EndpointReport:
    """One endpoint's final counts. None: it left none."""

    name: str
    requests: int | None = None
    attempts: int | None = None
    failovers: int | None = None
    retries: Mapping[str, int] | None = None
    responses: Mapping[str, int] | None = None
    timeouts: Mapping[str, int] | None = None
    incomplete: int | None = None
    cpu_s: float | None = None
    peak_rss_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class OutputReport:
    """One output as found. `expected_records` None: it only had to be there; `sha256` None: it was not."""

    path: str
    records: int
    expected_records: int | None
    sha256: str | None
    bytes: int


@dataclass(frozen=True, slots=True)
class Report:
    """report.json. `records_per_minute` counts all outputs over the whole attempt."""

    classification: Classification
    reason: str | None
    elapsed_s: float
    outputs: tuple[OutputReport, ...]
    records_per_minute: float
    endpoints: tuple[EndpointReport, ...]
    schema_version: int = SCHEMA_VERSION


def read_endpoint(name: str, stats: Path) -> EndpointReport:
    """Read what one endpoint left; a missing or broken file gives a report without numbers."""
    try:
        data: Any = json.loads(stats.read_bytes())
        if not isinstance(data, dict):
            return EndpointReport(name)
        # The plural ones are counted by label value there; attempts are wanted as one number, the others as they are.
        totals = {key: _total(data.get(key)) for key in ("requests", "attempts", "failovers", "incomplete")}
        return decode(EndpointReport, {**data, **totals, "name": name})
    except (OSError, ValueError, DecodeError):
        return EndpointReport(name)


def _total(value: Any) -> Any:
    return sum(value.values()) if isinstance(value, dict) else value


def report_outputs(outputs: Sequence[Output], inspection: Inspection) -> tuple[OutputReport, ...]:
    """Put what was found next to what the plan wanted."""
    found = {record.path: record for record in inspection.found}
    reports = []
    for output in outputs:
        record = found.get(output.path)
        if record is None:
            reports.append(OutputReport(output.path, 0, output.records, None, 0))
        else:
            reports.append(OutputReport(record.path, record.records, output.records, record.sha256, record.bytes))
    return tuple(reports)


def per_minute(outputs: Sequence[OutputReport], elapsed_s: float) -> float:
    """Give the records of all outputs per minute."""
    return round(sum(output.records for output in outputs) * 60 / elapsed_s, 3) if elapsed_s > 0 else 0.0


def summary(report: Report, run: str, attempt: int) -> list[str]:
    """Write the report for a person, a few short lines."""
    ended = report.classification.value + (f": {report.reason}" if report.reason else "")
    lines = [f"{run} attempt {attempt}: {ended}", f"  elapsed    {human_duration(round(report.elapsed_s, 1))}"]
    if report.classification is Classification.STARTUP_FAILED:
        return lines  # the client never ran: there is nothing to count
    for output in report.outputs:
        wanted = "" if output.expected_records is None else f" of {output.expected_records}"
        lines.append(f"  output     {output.path}: {output.records}{wanted} records, {output.bytes} bytes")
    lines.append(f"  rate       {report.records_per_minute:g} records a minute")
    return lines + [f"  endpoint   {_endpoint_line(endpoint)}" for endpoint in report.endpoints]


def _endpoint_line(endpoint: EndpointReport) -> str:
    if endpoint.requests is None:
        return f"{endpoint.name}: left no final counts"
    responses = endpoint.responses or {}
    left = responses.get("499", 0)  # a client that is told to stop leaves open requests: no fault of the endpoint
    failed = sum(count for code, count in responses.items() if not code.startswith("2")) - left
    retries = sum((endpoint.retries or {}).values())
    text = f"{endpoint.name}: {endpoint.requests} requests, {failed} failed, {retries} retries"
    text += f", {endpoint.failovers} failovers"
    if left:
        text += f", {left} given up by the client"
    if endpoint.incomplete:
        text += f", {endpoint.incomplete} incomplete"
    if endpoint.cpu_s is not None and endpoint.peak_rss_bytes is not None:
        text += f", {endpoint.cpu_s:.1f} s CPU, {endpoint.peak_rss_bytes / 2**20:.0f} MiB peak"
    return text
