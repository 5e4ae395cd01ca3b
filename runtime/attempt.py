"""A running attempt: its plan, its place, its steps, and the first cause of its end.

Owns what startup, teardown and controller share, and what a step's end means at each moment. Refuses to know the order
in which things are started and stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from runtime.budget import drain_budget
from runtime.journal import Journal
from runtime.launcher import Feed, Step
from runtime.layout import AttemptDir
from runtime.own import own_command
from runtime.placement import Placed
from runtime.plan import Plan
from runtime.services import Services, services_path
from runtime.site import Note, Refusal, Site, SiteError
from runtime.state import HealthFailure, HealthRecord, ReadinessState, StateError, read_health, utc_now, write_json
from runtime.steps import Role, StepSpec
from runtime.verdict import Cause, JobView, Trigger, describe_exit, describe_failure


class Attempt:
    """What the parts of the controller work on."""

    def __init__(self, plan: Plan, site: Site, journal: Journal, placed: tuple[Placed, ...]) -> None:
        self.plan = plan
        self.site = site
        self.journal = journal
        self.placed = placed
        self.own = own_command()
        self.budget = drain_budget(plan)
        self.services = Services(nodes=(), replicas=())
        self.steps: dict[str, Step] = {}
        self.ended: asyncio.Future[Cause] = asyncio.get_running_loop().create_future()
        self.losses: list[tuple[HealthFailure, str | None]] = []
        self.watching = False  # from ready until the monitor's final snapshot, or until an ordered end begins

    def __repr__(self) -> str:
        return f"<Attempt {self.directory.path} {list(self.steps.values())}>"

    @property
    def directory(self) -> AttemptDir:
        """Locate the attempt's files."""
        return self.journal.directory

    def end(self, cause: Cause) -> None:
        """Report a cause of the end. The first one is kept; a later one is only noted."""
        first = not self.ended.done()
        self.journal.event("end_cause" if first else "later_cause", trigger=cause.trigger, reason=cause.reason)
        if first:
            self.ended.set_result(cause)

    def lose(self, failure: HealthFailure, node: str | None = None) -> None:
        """Report the loss of a required service on `node`, while losses count."""
        if not self.watching:
            return
        self.losses.append((failure, node))
        self.end(Cause(Trigger.SERVICE_LOST, describe_failure(failure), failure=failure))

    def launch(self, spec: StepSpec, feed: Feed | None = None) -> Step:
        """Start a step; what its end means is decided when it ends. Raises StepError, KeyError."""
        step = self.site.start(spec, self.services.nodes, feed)
        self.steps[spec.name] = step
        self.journal.event("step_started", spec.name, node=spec.node)
        step.exited.add_done_callback(lambda exited: self._exited(step, exited.result()))
        return step

    def save_services(self, services: Services) -> None:
        """Write services.json and use it from now on."""
        write_json(services_path(self.directory), services)
        self.services = services

    def of(self, *roles: Role) -> list[Step]:
        """List the started steps of these roles that still run."""
        return [step for step in self.steps.values() if step.spec.role in roles and step.alive]

    def side_port(self, step: Step) -> str | None:
        """Give the side port of an endpoint; None while it is not known."""
        found: Iterable[str] = (one.metrics for one in self.services.endpoints if one.name == step.name)
        return next(iter(found), None)

    def health(self) -> HealthRecord | None:
        """Read the monitor's latest snapshot; a broken file is no evidence."""
        try:
            return read_health(self.directory.path)
        except StateError as error:
            self.journal.event("health_unreadable", reason=str(error))
            return None

    async def view(self, node: str | None) -> JobView | None:
        """Ask what the site does to the attempt; None as well when it cannot be asked, which an event tells."""
        try:
            return await self.site.view(node)
        except SiteError as error:
            self.journal.event("site_silent", reason=str(error))
            return None

    def note(self) -> Note:
        """Give the observer that turns signals into events."""

        def noted(signal_name: str, step: Step, refusal: Refusal | None) -> None:
            if refusal is None:
                self.journal.event("signal_sent", step.name, signal=signal_name)
            else:
                self.journal.event("signal_not_sent", step.name, signal=signal_name, reason=refusal.reason)

        return noted

    def _exited(self, step: Step, code: int) -> None:
        self.journal.event("step_exited", step.name, exit_code=code)
        spec = step.spec
        if spec.role is Role.PREFLIGHT or (step.stopping and spec.role is not Role.CLIENT):
            return
        if spec.role is Role.CLIENT:
            if not self.ended.done():
                reason = f"the client {describe_exit(code)}" + (f"; see {self._log(step)}" if code else "")
                self.end(Cause(Trigger.CLIENT_EXITED, reason, exit_code=code))
        elif self.journal.readiness.state in (ReadinessState.PENDING, ReadinessState.STARTING):
            reason = f"{step.name} {describe_exit(code)} before the attempt was ready; see {self._log(step)}"
            self.end(Cause(Trigger.STARTUP_FAILED, reason))
        else:
            self.lose(self._loss(step, code), spec.node)

    def _loss(self, step: Step, code: int) -> HealthFailure:
        backend = self.side_port(step) if step.spec.role is Role.ENDPOINT else step.spec.backend
        reason = f"{step.name} {describe_exit(code)} on {step.spec.node}; see {self._log(step)}"
        return HealthFailure(utc_now(), step.spec.deployment, backend, "launcher", reason)

    def _log(self, step: Step) -> str:
        return f"logs/{step.name}.err"
