"""The last minutes in numbers: queue depths and rates for the status page's lines, and what rates and percentiles need.

Owns bounded arrays filled by one call every INTERVAL_S. Pure: the caller brings the time. A sample costs about 1 µs per
backend, all samples of a backend 2.5 KiB, and a request nothing.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from proxy.counters import Counters, Histogram
from proxy.upstream import Backend

INTERVAL_S = 2.0
SAMPLES = 150  # five minutes
RATE_S = 10.0  # span of "now" for rates
LATENCY_S = 60.0  # span of "now" for latency percentiles


@dataclass(frozen=True, slots=True)
class Totals:
    """The endpoint's counters at one moment (`at`: monotonic seconds); the histograms' counts are not cumulative."""

    at: float
    requests: int
    active: int
    retries: int
    failovers: int
    final_429: int
    final_5xx: int
    request_counts: array[int]
    header_counts: array[int]

    @classmethod
    def of(cls, c: Counters, active: int, now: float) -> Totals:
        """Read the counters as they are at `now`."""
        return cls(
            at=now,
            requests=c.requests,
            active=active,
            retries=sum(c.retries.values()),
            failovers=c.failovers,
            final_429=c.final_429,
            final_5xx=c.final_5xx,
            request_counts=array("Q", c.request_seconds.counts),
            header_counts=array("Q", c.response_header_seconds.counts),
        )


class Track:
    """The samples of one backend: queue depth (NaN: not known) and attempts so far; the newest last."""

    __slots__ = ("attempts", "depth", "seen")

    def __init__(self) -> None:
        self.depth = array("f")
        self.attempts = array("d")
        self.seen = 0  # the sample number at which the backend was last there

    def add(self, depth: float, attempts: int) -> None:
        """Append one sample and forget the oldest."""
        for series, value in ((self.depth, depth), (self.attempts, attempts)):
            series.append(value)
            if len(series) > SAMPLES:
                del series[0]


class History:
    """Samples of the endpoint and of each of its backends; `taken` counts them all."""

    def __init__(self) -> None:
        self.taken = 0
        self._totals: deque[Totals] = deque(maxlen=SAMPLES)
        self._tracks: dict[str, Track] = {}

    def sample(self, totals: Totals, backends: Iterable[Backend], stale_after_s: float) -> None:
        """Take one sample; a queue depth older than `stale_after_s` is not known. Removed backends are forgotten."""
        self.taken += 1
        self._totals.append(totals)
        for b in backends:
            track = self._tracks.get(b.id)
            if track is None:
                track = self._tracks[b.id] = Track()
            fresh = b.queue_depth is not None and totals.at - b.queue_at <= stale_after_s
            track.add(b.queue_depth if fresh and b.queue_depth is not None else math.nan, b.attempts)
            track.seen = self.taken
        for gone in [name for name, track in self._tracks.items() if track.seen != self.taken]:
            del self._tracks[gone]

    def before(self, now: Totals, span_s: float) -> Totals | None:
        """Find the newest sample at least `span_s` older than `now`, else the oldest; None when there is none."""
        for totals in reversed(self._totals):
            if now.at - totals.at >= span_s:
                return totals
        return self._totals[0] if self._totals else None

    def attempt_rate(self, backend: Backend) -> float | None:
        """Give a backend's attempts per second over the last RATE_S; None before the second sample."""
        track = self._tracks.get(backend.id)
        if track is None or len(track.attempts) < 2:
            return None
        steps = min(len(track.attempts) - 1, round(RATE_S / INTERVAL_S))
        return (track.attempts[-1] - track.attempts[-1 - steps]) / (steps * INTERVAL_S)

    def since(self, sample: int) -> dict[str, object]:
        """Give the samples after number `sample` as plain lists; `from` is the number before the first one given.

        All that are kept are given when `sample` is not one of them (0, too old, or of another process).
        """
        kept = len(self._totals)
        count = self.taken - sample
        if not 0 <= count <= kept:
            count = kept
        newest = list(self._totals)[max(0, kept - count - 1) :]  # one more, to make rates of
        rates = [rate(new.requests - old.requests, new.at - old.at) for old, new in pairwise(newest)]
        if count == kept and count:
            rates.insert(0, None)
        return {
            "taken": self.taken,
            "from": self.taken - count,
            "interval_s": INTERVAL_S,
            "requests_per_s": rates,
            "active": [totals.active for totals in newest[len(newest) - count :]],
            "backends": {name: {"depth": _plain(track.depth, count)} for name, track in self._tracks.items()},
        }


def rate(difference: float, seconds: float) -> float | None:
    """Give a difference per second, or None when no time has passed."""
    return difference / seconds if seconds > 0 else None


def quantile(histogram: Histogram, counts: Sequence[int], q: float) -> float | None:
    """Estimate the q-quantile in seconds of `counts` (by bucket of `histogram`), linear within a bucket; None if empty.

    What lies above the last bound is given as that bound.
    """
    total = sum(counts)
    if not total:
        return None
    rank, seen = q * total, 0
    for index, count in enumerate(counts):
        if count and seen + count >= rank:
            if index == len(histogram.bounds):
                break
            low = histogram.bounds[index - 1] if index else 0.0
            return low + (histogram.bounds[index] - low) * (rank - seen) / count
        seen += count
    return histogram.bounds[-1]


def _plain(series: array[float], count: int) -> list[float | None]:
    newest = series[-count:] if count else series[:0]
    return [None if math.isnan(value) else value for value in newest]
