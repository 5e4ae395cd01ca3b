"""Plain integers that the data path adds to, and the side port reads.

Owns no locks and no library types: everything runs on one event loop thread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict

from proxy.outcome import Rejection, Side, Timeout

# Upper bounds in seconds. A replica answers in milliseconds to an hour; connecting takes far less.
CONNECT_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
REQUEST_BOUNDS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
    *(120.0, 300.0, 600.0, 1800.0, 3600.0),
)


class Histogram:
    """Count observations in seconds by bucket; `counts[i]` is not cumulative, the last one is +Inf."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        """Add one observation in seconds."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds


class Counters:
    """Everything the process counts about client traffic, but for what belongs to one backend."""

    def __init__(self) -> None:
        self.requests = 0
        self.active_requests = 0
        self.failovers = 0
        self.final_429 = 0
        self.final_5xx = 0
        self.responses: defaultdict[int, int] = defaultdict(int)  # by final status; 499: the client left before
        self.retries: defaultdict[str, int] = defaultdict(int)
        self.rejected: dict[str, int] = dict.fromkeys(Rejection, 0)
        self.timeouts: dict[str, int] = dict.fromkeys(Timeout, 0)
        self.incomplete: dict[str, int] = dict.fromkeys(Side, 0)
        self.connect_seconds = Histogram(CONNECT_BOUNDS_S)
        self.response_header_seconds = Histogram(REQUEST_BOUNDS_S)
        self.request_seconds = Histogram(REQUEST_BOUNDS_S)
