"""From nothing to a running client: replicas, endpoints, monitor, ready, client, in that order.

Owns the waits for each of them, every one with a deadline from the plan. A step that dies while it is waited for ends
the attempt through its exit, not through these waits. Refuses to stop anything: teardown does.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from runtime.attempt import Attempt
from runtime.launcher import StepError
from runtime.plan import Deployment
from runtime.preflight import StartupError, preflight
from runtime.probe import Answer, get, split_authority
from runtime.services import Endpoint, Replica, authority
from runtime.state import HealthFailure, HealthRecord, ReadinessState, utc_now
from runtime.steps import client_step, endpoint_step, monitor_step, replica_step
from runtime.units import human_duration

LISTEN_TIMEOUT_S = 60.0  # an endpoint prints its line in a fraction of a second; a cold file system takes longer
MONITOR_TIMEOUT_S = 60.0
PROBE_TIMEOUT_S = 5.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 1.0  # a replica that loads for minutes need not be asked ten times a second
SILENCE_ROUNDS, SILENCE_S = 10, 10.0
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "127.0.0.1"}


class Startup:
    """Brings one attempt up. `news` is set by the monitor's lines, and wakes whoever reads its snapshots."""

    def __init__(self, attempt: Attempt, environ: dict[str, str]) -> None:
        self._attempt = attempt
        self._environ = environ
        self._news = asyncio.Event()
        self._seen: HealthRecord | None = None

    async def run(self) -> None:
        """Start everything up to the client, then follow the monitor until cancelled.

        Raises StartupError; after cancellation the steps that were started still run.
        """
        attempt = self._attempt
        await preflight(attempt, self._environ)
        try:
            await self._start_replicas()
            await self._start_endpoints()
            await self._start_monitor()
            attempt.journal.ready()
            attempt.watching = True
            attempt.journal.event("ready")
            attempt.launch(client_step(attempt.plan, attempt.services, attempt.directory))
        except StepError as error:
            raise StartupError(str(error)) from None
        except KeyError as error:
            raise StartupError(f"{error} has no value") from None
        await self._follow_monitor()

    async def _start_replicas(self) -> None:
        attempt = self._attempt
        for placed, replica in zip(attempt.placed, attempt.services.replicas, strict=True):
            attempt.launch(replica_step(attempt.plan, replica, placed.gpus, attempt.directory))
        for deployment in attempt.plan.deployments:
            attempt.journal.deployment(deployment.name, state=ReadinessState.STARTING)
        await _all(
            self._await_replica(deployment, replica)
            for deployment in attempt.plan.deployments
            for replica in attempt.services.of(deployment.name)
        )

    async def _await_replica(self, deployment: Deployment, replica: Replica) -> None:
        answer = await _await_good(replica.authority, deployment.health_path, deployment.startup_timeout_s)
        if not answer.good:
            raise StartupError(
                f"{replica.name} ({replica.authority}) on {replica.node} did not become ready within "
                f"{human_duration(deployment.startup_timeout_s)}: {deployment.health_path}: {answer.reason}; "
                f"see logs/{replica.name}.err"
            )
        ready = next(one for one in self._attempt.journal.readiness.deployments if one.name == deployment.name)
        self._attempt.journal.deployment(deployment.name, ready_backends=ready.ready_backends + 1)
        self._attempt.journal.event("step_ready", replica.name)

    async def _start_endpoints(self) -> None:
        await _all(self._start_endpoint(deployment) for deployment in self._attempt.plan.deployments)

    async def _start_endpoint(self, deployment: Deployment) -> None:
        attempt = self._attempt
        spec = endpoint_step(attempt.plan, deployment, attempt.services, attempt.directory, attempt.own)
        said, feed = _first_line()
        attempt.launch(spec, feed)
        try:
            async with asyncio.timeout(LISTEN_TIMEOUT_S):
                line = await said
            listening = json.loads(line)
            client, side = _reachable(listening["listen"]), _reachable(listening["metrics"])
        except TimeoutError:
            raise StartupError(f"{spec.name} does not listen after {human_duration(LISTEN_TIMEOUT_S)}") from None
        except (ValueError, KeyError, TypeError):
            raise StartupError(f"{spec.name} printed no listening line; see logs/{spec.name}.out") from None
        endpoint = Endpoint(spec.name, deployment.name, f"http://{client}", side)
        endpoints = (*attempt.services.endpoints, endpoint)
        attempt.save_services(replace(attempt.services, endpoints=endpoints))
        attempt.journal.deployment(deployment.name, endpoint=endpoint.url, metrics=side)
        answer = await _await_good(client, "/health", deployment.startup_timeout_s)
        if not answer.good:
            raise StartupError(
                f"{spec.name} ({client}) did not find every backend healthy within "
                f"{human_duration(deployment.startup_timeout_s)}: {answer.reason}; see logs/{spec.name}.err"
            )
        answer = await _await_good(side, "/healthz", LISTEN_TIMEOUT_S)
        if not answer.good:
            raise StartupError(f"{spec.name}: its side port ({side}) does not answer: {answer.reason}")
        attempt.journal.deployment(deployment.name, state=ReadinessState.READY)
        attempt.journal.event("step_ready", spec.name)

    async def _start_monitor(self) -> None:
        """Start the monitor and wait for its first good snapshot."""
        attempt = self._attempt
        spec = monitor_step(attempt.services, attempt.directory, attempt.own)
        attempt.launch(spec, lambda _: self._news.set())
        try:
            async with asyncio.timeout(MONITOR_TIMEOUT_S):
                while (record := await self._snapshot(None)) is None or not record.good:
                    if record is not None and record.failure is not None:
                        failure = record.failure
                        raise StartupError(
                            f"{failure.deployment} ({failure.backend}): {failure.reason} before the client started"
                        )
        except TimeoutError:
            raise StartupError(f"the monitor saw no good moment within {human_duration(MONITOR_TIMEOUT_S)}") from None
        attempt.journal.event("step_ready", spec.name)

    async def _snapshot(self, timeout_s: float | None) -> HealthRecord | None:
        """Wait for news from the monitor, at most `timeout_s`, and read its snapshot."""
        # Not `wait_for`: before Python 3.12 it forgets a cancellation that comes together with the news.
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        self._news.clear()
        return self._attempt.health()

    async def _follow_monitor(self) -> None:
        """Turn every snapshot into readiness, a loss into the end, and silence of the monitor into its loss."""
        attempt = self._attempt
        interval_s = attempt.plan.runtime.monitor_interval_s
        silence_s = SILENCE_S + SILENCE_ROUNDS * interval_s
        loop = asyncio.get_running_loop()
        heard, sequence = loop.time(), 0
        while True:
            record = await self._snapshot(interval_s)
            if record is not None and record.sequence > sequence:
                heard, sequence = loop.time(), record.sequence
                with suppress(OSError):  # the next snapshot is written again
                    for one in record.deployments:
                        attempt.journal.deployment(one.name, ready_backends=one.healthy)
                if record.failure is not None:
                    attempt.lose(record.failure, self._node_of(record.failure))
                    return
            elif loop.time() - heard > silence_s:
                reason = f"no snapshot for {human_duration(round(loop.time() - heard))}"
                attempt.lose(HealthFailure(utc_now(), None, None, "launcher", reason))
                return

    def _node_of(self, failure: HealthFailure) -> str | None:
        found = (one.node for one in self._attempt.services.replicas if one.authority == failure.backend)
        return next(found, None)


async def _await_good(address: str, path: str, timeout_s: float) -> Answer:
    """Ask until the answer is 200 or the time is over, and give the last answer."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    pause_s = FIRST_PAUSE_S
    answer = Answer(None, "was never asked")
    while (left := deadline - loop.time()) > 0:
        answer = await get(address, path, min(PROBE_TIMEOUT_S, left))
        if answer.good:
            break
        await asyncio.sleep(min(pause_s, max(0.0, deadline - loop.time())))  # no event tells when a replica is loaded
        pause_s = min(pause_s * 1.5, LONGEST_PAUSE_S)
    return answer


async def _all(jobs: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run jobs at once; the first failure ends the others and is raised, as does a cancellation."""
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _first_line() -> tuple[asyncio.Future[bytes], Callable[[bytes], None]]:
    """Give a future of the first line, and what to feed with the pieces."""
    line: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    pieces = bytearray()

    def feed(data: bytes) -> None:
        pieces.extend(data)
        if b"\n" in pieces and not line.done():
            line.set_result(bytes(pieces.partition(b"\n")[0]))

    return line, feed


def _reachable(listen: str) -> str:
    """Give the address under which a listener is reached from its own node."""
    host, port = split_authority(listen)
    return authority(_WILDCARDS.get(host, host), port)
