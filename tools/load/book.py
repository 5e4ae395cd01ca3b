"""The book of a run: one row per request in compact columns, plus what was sampled while it ran.

Owns the record and nothing of its meaning: no percentile, no rate. Times are seconds since the start of the run.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tools.load.stats import LogHistogram
from tools.load.wire import Outcome


class Row(NamedTuple):
    """One request. `first` is NaN when no event came; `counted` is false during the warm-up."""

    due: float
    sent: float
    first: float
    done: float
    tokens_in: int
    tokens_out: int
    outcome: Outcome
    status: int
    tries: int
    counted: bool


class Sample(NamedTuple):
    """What the generator looked like at one moment."""

    at: float
    in_flight: int
    waiting: int
    limit: int
    blocked: bool


@dataclass
class Book:
    """Everything that a run leaves behind. About 60 bytes a request.

    `tries` counts every try by (outcome, status); `bare_refusals` are 429s that did not say when to come back;
    `looked_whole` are answers that lacked something although their framing called them whole.
    """

    started_wall: float = 0.0
    elapsed: float = 0.0
    counted_from: float = 0.0
    counted_to: float = 0.0
    gaps: LogHistogram = field(default_factory=LogHistogram)
    lag: LogHistogram = field(default_factory=LogHistogram)
    samples: list[Sample] = field(default_factory=list)
    retries: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    tries: Counter[tuple[str, int]] = field(default_factory=Counter)
    bare_refusals: int = 0
    looked_whole: int = 0
    refused_at: array[float] = field(default_factory=lambda: array("d"))
    unsent: int = 0
    opened: int = 0
    reused: int = 0
    resent: int = 0
    cpu_seconds: float = 0.0
    decreases: int = 0
    increases: int = 0

    def __post_init__(self) -> None:
        self._columns: dict[str, array[float]] = {
            name: array("d" if name in ("due", "sent", "first", "done") else "i") for name in Row._fields
        }

    def __len__(self) -> int:
        return len(self._columns["due"])

    def add(self, row: Row) -> None:
        """Keep one row."""
        for column, value in zip(self._columns.values(), row, strict=True):
            column.append(value)

    def __iter__(self) -> Iterator[Row]:
        for due, sent, first, done, inputs, outputs, outcome, status, tries, counted in zip(
            *self._columns.values(), strict=True
        ):
            ending = Outcome(int(outcome))
            yield Row(due, sent, first, done, int(inputs), int(outputs), ending, int(status), int(tries), bool(counted))

    def progress(self) -> tuple[int, int]:
        """Return how many requests have ended so far and how many of them well."""
        outcomes = self._columns["outcome"]
        return len(outcomes), outcomes.count(Outcome.OK)


NOT_A_TIME = math.nan
