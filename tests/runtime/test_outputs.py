"""Counting what the client left, and the report about it."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path

import pytest

from runtime.outputs import inspect, measure
from runtime.plan import Output
from runtime.report import EndpointReport, OutputReport, Report, per_minute, read_endpoint, report_outputs, summary
from runtime.state import Classification


@pytest.mark.parametrize(
    ("content", "records"),
    [(b"", 0), (b"\n", 1), (b"a\nb\n", 2), (b"a\nb", 2), (b"a\r\nb\r\n", 2), (b"x" * (3 << 20) + b"\nend", 2)],
)
def test_a_record_is_a_line_and_an_unfinished_last_one_counts(tmp_path: Path, content: bytes, records: int) -> None:
    (tmp_path / "out").write_bytes(content)
    found = measure(tmp_path, "out")
    assert (found.records, found.bytes, found.sha256) == (records, len(content), hashlib.sha256(content).hexdigest())


def test_everything_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "few").write_text("1\n2\n")
    (tmp_path / "empty").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "fine").write_text("1\n")
    outputs = [Output("few", 3), Output("empty", None), Output("gone", 1), Output("folder", None), Output("fine", None)]
    found = inspect(tmp_path, outputs)
    assert found.problems == (
        "few: 2 records, the plan wants 3",
        "empty: empty",
        "gone: missing",
        "folder: cannot be read: Is a directory",
    )
    assert [one.path for one in found.found] == ["few", "empty", "fine"]


def test_a_pipe_that_nobody_writes_to_is_a_problem_and_no_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert inspect(tmp_path, [Output("pipe", 1)]).problems == ("pipe: cannot be read: pipe is not a regular file",)


def test_reading_stops_when_it_must(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("1\n")
    stop = threading.Event()
    stop.set()
    found = inspect(tmp_path, [Output("out", 1)], stop)
    assert found.found == ()
    assert found.problems == ("out: cannot be read: it was still being read when the attempt had to end",)


def test_more_records_than_wanted_are_a_mismatch_too(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("1\n2\n3\n")
    assert inspect(tmp_path, [Output("out", 2)]).problems == ("out: 3 records, the plan wants 2",)


def test_the_report_names_outputs_that_are_missing(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("1\n2\n")
    outputs = [Output("out", 2), Output("gone", 5)]
    found = report_outputs(outputs, inspect(tmp_path, outputs))
    assert [(one.path, one.records, one.expected_records, one.sha256 is None) for one in found] == [
        ("out", 2, 2, False),
        ("gone", 0, 5, True),
    ]
    assert per_minute(found, 30) == 4
    assert per_minute(found, 0) == 0


def test_an_endpoints_final_counts_are_taken_over(tmp_path: Path) -> None:
    stats = {
        "requests": 10, "attempts": {"a:1": 7, "b:2": 5}, "failovers": 1, "retries": {"http_429": 2},
        "responses": {"200": 9, "502": 1}, "timeouts": {}, "incomplete": {"client": 1}, "cpu_s": 1.5,
        "peak_rss_bytes": 3 << 20, "newer": 1,
    }  # fmt: skip
    (tmp_path / "stats").write_text(json.dumps(stats))
    assert read_endpoint("llama", tmp_path / "stats") == EndpointReport(
        "llama", 10, 12, 1, {"http_429": 2}, {"200": 9, "502": 1}, {}, 1, 1.5, 3 << 20
    )


@pytest.mark.parametrize("content", [None, "", "[]", "{", '{"requests": "many"}'])
def test_an_endpoint_that_left_nothing_usable_has_no_numbers(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "stats").write_text(content)
    assert read_endpoint("llama", tmp_path / "stats") == EndpointReport("llama")


def test_the_summary_is_for_people() -> None:
    endpoint = EndpointReport("llama", 10, 12, 1, {"http_429": 2}, {"200": 9, "502": 1}, {}, 1, 1.5, 30 << 20)
    report = Report(
        Classification.SERVICE_LOST, "llama: gone", 75.04, (), 0, (endpoint, EndpointReport("qwen")),
    )  # fmt: skip
    assert summary(report, "gen-1", 2) == [
        "gen-1 attempt 2: service_lost: llama: gone",
        "  elapsed    1m 15s",
        "  rate       0 records a minute",
        "  endpoint   llama: 10 requests, 1 failed, 2 retries, 1 failovers, 1 incomplete, 1.5 s CPU, 30 MiB peak",
        "  endpoint   qwen: left no final counts",
    ]


def test_the_summary_tells_requests_that_the_client_gave_up_from_failed_ones() -> None:
    endpoint = EndpointReport("llama", 10, 10, 0, {}, {"200": 7, "499": 2, "503": 1}, {}, 0)
    report = Report(Classification.CANCELLED, "cancelled by SIGTERM", 1, (), 0, (endpoint,))
    told = "llama: 10 requests, 1 failed, 0 retries, 0 failovers, 2 given up by the client"
    assert summary(report, "gen-1", 1)[-1] == f"  endpoint   {told}"


def test_the_summary_of_a_failed_start_counts_nothing() -> None:
    output = OutputReport("out", 0, 5, None, 0)
    report = Report(Classification.STARTUP_FAILED, "no room", 2, (output,), 0, (EndpointReport("llama"),))
    assert summary(report, "gen-1", 1) == ["gen-1 attempt 1: startup_failed: no room", "  elapsed    2s"]
