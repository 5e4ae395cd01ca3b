"""Records of a run to one Markdown table: medians and ranges, and ratios that were formed inside each round. Pure.

Owns the rows. A ratio compares two proxies on one workload, or two workloads (`over`) on one proxy.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; `ratio` where the product is compared with the others.

    With `over` it shows how many times the value on that other workload it is, on the same proxy in the same round.
    """

    work: str
    value: str
    label: str
    decimals: int = 1
    ratio: bool = True
    over: str | None = None


ROWS = (
    Row("rest", "rss_mib", "at rest: RSS, MiB"),
    Row("rest", "percent", "at rest: % of a core", 1, ratio=False),
    Row("unary", "cpu_us", "unary, 2 KB → 1.5 KB, 64 connections: CPU µs/request"),
    Row("unary", "per_s", "… requests/s reached", 0, ratio=False),
    Row("varying", "cpu_us", "unary, heads vary: CPU µs/request"),
    Row("varying", "per_s", "… requests/s reached", 0, ratio=False),
    Row("retry", "cpu_us", "unary, one of two backends answers 429: CPU µs/request"),
    Row("retry", "cpu_us", "… × a plain request", 2, ratio=False, over="unary"),
    Row("retry", "retries", "… retries per request", 2, ratio=False),
    Row("64 backends", "cpu_us", "unary over 64 backends: CPU µs/request"),
    Row("64 backends", "cpu_us", "… × a plain request over 8", 2, ratio=False, over="unary"),
    Row("256 backends", "cpu_us", "unary over 256 backends: CPU µs/request"),
    Row("256 backends", "cpu_us", "… × a plain request over 8", 2, ratio=False, over="unary"),
    Row("streams 128", "cpu_us", "128 streams of 50 events/s: CPU µs/event"),
    Row("streams 128", "ttft_us", "… first event, median µs", 0),
    Row("streams 512", "cpu_us", "512 streams of 50 events/s: CPU µs/event"),
    Row("streams 512", "peak_mib", "… peak RSS, MiB"),
    Row("uploads", "cpu_us", "4 uploads of 50 MiB at once: CPU µs/MiB", 0),
    Row("uploads", "peak_mib", "… peak RSS, MiB"),
    Row("crowd", "kib_each", "{idle} idle clients: KiB RSS each"),
    Row("crowd", "cpu_us", "… unary among them: CPU µs/request"),
)
BUSY = 0.1  # of the proxy's CPU used by others, from which a run says so
MERGED = 1.1  # events that the replicas wrote at once, from which a run says so
FEW_RETRIES = 0.9  # per request, below which a run says so


@dataclass(frozen=True, slots=True)
class Record:
    """What one workload gave on one proxy in one round."""

    round: int
    name: str
    work: str
    values: Mapping[str, float] = field(default_factory=dict)
    faults: Sequence[str] = ()


def table(records: Sequence[Record], names: Sequence[str], idle_clients: int) -> str:
    """Make the table; the first of `names` is compared with each of the others."""
    product, *others = names
    lines = [["", *names, *(f"{product} / {name}" for name in others)]]
    for row in ROWS:
        columns = {name: _by_round(records, name, row) for name in names}
        if not any(columns.values()):
            continue
        cells = [_spread(list(columns[name].values()), row.decimals) for name in names]
        ratios = [_ratios(columns[product], columns[name]) if row.ratio else {} for name in others]
        label = row.label.format(idle=f"{idle_clients:,}")
        lines.append([label, *cells, *(_spread(list(ratio.values()), 2) for ratio in ratios)])
    return _markdown(lines)


def _by_round(records: Sequence[Record], name: str, row: Row) -> dict[int, float]:
    mine = _values(records, name, row.work, row.value)
    return mine if row.over is None else _ratios(mine, _values(records, name, row.over, row.value))


def _values(records: Sequence[Record], name: str, work: str, value: str) -> dict[int, float]:
    return {r.round: r.values[value] for r in records if r.name == name and r.work == work and value in r.values}


def _ratios(mine: Mapping[int, float], theirs: Mapping[int, float]) -> dict[int, float]:
    return {number: mine[number] / theirs[number] for number in mine if theirs.get(number, 0.0) > 0}


def _spread(values: Sequence[float], decimals: int) -> str:
    if not values:
        return ""
    middle, low, high = (f"{v:,.{decimals}f}" for v in (statistics.median(values), min(values), max(values)))
    return middle if len(values) == 1 else f"{middle} [{low}–{high}]"


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    rule = [":" + "-" * (widths[0] - 1), *("-" * (width - 1) + ":" for width in widths[1:])]
    rows = [lines[0], rule, *lines[1:]]
    padded = (
        [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        for row in rows
    )
    return "\n".join(f"| {' | '.join(row)} |" for row in padded)


def notes(records: Sequence[Record], names: Sequence[str]) -> list[str]:
    """Say what makes this run less trustworthy."""
    found = []
    for name in names:
        shares = _all(records, name, "others")
        if shares and statistics.median(shares) > BUSY:
            found.append(f"{name}: other processes used {statistics.median(shares):.0%} of its CPU")
        retries = min(_all(records, name, "retries"), default=1.0)
        if retries < FEW_RETRIES:
            found.append(f"{name}: as few as {retries:.2f} retries per request: its row shows less than what one costs")
        merged = max(_all(records, name, "merged"), default=0.0)
        if merged > MERGED:
            found.append(
                f"{name}: the replicas were late and wrote up to {merged:.1f} events at once: too cheap an event"
            )
    return found


def _all(records: Sequence[Record], name: str, value: str) -> list[float]:
    return [r.values[value] for r in records if r.name == name and value in r.values]


def failures(records: Sequence[Record]) -> list[str]:
    """Give a line for each fault."""
    return [f"round {r.round}, {r.name}, {r.work}: {fault}" for r in records for fault in r.faults]
