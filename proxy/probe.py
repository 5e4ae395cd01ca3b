"""Asks every backend how it is: a health probe each `--health-interval`, a queue sample each `--queue-interval`.

Owns the health probes: when they are made, and whether they were good; the samples are sampler.py's. What a verdict
means is upstream.Health's and balancer.Fleet's. Both count nowhere but in the gauges they feed.
"""

from __future__ import annotations

import asyncio
import math

from proxy.collector import Collector
from proxy.connector import LOCAL_ERRNOS
from proxy.endpoint import Endpoint
from proxy.probe_client import ProbeClient
from proxy.sampler import QueueSampler
from proxy.turns import Turns
from proxy.upstream import Backend

MIN_INTERVAL_S = 0.1  # between the starts of two probes of a backend, whatever asks for them


class _Watch:
    """The health probes of one backend."""

    def __init__(self, backend: Backend, endpoint: Endpoint, collector: Collector) -> None:
        config = endpoint.config
        self._backend = backend
        self._endpoint = endpoint
        self._collector = collector
        self._client = ProbeClient(
            backend, config.health_path, config.health_timeout_s, self, endpoint.connector, collector
        )
        self._turn_after_s = min(MIN_INTERVAL_S, config.health_interval_s / 2)
        self._began = -math.inf  # the latest probe
        self._again_after_s = math.inf  # another probe begins so long after that one, but not before it has ended
        self._timer: asyncio.TimerHandle | None = None
        self._reads = 0  # of response bytes from the backend, when the probe began

    def turn(self, now: float) -> None:
        """Probe; if there is a probe under way, as soon as it has ended, if there just was one, a little later."""
        if self._client.waiting or now < self._began + self._turn_after_s:
            self._probe_after(self._turn_after_s)
        else:
            self._probe(now)

    def probe_soon(self) -> None:
        """Probe, but not within MIN_INTERVAL_S of the last probe, and not within this call."""
        self._probe_after(MIN_INTERVAL_S)

    def _probe_after(self, after_s: float) -> None:
        if self._client.waiting:
            self._again_after_s = min(self._again_after_s, after_s)
        elif self._timer is None:
            loop = self._endpoint.loop
            self._timer = loop.call_at(max(self._began + after_s, loop.time()), self._probe_alone)

    def close(self) -> None:
        """End the probes; the connection closes."""
        self._stop_timer()
        self._client.close()

    def _probe_alone(self) -> None:
        self._collector.poll()
        self._probe(self._endpoint.loop.time())

    def _probe(self, now: float) -> None:
        self._stop_timer()
        self._began = now
        self._again_after_s = math.inf
        self._reads = self._endpoint.reads_of(self._backend)
        self._client.start(now)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def body(self, piece: memoryview) -> None:
        """See probe_client.Asker; what a health page says does not matter."""

    def answered(self, result: int | Exception) -> None:
        """See probe_client.Asker."""
        good = self._judge(result)
        if good is not None and self._endpoint.fleet.record_probe(self._backend, good):
            self._endpoint.health_changed(self._backend)
        if self._again_after_s < math.inf:
            self._probe_after(self._again_after_s)

    def _judge(self, result: int | Exception) -> bool | None:
        """Judge a probe; None when nothing follows from it.

        It only timed out while response bytes flowed, or it failed for want of something in this process.
        """
        if isinstance(result, int):
            return 200 <= result < 300
        if isinstance(result, TimeoutError):
            return None if self._endpoint.reads_of(self._backend) != self._reads else False
        local = isinstance(result, OSError) and result.errno in LOCAL_ERRNOS
        return None if local else False  # this process's own trouble says nothing of a backend


class Prober:
    """Health probes and queue samples of all backends (see endpoint.Probes)."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._collector = Collector(endpoint.loop)
        self._watches: dict[Backend, _Watch] = {}
        self._turns = Turns(endpoint.loop, endpoint.config.health_interval_s, self._collector.poll)
        path = endpoint.config.queue_metrics_path
        self._sampler = None if path is None else QueueSampler(endpoint, path, self._collector)

    def start(self, backend: Backend) -> None:
        """Begin to watch a backend, with a probe at once."""
        self._watches[backend] = watch = _Watch(backend, self._endpoint, self._collector)
        watch.turn(self._endpoint.loop.time())
        self._turns.add(watch, self._endpoint.config.health_interval_s)
        if self._sampler is not None:
            self._sampler.add(backend)

    def stop(self, backend: Backend) -> None:
        """Stop watching a backend; its probe connections close."""
        watch = self._watches.pop(backend)
        self._turns.remove(watch)
        watch.close()
        if self._sampler is not None:
            self._sampler.remove(backend)

    async def close(self) -> None:
        """Stop watching all backends, and wait until connections that are being made for them have ended."""
        for backend in list(self._watches):
            self.stop(backend)
        await self._collector.close()

    def probe_now(self, backend: Backend) -> None:
        """Probe now rather than at the next interval, but not within MIN_INTERVAL_S of the last probe."""
        watch = self._watches.get(backend)
        if watch is not None:
            watch.probe_soon()
