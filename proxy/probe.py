"""Asks every backend how it is: a health probe each `--health-interval`, a queue sample each `--queue-interval`.

Owns the health probes, a task and a connection for each backend; the samples are sampler.py's. What an answer means is
upstream.Health's and balancer.Fleet's. Both count nowhere but in the gauges they feed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from proxy.connector import LOCAL_ERRNOS
from proxy.endpoint import Endpoint
from proxy.probe_client import BUFFER_BYTES, ProbeClient, ProbeFailed
from proxy.sampler import QueueSampler
from proxy.upstream import Backend

MIN_INTERVAL_S = 0.1  # between two probes of a backend, whatever asks for them


@dataclass(slots=True)
class _Watch:
    """What runs for one backend."""

    task: asyncio.Task[None]
    probe_wanted: asyncio.Event


class Prober:
    """Health probes and queue samples of all backends (see endpoint.Probes)."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._buffer = bytearray(BUFFER_BYTES)
        self._watches: dict[Backend, _Watch] = {}
        path = endpoint.config.queue_metrics_path
        self._sampler = None if path is None else QueueSampler(endpoint, path, self._buffer)

    def start(self, backend: Backend) -> None:
        """Begin to watch a backend, with a probe at once."""
        wanted = asyncio.Event()
        task = self._endpoint.loop.create_task(self._watch_health(backend, wanted), name=f"health {backend.id}")
        self._watches[backend] = _Watch(task, wanted)
        if self._sampler is not None:
            self._sampler.add(backend)

    def stop(self, backend: Backend) -> None:
        """Stop watching a backend; its probe connections close."""
        self._watches.pop(backend).task.cancel()
        if self._sampler is not None:
            self._sampler.remove(backend)

    async def close(self) -> None:
        """Stop watching all backends, and wait until their tasks have ended."""
        tasks = [watch.task for watch in self._watches.values()]
        for backend in list(self._watches):
            self.stop(backend)
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
                began = endpoint.loop.time()
                due = endpoint.loop.time() + config.health_interval_s
                good = await self._probe(backend, client)
                if good is not None and endpoint.fleet.record_probe(backend, good):
                    endpoint.health_changed(backend)
                try:
                    async with asyncio.timeout_at(due):
                        await wanted.wait()
                except TimeoutError:
                    continue
                # A backend that refuses everybody is not probed once for each of them.
                await asyncio.sleep(max(began + MIN_INTERVAL_S - endpoint.loop.time(), 0))
        finally:
            client.close()

    async def _probe(self, backend: Backend, client: ProbeClient) -> bool | None:
        """Probe once; None when nothing follows from it.

        It only timed out while response bytes flowed, or it failed for want of something in this process.
        """
        config, endpoint = self._endpoint.config, self._endpoint
        before = endpoint.reads_of(backend)
        try:
            async with asyncio.timeout(config.health_timeout_s):
                return 200 <= await client.get(config.health_path) < 300
        except TimeoutError:
            return None if endpoint.reads_of(backend) != before else False
        except OSError as e:
            return None if e.errno in LOCAL_ERRNOS else False  # this process's own trouble says nothing of a backend
        except ProbeFailed:
            return False
