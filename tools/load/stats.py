"""Percentiles, histograms and bins: pure arithmetic over numbers.

Owns no clock, no file and no notion of a request; everything takes plain sequences and returns plain records.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LEAST_RATIO = 4.0  # values closer together than this would turn noise into a picture
PERCENTILES = (50.0, 90.0, 95.0, 99.0)


def percentile(ordered: Sequence[float], q: float) -> float:
    """Return the q-th percentile (0 to 100) of an ascending sequence, interpolated linearly between its neighbours.

    The rule is numpy's default, which `vllm bench` reports too. Raises ValueError for an empty sequence.
    """
    if not ordered:
        raise ValueError("no values")
    place = (len(ordered) - 1) * min(max(q, 0.0), 100.0) / 100.0
    low = int(place)
    if low + 1 >= len(ordered):
        return ordered[-1]
    return ordered[low] + (ordered[low + 1] - ordered[low]) * (place - low)


@dataclass(frozen=True)
class Distribution:
    """Summary of one measured quantity, in the unit of its values."""

    count: int
    mean: float
    std: float
    median: float
    p90: float
    p95: float
    p99: float
    low: float
    high: float


def describe(values: Iterable[float]) -> Distribution | None:
    """Summarise the values; None when there are none."""
    ordered = sorted(values)
    if not ordered:
        return None
    mean = math.fsum(ordered) / len(ordered)
    variance = math.fsum((value - mean) ** 2 for value in ordered) / len(ordered)
    median, p90, p95, p99 = (percentile(ordered, q) for q in PERCENTILES)
    return Distribution(len(ordered), mean, math.sqrt(variance), median, p90, p95, p99, ordered[0], ordered[-1])


class LogHistogram:
    """Count positive values in buckets that are each 1 % wider than the one before.

    For quantities too many to keep, such as the gaps between streamed events. A percentile read from it is off by at
    most 0.5 %; count, mean, lowest and highest are exact. Values below `floor` share the first bucket.
    """

    GROWTH = 1.01

    def __init__(self, floor: float = 1e-6) -> None:
        self.floor = floor
        self.counts: dict[int, int] = {}
        self.count = 0
        self.total = 0.0
        self.squares = 0.0
        self.low = math.inf
        self.high = 0.0
        self._scale = 1.0 / math.log(self.GROWTH)

    def __repr__(self) -> str:
        return f"<LogHistogram {self.count} values, {len(self.counts)} buckets>"

    def add(self, value: float) -> None:
        """Count one value, in any unit; negative ones count as zero."""
        value = max(value, 0.0)
        bucket = int(math.log(value / self.floor) * self._scale) + 1 if value > self.floor else 0
        self.counts[bucket] = self.counts.get(bucket, 0) + 1
        self.count += 1
        self.total += value
        self.squares += value * value
        self.low = min(self.low, value)
        self.high = max(self.high, value)

    def quantile(self, q: float) -> float:
        """Return the q-th percentile (0 to 100), in the unit that was added. Raises ValueError when empty."""
        if not self.count:
            raise ValueError("no values")
        rank = q / 100.0 * (self.count - 1)
        seen = 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if seen > rank:
                middle = self.floor * self.GROWTH ** (bucket - 0.5) if bucket else 0.0
                return min(max(middle, self.low), self.high)
        return self.high

    def describe(self) -> Distribution | None:
        """Summarise what was counted; None when nothing was."""
        if not self.count:
            return None
        mean = self.total / self.count
        std = math.sqrt(max(self.squares / self.count - mean * mean, 0.0))
        median, p90, p95, p99 = (self.quantile(q) for q in PERCENTILES)
        return Distribution(self.count, mean, std, median, p90, p95, p99, self.low, self.high)


def bin_width(span: float, at_most: int) -> float:
    """Choose a round width (1, 2 or 5 times a power of ten) that cuts the span into no more than `at_most` bins."""
    if span <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(span / at_most))
    for factor in (1.0, 2.0, 5.0, 10.0):
        if span / (factor * power) <= at_most + 1e-9:
            return factor * power
    return 10.0 * power


@dataclass(frozen=True)
class HeatMap:
    """How many values fell into each cell: `cells[column][row]`, columns over time, rows over log-spaced values."""

    width: float
    edges: tuple[float, ...]
    cells: tuple[tuple[int, ...], ...]

    @property
    def peak(self) -> int:
        """The largest count of a cell; 0 when the map is empty."""
        return max((max(column, default=0) for column in self.cells), default=0)


def log_edges(low: float, high: float, rows: int) -> tuple[float, ...]:
    """Return rows + 1 edges, evenly spaced on a logarithmic scale, the outer ones at low and high (both above zero)."""
    if high <= low:
        high = low * 2.0
    step = (math.log(high) - math.log(low)) / rows
    return (*(low * math.exp(step * row) for row in range(rows)), high)


def heat_map(points: Sequence[tuple[float, float]], span: float, columns: int = 60, rows: int = 24) -> HeatMap | None:
    """Bin (time, value) points; None when there are none. Values must be above zero; times count from zero."""
    values = [value for _, value in points if value > 0]
    if not values:
        return None
    width = bin_width(span, columns)
    bins = max(1, math.ceil(span / width - 1e-9))
    low, high = min(values), max(values)
    if high < low * LEAST_RATIO:
        middle = math.sqrt(low * high)
        low, high = min(low, middle / LEAST_RATIO**0.5), max(high, middle * LEAST_RATIO**0.5)
    edges = log_edges(low, high, rows)
    zero, scale = math.log(edges[0]), rows / (math.log(edges[-1]) - math.log(edges[0]))
    cells = [[0] * rows for _ in range(bins)]
    for time, value in points:
        if value > 0 and 0 <= time <= span:
            row = min(int((math.log(value) - zero) * scale), rows - 1)
            cells[min(int(time / width), bins - 1)][max(row, 0)] += 1
    return HeatMap(width, edges, tuple(tuple(column) for column in cells))
