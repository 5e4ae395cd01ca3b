"""Reads every backend's queue depth, `--queue-interval` apart, over a connection of its own each.

Owns the clock of the samples: one timer for all backends, callbacks instead of tasks, since this runs ten times a
second for every backend for weeks. Samples of one backend never overlap, and no request ever waits for one.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from proxy.probe_client import ProbeClient
from proxy.queue_depth import DepthReader
from proxy.upstream import Backend

if TYPE_CHECKING:
    from proxy.endpoint import Endpoint

MAX_SAMPLE_S = 5.0  # a page that takes longer is given up: its connection may be dead
BATCH = 16  # backends that are asked at once; more of them take turns within the interval


class _Sampled:
    """One backend that is sampled."""

    __slots__ = ("_client", "_endpoint", "_path", "_reader", "_since", "backend")

    def __init__(self, backend: Backend, endpoint: Endpoint, path: str, buffer: bytearray) -> None:
        self.backend = backend
        self._endpoint = endpoint
        self._path = path
        self._client = ProbeClient(backend, endpoint.connector, buffer)
        self._reader = DepthReader(endpoint.config.engine)
        self._since: float | None = None  # when the sample that is under way began

    def sample(self, now: float) -> None:
        """Begin a sample unless one is under way."""
        if self._since is not None:
            if now - self._since < max(MAX_SAMPLE_S, self._endpoint.config.queue_interval_s):
                return
            self._client.close()
        self._since = now
        self._reader.begin()
        self._client.start(self._path, self._reader.feed, self._done)

    def _done(self, result: int | Exception) -> None:
        self._since = None
        if result == 200:
            depth = self._reader.finish()
            if depth is not None:
                self._endpoint.fleet.record_depth(self.backend, depth, time.monotonic())

    def close(self) -> None:
        """End sampling."""
        self._client.close()


class QueueSampler:
    """The samples of all backends; runs from the first `add` until the last `remove`."""

    def __init__(self, endpoint: Endpoint, path: str, buffer: bytearray) -> None:
        self._endpoint = endpoint
        self._path = path
        self._buffer = buffer
        self._sampled: list[_Sampled] = []
        self._next = 0  # index of the backend whose turn it is
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, backend: Backend) -> None:
        """Sample a backend from now on."""
        self._sampled.append(_Sampled(backend, self._endpoint, self._path, self._buffer))
        if self._timer is None:
            self._due = self._endpoint.loop.time()
            self._timer = self._endpoint.loop.call_at(self._due, self._tick)

    def remove(self, backend: Backend) -> None:
        """Sample a backend no more."""
        for sampled in self._sampled:
            if sampled.backend is backend:
                sampled.close()
        self._sampled = [s for s in self._sampled if s.backend is not backend]
        if not self._sampled and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        loop, sampled = self._endpoint.loop, self._sampled
        turns = -(-len(sampled) // BATCH)
        self._due = max(self._due + self._endpoint.config.queue_interval_s / turns, loop.time())
        self._timer = loop.call_at(self._due, self._tick)
        batch = -(-len(sampled) // turns)
        first = self._next if self._next < len(sampled) else 0
        now = time.monotonic()
        for one in sampled[first : first + batch]:
            one.sample(now)
        self._next = first + batch
