"""What the controller needs from the place where an attempt runs: Slurm, or this machine.

Owns the interface and the two ways to stop a step that both have in common. Refuses to know plans and verdicts.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from runtime.launcher import Feed, Step
from runtime.services import Node
from runtime.state import JobRef
from runtime.steps import StepSpec
from runtime.verdict import JobView

LAUNCHER_EXIT_S = 3.0


class SiteError(Exception):
    """The site cannot do what was asked. The text is one line for a person."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a TERM was not sent. `site_stops`: the site is stopping the step itself, so that it is worth waiting."""

    reason: str
    site_stops: bool = False


Note = Callable[[str, Step, Refusal | None], None]


class Site(Protocol):
    """The place of an attempt. Every method is bounded in time and safe to call again."""

    @property
    def job(self) -> JobRef | None:
        """Give the Slurm job; None locally."""

    @property
    def host(self) -> str:
        """Name the machine that the controller runs on."""

    async def nodes(self) -> tuple[Node, ...]:
        """List the nodes, the head first. Raises SiteError."""

    async def time_left_s(self) -> float | None:
        """Tell how long the site lets this attempt run; None when it does not say. Raises SiteError."""

    async def kill_wait_s(self) -> float | None:
        """Tell how long after its TERM the site sends KILL; None when it does not. Raises SiteError."""

    def start(self, spec: StepSpec, nodes: tuple[Node, ...], feed: Feed | None) -> Step:
        """Start a step. Never suspends. Raises StepError, KeyError for a missing variable."""

    async def term(self, step: Step) -> Refusal | None:
        """Send TERM to the step's task itself, once its identity is sure; None, or why it was not sent."""

    def force(self, step: Step) -> None:
        """Kill the step's task."""

    async def view(self, node: str | None) -> JobView | None:
        """Ask what the site is doing to the attempt, and to `node`; None: nothing to ask. Raises SiteError."""

    async def close(self) -> None:
        """Give back what the site holds."""


async def term_step(site: Site, step: Step, note: Note) -> Refusal | None:
    """Tell a step to end, once. `note` hears the signal, and why it was not sent; then it may be tried again."""
    if not step.alive or step.stopping:
        return None
    step.stopping = True
    refusal = await site.term(step)
    step.stopping = refusal is None or refusal.site_stops
    note("TERM", step, refusal)
    return refusal


async def stop_step(site: Site, step: Step, note: Note) -> None:
    """Stop a step: TERM, its stop timeout, then force. What could not be told to end is not waited for."""
    refusal = await term_step(site, step, note)
    hopeless = refusal is not None and not refusal.site_stops
    if hopeless or not await step.wait(step.spec.stop_timeout_s):
        await force_step(site, step, note)


async def force_step(site: Site, step: Step, note: Note) -> None:
    """Kill a step, and its launcher too when it does not follow."""
    if not step.alive:
        return
    step.stopping = True
    site.force(step)
    note("KILL", step, None)
    if not await step.wait(LAUNCHER_EXIT_S):
        with suppress(ProcessLookupError):
            step.process.send_signal(signal.SIGKILL)
        await step.wait(LAUNCHER_EXIT_S)
