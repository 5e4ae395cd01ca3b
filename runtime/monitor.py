"""The health monitor of one attempt: probes every replica and endpoint, and keeps health.json.

A CPU step of its own, so that a controller that waits for Slurm misses nothing. It uses connections of its own and has
no effect on the proxy. Owns health.json; decides with health.HealthBook. On TERM it probes once more, marks its
snapshot final and exits 0.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from runtime.health import HealthBook, Target
from runtime.layout import AttemptDir, LayoutError
from runtime.plan import Plan, plan_from_json
from runtime.probe import get
from runtime.services import Services, read_services
from runtime.signals import SignalInbox
from runtime.state import HealthRecord, StateError, utc_now, write_json
from runtime.steps import deployment_of

DEFAULT_PROBE_TIMEOUT_S = 5.0
SIDE_PORT_TIMEOUT_S = 2.0
LAST_LOOK_S = 0.5


class Monitor:
    """Probes until it is told to stop.

    One line on stdout tells the controller of every snapshot that says something new.
    """

    def __init__(self, attempt: AttemptDir, plan: Plan, services: Services) -> None:
        self._attempt = attempt
        self._interval_s = plan.runtime.monitor_interval_s
        self._targets = targets(plan, services)
        self._side_ports = {one.deployment: one.metrics for one in services.endpoints}
        self._book = HealthBook(services, plan.runtime.monitor_failures)
        self._told: tuple[object, ...] | None = None
        self._news = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Probe every target in a loop of its own until `stop`, then once more for the final snapshot."""
        first = [asyncio.create_task(self._probe(target)) for target in self._targets]
        stopping = asyncio.create_task(stop.wait())
        everyone = asyncio.ensure_future(asyncio.wait(first))
        await asyncio.wait([everyone, stopping], return_when=asyncio.FIRST_COMPLETED)
        loops = [
            asyncio.create_task(self._follow(target, task)) for target, task in zip(self._targets, first, strict=True)
        ]
        try:
            while not stopping.done():
                with suppress(OSError):  # the next round writes again; silence that lasts is the monitor's loss
                    self._publish(self._book.snapshot(utc_now()))
                news = asyncio.create_task(self._news.wait())
                await asyncio.wait(
                    {news, stopping, *loops}, timeout=self._interval_s, return_when=asyncio.FIRST_COMPLETED
                )
                news.cancel()
                self._news.clear()
                for task in loops:
                    if task.done():
                        task.result()
        finally:
            await _end([*loops, *first, everyone, stopping])
        await self._last_look()
        self._publish(self._book.snapshot(utc_now(), final=True))

    async def _follow(self, target: Target, first: asyncio.Task[None]) -> None:
        await first
        while True:
            await asyncio.sleep(self._interval_s)
            await self._probe(target)

    async def _last_look(self) -> None:
        """Probe each target once more, but wait no longer than an interval: what hangs now had its rounds before."""
        probes = [asyncio.create_task(self._probe(target)) for target in self._targets]
        await asyncio.wait(probes, timeout=max(self._interval_s, LAST_LOOK_S))
        await _end(probes)

    async def _probe(self, target: Target) -> None:
        answer = await get(target.authority, target.path, target.timeout_s)
        busy = answer.timed_out and target.replica and await self._vouched(target)
        self._book.note(target, answer, busy, utc_now())
        if self._book.failure is not None:
            self._news.set()

    async def _vouched(self, target: Target) -> bool:
        """Ask the endpoint whether it calls this replica healthy while requests run on it."""
        answer = await get(self._side_ports[target.deployment], "/backends", SIDE_PORT_TIMEOUT_S, body=True)
        try:
            entries = json.loads(answer.body) if answer.good else []
            return any(one["id"] == target.authority and one["healthy"] and one["active"] > 0 for one in entries)
        except (ValueError, KeyError, TypeError):
            return False

    def _publish(self, record: HealthRecord) -> None:
        write_json(self._attempt.health_json, record)
        news = (record.good, record.failure, record.final, record.deployments)
        if news != self._told:
            self._told = news
            print(json.dumps({"sequence": record.sequence, "good": record.good, "final": record.final}), flush=True)


async def _end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def targets(plan: Plan, services: Services) -> tuple[Target, ...]:
    """List what the monitor probes: every replica on its health path, every endpoint on its side port."""
    found = []
    for replica in services.replicas:
        deployment = deployment_of(plan, replica.deployment)
        timeout_s = deployment.endpoint.get("health_timeout", DEFAULT_PROBE_TIMEOUT_S)
        limit = timeout_s if isinstance(timeout_s, int | float) else DEFAULT_PROBE_TIMEOUT_S
        found.append(Target(deployment.name, replica.authority, deployment.health_path, limit, replica=True))
    for endpoint in services.endpoints:
        found.append(Target(endpoint.deployment, endpoint.metrics, "/healthz", SIDE_PORT_TIMEOUT_S, replica=False))
    return tuple(found)


async def _watch(attempt: AttemptDir, inbox: SignalInbox) -> None:
    stop = asyncio.Event()
    inbox.attach(asyncio.get_running_loop(), lambda _: stop.set())
    if not attempt.plan_json.exists():
        raise LayoutError(f"{attempt.path} is not the directory of an attempt")
    plan = plan_from_json(json.loads(attempt.plan_json.read_bytes()))
    await Monitor(attempt, plan, read_services(attempt)).run(stop)


def main_monitor(*, attempt_dir: Path) -> int:
    """Run the monitor of an attempt until TERM; 0 after its final snapshot, 1 when it cannot work."""
    inbox = SignalInbox()
    inbox.install()
    try:
        with asyncio.Runner() as runner:
            try:
                runner.run(_watch(AttemptDir(attempt_dir.absolute()), inbox))
            finally:
                inbox.finish()  # Slurm sends TERM twice at times; the second must not spoil the exit code
    except (StateError, LayoutError, OSError, ValueError) as error:
        print(f"dd-proxy monitor: {error}", file=sys.stderr)
        return 1
    return 0
