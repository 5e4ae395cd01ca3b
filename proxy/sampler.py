"""Reads every backend's queue depth, `--queue-interval` apart, over a connection of its own each.

Owns what a sample is: which page is asked for, how long it may take, and what its answer means. Runs ten times a second
for every backend for weeks: callbacks instead of tasks, and as few of them as can be. Samples of one backend never
overlap, and no request ever waits for one.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from proxy.collector import Collector
from proxy.probe_client import ProbeClient
from proxy.queue_depth import DepthReader
from proxy.turns import Turns
from proxy.upstream import Backend

if TYPE_CHECKING:
    from proxy.endpoint import Endpoint

SAMPLE_S = 5.0  # or the interval, if that is longer: then a page is given up, since its connection may be dead


class _Sampled:
    """One backend that is sampled."""

    __slots__ = ("_backend", "_client", "_fleet", "_reader", "body")

    def __init__(self, backend: Backend, endpoint: Endpoint, path: str, collector: Collector) -> None:
        self._backend = backend
        self._fleet = endpoint.fleet
        self._reader = DepthReader(endpoint.config.engine)
        self.body = self._reader.feed
        limit_s = max(SAMPLE_S, endpoint.config.queue_interval_s)
        self._client = ProbeClient(backend, path, limit_s, self, endpoint.connector, collector)

    def turn(self, now: float) -> None:
        """Begin a sample unless one is under way."""
        if not self._client.waiting:
            self._reader.begin()
            self._client.start(now)

    def answered(self, result: int | Exception) -> None:
        """See probe_client.Asker."""
        if result == 200:
            depth = self._reader.finish()
            if depth is not None:
                self._fleet.record_depth(self._backend, depth, time.monotonic())

    def close(self) -> None:
        """End the samples; the connection closes."""
        self._client.close()


class QueueSampler:
    """The samples of all backends; runs from the first `add` until the last `remove`."""

    def __init__(self, endpoint: Endpoint, path: str, collector: Collector) -> None:
        self._endpoint = endpoint
        self._path = path
        self._collector = collector
        self._sampled: dict[Backend, _Sampled] = {}
        self._turns = Turns(endpoint.loop, endpoint.config.queue_interval_s, collector.poll)

    def add(self, backend: Backend) -> None:
        """Sample a backend from now on."""
        self._sampled[backend] = sampled = _Sampled(backend, self._endpoint, self._path, self._collector)
        self._turns.add(sampled, 0.0)

    def remove(self, backend: Backend) -> None:
        """Sample a backend no more; its connection closes."""
        sampled = self._sampled.pop(backend)
        self._turns.remove(sampled)
        sampled.close()
