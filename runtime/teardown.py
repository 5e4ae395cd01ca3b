"""Takes an attempt down in the order that cleanup.CLEANUP_ORDER names.

Owns how each act is done and its bound in time. A failing act never keeps the next one from being done, and never
becomes the attempt's verdict.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from runtime.attempt import Attempt
from runtime.budget import DRAIN_GRACE_S
from runtime.cleanup import CLEANUP_ORDER, Act
from runtime.launcher import Step
from runtime.probe import get
from runtime.site import Refusal, force_step, stop_step, term_step
from runtime.state import Classification, HealthFailure, ReadinessState, utc_now
from runtime.steps import Role
from runtime.verdict import ORDERED, Cause, slurm_name

MONITOR_STOP_S = 5.0
SIDE_PORT_TIMEOUT_S = 1.0
DELIVERY_S = 1.0


class Teardown:
    """One cleanup of one attempt, after its cause was named."""

    def __init__(self, attempt: Attempt, cause: Cause) -> None:
        self._attempt = attempt
        self._cause = cause
        self._draining: list[Step] = []
        self._unreachable: dict[str, Refusal] = {}
        self._acts: Mapping[Act, Callable[[], Awaitable[None]]] = {
            Act.TERM_CLIENT: self._term_client,
            Act.STOP_MONITOR: self._stop_monitor,
            Act.DRAIN_ENDPOINTS: self._drain_endpoints,
            Act.AWAIT_ENDPOINTS: self._await_endpoints,
            Act.FORCE_ENDPOINTS: self._force_endpoints,
            Act.STOP_REST: self._stop_rest,
            Act.READ_HEALTH: self._read_health,
        }

    async def run(self) -> None:
        """Do every act. Bounded in time; leaves no step running that the site can still reach."""
        journal = self._attempt.journal
        if self._cause.named in ORDERED:
            self._attempt.watching = False
        for act in CLEANUP_ORDER[self._cause.named]:
            try:
                await self._acts[act]()
            except Exception as error:  # noqa: BLE001  one act must not keep the others from being done
                reason = f"{type(error).__name__}: {error}"
                journal.event("cleanup_failed", act=act, reason=reason)
                if act is Act.STOP_MONITOR:  # its final snapshot was not read: nobody knows what it would have said
                    self._attempt.lose(HealthFailure(utc_now(), None, None, "launcher", f"cannot be stopped: {reason}"))
                    self._attempt.watching = False
        left = [step.name for step in self._attempt.steps.values() if step.alive]
        journal.event("cleanup_done", left=", ".join(left) or None)

    async def _term_client(self) -> None:
        for client in self._attempt.of(Role.CLIENT):
            await term_step(self._attempt.site, client, self._attempt.note())

    async def _stop_monitor(self) -> None:
        """Stop the monitor and take its final snapshot; without one nobody knows what happened to the services."""
        attempt = self._attempt
        for monitor in attempt.of(Role.MONITOR):
            await term_step(attempt.site, monitor, attempt.note())
            if not await monitor.wait(MONITOR_STOP_S):
                await force_step(attempt.site, monitor, attempt.note())
        if attempt.watching:
            record = attempt.health()
            if record is not None and record.failure is not None:
                attempt.lose(record.failure)
            elif record is None or not record.final:
                attempt.lose(HealthFailure(utc_now(), None, None, "launcher", "left no final snapshot"))
        attempt.watching = False

    async def _drain_endpoints(self) -> None:
        self._draining = self._attempt.of(Role.ENDPOINT)
        await _each(self._drain, self._draining)

    async def _drain(self, endpoint: Step) -> None:
        attempt = self._attempt
        side_port = attempt.side_port(endpoint)
        if side_port is not None:
            answer = await get(side_port, "/healthz", SIDE_PORT_TIMEOUT_S)
            if answer.status == 503:
                endpoint.stopping = True
                attempt.journal.event("drain_started", endpoint.name, by="slurm")
                return
        refusal = await term_step(attempt.site, endpoint, attempt.note())
        if refusal is None:
            attempt.journal.event("drain_started", endpoint.name, by="controller")
        elif side_port is None or not refusal.site_stops:
            self._unreachable[endpoint.name] = refusal  # it cannot be told, so that there is nothing to wait for

    async def _await_endpoints(self) -> None:
        limit = self._attempt.budget.drain_s + DRAIN_GRACE_S

        async def await_endpoint(endpoint: Step) -> None:
            loop = asyncio.get_running_loop()
            started = loop.time()
            if not await endpoint.wait(DELIVERY_S):
                await self._remind(endpoint)
            ended = await endpoint.wait(max(0.0, started + limit - loop.time()))
            code = endpoint.exited.result() if ended else None
            self._attempt.journal.event(
                "drain_ended", endpoint.name, exit_code=code, seconds=round(loop.time() - started, 3)
            )

        await _each(await_endpoint, [one for one in self._draining if one.name not in self._unreachable])

    async def _remind(self, endpoint: Step) -> None:
        """Tell an endpoint again that still serves: Slurm does not say reliably whether a signal has arrived."""
        side_port = self._attempt.side_port(endpoint)
        if side_port is not None and (await get(side_port, "/healthz", SIDE_PORT_TIMEOUT_S)).good:
            endpoint.stopping = False
            await term_step(self._attempt.site, endpoint, self._attempt.note())

    async def _force_endpoints(self) -> None:
        await _each(self._force, self._attempt.of(Role.ENDPOINT))

    async def _force(self, step: Step) -> None:
        await force_step(self._attempt.site, step, self._attempt.note())

    async def _stop_rest(self) -> None:
        async def stop(step: Step) -> None:
            await stop_step(self._attempt.site, step, self._attempt.note())

        await _each(stop, self._attempt.of(*Role))

    async def _read_health(self) -> None:
        """Record the first loss, unless Slurm was taking the services away, which is no loss of theirs."""
        attempt = self._attempt
        if self._cause.named in ORDERED or attempt.journal.readiness.state is not ReadinessState.READY:
            return
        for failure, node in attempt.losses[:1]:
            view = await attempt.view(node)
            name = None if view is None else slurm_name(view)
            if name is None or name[0] is Classification.NODE_LOST:
                attempt.journal.lose(failure)


async def _each(act: Callable[[Step], Awaitable[None]], steps: list[Step]) -> None:
    """Do the same to many steps at once; the first failure is raised after all are done."""
    results = await asyncio.gather(*(act(step) for step in steps), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
