"""From the book of a run to its figures: one JSON-able dictionary that table, file and page are made of.

Pure: reads records, returns plain data. Field names at the top are those of `vllm bench serve`, so that what reads its
files reads these. Latencies describe requests that ended well and were due after the warm-up; rates count what ended in
between.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from tools.load.book import Book, Row
from tools.load.scrape import Snapshot
from tools.load.stats import Distribution, HeatMap, bin_width, describe, heat_map, percentile
from tools.load.wire import Outcome

BINS = 60
QUANTITIES = {
    "ttft": "Time to first token",
    "tpot": "Time per output token",
    "itl": "Inter-token latency",
    "e2el": "End-to-end latency",
}
CURVE = (*range(0, 100, 2), 99.0, 99.5, 99.9, 99.99)
LAG_WARNING_S = 0.02
BUSY_WARNING = 0.9


def ttft(row: Row) -> float:
    """Seconds from when the request was due to its first event; NaN without one."""
    return row.first - row.due


def tpot(row: Row) -> float:
    """Seconds per output token after the first; NaN for fewer than two tokens."""
    return (row.done - row.first) / (row.tokens_out - 1) if row.tokens_out > 1 else math.nan


def e2el(row: Row) -> float:
    """Seconds from when the request was due to its end."""
    return row.done - row.due


MEASURES = {"ttft": ttft, "tpot": tpot, "e2el": e2el}


def is_good(row: Row, goals: Sequence[tuple[str, float]]) -> bool:
    """Tell whether a request ended well within every goal (milliseconds); a quantity it does not have is no breach."""
    if row.outcome is not Outcome.OK:
        return False
    return not any(MEASURES[name](row) * 1000.0 > limit for name, limit in goals)


def summarise(
    book: Book, goals: Sequence[tuple[str, float]] = (), snapshots: Sequence[Snapshot] = ()
) -> dict[str, Any]:
    """Return every figure of the run."""
    rows = list(book)
    counted = [row for row in rows if row.counted]
    good = [row for row in counted if row.outcome is Outcome.OK]
    inside = [row for row in rows if book.counted_from <= row.done <= book.counted_to]
    ended = [row for row in inside if row.outcome is Outcome.OK]
    window = max(book.counted_to - book.counted_from, 1e-9)
    latencies = _latencies(good, book)
    figures: dict[str, Any] = {
        "schema_version": 1,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(book.started_wall)),
        "duration": window,
        "elapsed": book.elapsed,
        "requests": len(counted),
        "completed": len(good),
        "failed": sum(row.outcome not in (Outcome.OK, Outcome.LEFT) for row in counted),
        "left": sum(row.outcome is Outcome.LEFT for row in counted),
        "unsent": book.unsent,
        "total_input_tokens": sum(row.tokens_in for row in good),
        "total_output_tokens": sum(row.tokens_out for row in good),
        "request_throughput": len(ended) / window,
        "output_throughput": sum(row.tokens_out for row in ended) / window,
        "total_token_throughput": sum(row.tokens_in + row.tokens_out for row in ended) / window,
    }
    if goals:
        met = sum(is_good(row, goals) for row in inside)
        figures["request_goodput"] = met / window
        figures["goodput"] = {"goals_ms": dict(goals), "share": met / len(inside) if inside else 0.0}
    for name, spread in latencies.items():
        figures |= _flat(name, spread)
    figures |= {
        "latency_ms": {name: _milliseconds(spread) for name, spread in latencies.items()},
        "statuses": dict(sorted(Counter(str(row.status) for row in counted if row.status).items())),
        "outcomes": dict(sorted(Counter(row.outcome.label for row in counted).items())),
        "truncated": sum(row.outcome is Outcome.TRUNCATED for row in counted),
        "reasons": dict(book.reasons.most_common(12)),
        "tries": {
            "answers": _by_status(book),
            "bare_refusals": book.bare_refusals,
            "looked_whole": book.looked_whole,
            "client_retries": dict(sorted(book.retries.items())),
            "proxy_retries": _gained(snapshots, "retries"),
        },
        "connections": {"opened": book.opened, "reused": book.reused, "resent": book.resent},
        "generator": _generator(book, counted),
        "series": _series(book, rows),
        "curves": {name: _curve(name, good) for name in ("ttft", "e2el")},
        "replicas": _replicas(snapshots),
        "aimd": _aimd(book),
    }
    figures["notes"] = _notes(figures)
    return figures


def _by_status(book: Book) -> dict[str, int]:
    answers: Counter[int] = Counter()
    for (_, status), count in book.tries.items():
        if status:
            answers[status] += count
    return {str(status): count for status, count in sorted(answers.items())}


def _latencies(good: Sequence[Row], book: Book) -> dict[str, Distribution]:
    spreads = {
        "ttft": describe(value for value in map(ttft, good) if value == value),
        "tpot": describe(value for value in map(tpot, good) if value == value),
        "itl": book.gaps.describe(),
        "e2el": describe(map(e2el, good)),
    }
    return {name: spread for name, spread in spreads.items() if spread is not None}


def _milliseconds(spread: Distribution) -> dict[str, float]:
    return {key: value if key == "count" else value * 1000.0 for key, value in asdict(spread).items()}


def _flat(name: str, spread: Distribution) -> dict[str, float]:
    keys = ("mean", "median", "std", "p90", "p95", "p99")
    return {f"{key}_{name}_ms": getattr(spread, key) * 1000.0 for key in keys}


def _generator(book: Book, counted: Sequence[Row]) -> dict[str, float]:
    lag = book.lag
    late = describe(row.sent - row.due for row in counted)
    return {
        "lag_p99_ms": lag.quantile(99.0) * 1000.0 if lag.count else 0.0,
        "lag_max_ms": lag.high * 1000.0,
        "send_delay_p99_ms": late.p99 * 1000.0 if late else 0.0,
        "cpu_share": book.cpu_seconds / book.elapsed if book.elapsed else 0.0,
    }


def _notes(figures: dict[str, Any]) -> list[str]:
    """Say what a reader must know before believing the figures."""
    notes = []
    own = figures["generator"]
    if own["lag_p99_ms"] > LAG_WARNING_S * 1000.0:
        notes.append(
            f"The generator's own loop lagged: {own['lag_p99_ms']:.0f} ms at p99, {own['lag_max_ms']:.0f} ms at worst. "
            "Latencies below that are its own."
        )
    if own["cpu_share"] > BUSY_WARNING:
        notes.append(
            f"The generator used {own['cpu_share']:.0%} of a core: rates may be its limit, not the endpoint's."
        )
    if figures["unsent"]:
        notes.append(f"{figures['unsent']} requests were due but still held back by the client when the run ended.")
    if figures["outcomes"].get("unfinished"):
        notes.append(f"{figures['outcomes']['unfinished']} requests had not ended when the grace was over.")
    hidden = figures["tries"]["looked_whole"]
    if hidden:
        notes.append(
            f"{hidden} answers lacked tokens or their end although their framing called them whole: "
            "somebody on the way hides cut streams."
        )
    if not figures["requests"]:
        notes.append("Nothing was counted: the run ended before its warm-up did.")
    return notes


def _series(book: Book, rows: Sequence[Row]) -> dict[str, Any]:
    span = max(book.elapsed, 1e-9)
    width = bin_width(span, BINS)
    bins = max(1, math.ceil(span / width - 1e-9))

    def rate(items: Iterable[tuple[float, float]]) -> list[float]:
        sums = [0.0] * bins
        for at, amount in items:
            sums[min(max(int(at / width), 0), bins - 1)] += amount
        whole = [width] * (bins - 1) + [max(span - width * (bins - 1), width / 2)]
        return [round(value / size, 3) for value, size in zip(sums, whole, strict=True)]

    faults = sorted({row.outcome for row in rows} - {Outcome.OK})
    named = {_fault_name(row) for row in rows if row.outcome in faults}
    return {
        "width": width,
        "span": span,
        "due": rate((row.due, 1) for row in rows),
        "completed": rate((row.done, 1) for row in rows if row.outcome is Outcome.OK),
        "tokens": rate((row.done, row.tokens_out) for row in rows if row.outcome is Outcome.OK),
        "errors": {
            name: rate((row.done, 1) for row in rows if row.outcome in faults and _fault_name(row) == name)
            for name in sorted(named)
        },
        "in_flight": _sampled(book, width, bins),
        "heat": {
            "e2el": _heat(heat_map([(row.due, e2el(row)) for row in rows if row.outcome is Outcome.OK], span, BINS)),
            "ttft": _heat(heat_map([(row.due, ttft(row)) for row in rows if row.first == row.first], span, BINS)),
        },
    }


def _fault_name(row: Row) -> str:
    return f"http {row.status}" if row.outcome is Outcome.HTTP_ERROR else row.outcome.label


def _sampled(book: Book, width: float, bins: int) -> list[float]:
    highest = [0.0] * bins
    for sample in book.samples:
        place = min(int(sample.at / width), bins - 1)
        highest[place] = max(highest[place], sample.in_flight)
    return highest


def _heat(heat: HeatMap | None) -> dict[str, Any] | None:
    return None if heat is None else {"width": heat.width, "edges": heat.edges, "cells": heat.cells, "peak": heat.peak}


def _curve(name: str, good: Sequence[Row]) -> list[tuple[float, float]]:
    ordered = sorted(value * 1000.0 for value in map(MEASURES[name], good) if value == value)
    return [(float(q), percentile(ordered, q)) for q in CURVE] if ordered else []


def _gained(snapshots: Sequence[Snapshot], name: str) -> dict[str, float] | None:
    """Return how much each counter grew between the first and the last look; None without a side port."""
    if not snapshots:
        return None
    before, after = getattr(snapshots[0], name), getattr(snapshots[-1], name)
    gains = {key: value - before.get(key, 0.0) for key, value in sorted(after.items())}
    return {key: value for key, value in gains.items() if value}


def _replicas(snapshots: Sequence[Snapshot]) -> list[dict[str, Any]]:
    if not snapshots:
        return []
    names = list(dict.fromkeys(name for snapshot in snapshots for name in (*snapshot.attempts, *snapshot.healthy)))
    gains = {name: _growth([snapshot.attempts.get(name, 0.0) for snapshot in snapshots]) for name in names}
    total = sum(gains.values()) or 1.0
    return [
        {
            "backend": name,
            "attempts": gains[name],
            "share": gains[name] / total,
            "answers": _answers(snapshots, name),
            "queue_max": max((snapshot.queue.get(name, 0.0) for snapshot in snapshots), default=0.0),
            "states": [(round(snapshot.at, 3), snapshot.state(name)) for snapshot in snapshots],
        }
        for name in names
    ]


def _growth(values: Sequence[float]) -> float:
    """Return how much a counter grew, restarts from zero included."""
    return sum(max(after - before, 0.0) for before, after in itertools.pairwise(values))


def _answers(snapshots: Sequence[Snapshot], backend: str) -> dict[str, float]:
    before, after = (snapshot.answers.get(backend, {}) for snapshot in (snapshots[0], snapshots[-1]))
    gains = {code: value - before.get(code, 0.0) for code, value in sorted(after.items())}
    return {code: value for code, value in gains.items() if value}


def _aimd(book: Book) -> dict[str, Any] | None:
    samples = [sample for sample in book.samples if sample.limit]
    if not samples:
        return None
    limits = [sample.limit for sample in samples]
    return {
        "samples": [(round(s.at, 3), s.limit, s.in_flight, s.waiting, s.blocked) for s in samples],
        "refused_at": [round(at, 3) for at in book.refused_at],
        "first": limits[0],
        "lowest": min(limits),
        "last": limits[-1],
        "decreases": book.decreases,
        "increases": book.increases,
    }
