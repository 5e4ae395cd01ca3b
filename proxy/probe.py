"""Asks every backend how it is: a health probe each `--health-interval`, a queue sample each `--queue-interval`.

Owns the tasks that do so, two per backend, each over a connection of its own. What an answer means is upstream.Health's
and balancer.Fleet's. Probes never overlap for one backend, and count nowhere but in the gauges they feed.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from proxy.endpoint import Endpoint
from proxy.probe_client import BUFFER_BYTES, ProbeClient, ProbeFailed
from proxy.queue_depth import DepthReader
from proxy.upstream import Backend

MAX_SAMPLE_S = 30.0  # a page of metrics that takes longer than this is given up; no request waits for it


@dataclass(slots=True)
class _Watch:
    """What runs for one backend."""

    tasks: list[asyncio.Task[None]]
    probe_wanted: asyncio.Event


class Prober:
    """Health probes and queue samples of all backends (see endpoint.Probes)."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._buffer = bytearray(BUFFER_BYTES)
        self._watches: dict[Backend, _Watch] = {}

    def start(self, backend: Backend) -> None:
        """Begin to watch a backend, with a probe at once."""
        wanted = asyncio.Event()
        loop = self._endpoint.loop
        tasks = [loop.create_task(self._watch_health(backend, wanted), name=f"health {backend.id}")]
        if self._endpoint.config.queue_metrics_path is not None:
            tasks.append(loop.create_task(self._watch_queue(backend), name=f"queue {backend.id}"))
        self._watches[backend] = _Watch(tasks, wanted)

    def stop(self, backend: Backend) -> None:
        """Stop watching a backend; its probe connections close."""
        for task in self._watches.pop(backend).tasks:
            task.cancel()

    async def close(self) -> None:
        """Stop watching all backends, and wait until their tasks have ended."""
        tasks = [task for watch in self._watches.values() for task in watch.tasks]
        self._watches.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def probe_now(self, backend: Backend) -> None:
        """Probe now rather than at the next interval."""
        watch = self._watches.get(backend)
        if watch is not None:
            watch.probe_wanted.set()

    async def _watch_health(self, backend: Backend, wanted: asyncio.Event) -> None:
        config, endpoint = self._endpoint.config, self._endpoint
        client = ProbeClient(backend, endpoint.connector, self._buffer)
        try:
            while True:
                wanted.clear()
                due = endpoint.loop.time() + config.health_interval_s
                good = await self._probe(backend, client)
                if good is not None and endpoint.fleet.record_probe(backend, good):
                    endpoint.health_changed(backend)
                try:
                    async with asyncio.timeout_at(due):
                        await wanted.wait()
                except TimeoutError:
                    pass
        finally:
            client.close()

    async def _probe(self, backend: Backend, client: ProbeClient) -> bool | None:
        """Probe once; None when nothing follows from it: it only timed out, and response bytes flowed meanwhile."""
        config, endpoint = self._endpoint.config, self._endpoint
        before = endpoint.reads_of(backend)
        try:
            async with asyncio.timeout(config.health_timeout_s):
                return 200 <= await client.get(config.health_path) < 300
        except TimeoutError:
            return None if endpoint.reads_of(backend) != before else False
        except (OSError, ProbeFailed):
            return False

    async def _watch_queue(self, backend: Backend) -> None:
        config, endpoint = self._endpoint.config, self._endpoint
        path = config.queue_metrics_path
        assert path is not None
        client = ProbeClient(backend, endpoint.connector, self._buffer)
        reader = DepthReader(config.engine)
        due = endpoint.loop.time()
        try:
            while True:
                reader.begin()
                try:
                    async with asyncio.timeout(max(MAX_SAMPLE_S, config.queue_interval_s)):
                        status = await client.get(path, reader.feed)
                    depth = reader.finish() if status == 200 else None
                except (TimeoutError, OSError, ProbeFailed):
                    depth = None
                if depth is not None:
                    endpoint.fleet.record_depth(backend, depth, time.monotonic())
                due = max(due + config.queue_interval_s, endpoint.loop.time())
                await asyncio.sleep(due - endpoint.loop.time())
        finally:
            client.close()
