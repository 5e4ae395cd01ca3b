"""From what happened to what it is called: causes, Slurm's own view of an end, the classification and the exit code.

Pure: facts in, verdict out. Refuses to know processes, files and time. The rules:

- The first cause is kept; nothing that follows it hides it.
- An end that the controller did not cause is named after what Slurm says about the job, when Slurm has a say in it.
- A client that exited 0 has only succeeded with every output there and no health failure ever recorded.
"""

from __future__ import annotations

import enum
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace

from runtime.state import Classification, HealthFailure


class Trigger(enum.StrEnum):
    """What ended an attempt, as the controller saw it."""

    CLIENT_EXITED = "client_exited"
    STARTUP_FAILED = "startup_failed"
    SERVICE_LOST = "service_lost"
    SIGNALLED = "signalled"
    TIME_LIMIT = "time_limit"
    INTERNAL_ERROR = "internal_error"


@dataclass(frozen=True, slots=True)
class Cause:
    """The first thing that ended an attempt. `named` is what Slurm made of it, None while it has not been asked."""

    trigger: Trigger
    reason: str
    exit_code: int | None = None
    signal: int | None = None
    failure: HealthFailure | None = None
    named: Classification | None = None


@dataclass(frozen=True, slots=True)
class JobView:
    """What `scontrol` says about our job. `lost_nodes` are nodes of the allocation that are down or do not respond."""

    completing: bool
    requeued: bool
    preempting: bool
    node_down: bool
    out_of_time: bool
    lost_nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything the verdict needs: the cause, what was recorded about health and what is wrong with the outputs."""

    cause: Cause
    health_failure: HealthFailure | None = None
    output_problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """How an attempt ended. `exit_code` is that of `run`."""

    classification: Classification
    reason: str | None
    exit_code: int


_OWN_NAME: Mapping[Trigger, Classification] = {
    Trigger.STARTUP_FAILED: Classification.STARTUP_FAILED,
    Trigger.SERVICE_LOST: Classification.SERVICE_LOST,
    Trigger.SIGNALLED: Classification.CANCELLED,
    Trigger.TIME_LIMIT: Classification.TIMED_OUT,
    Trigger.INTERNAL_ERROR: Classification.INTERNAL_ERROR,
}
# Ends that Slurm may have caused: it signals steps and batch process in no order that could be relied on.
ASK_SLURM = frozenset({Trigger.CLIENT_EXITED, Trigger.STARTUP_FAILED, Trigger.SERVICE_LOST, Trigger.SIGNALLED})
# From here on services stop because they were told to: their probes and deaths say nothing.
ORDERED = frozenset({Classification.CANCELLED, Classification.TIMED_OUT, Classification.PREEMPTED})


def slurm_name(view: JobView) -> tuple[Classification, str] | None:
    """Name an end after what Slurm did to the job, with a reason; None when Slurm did nothing.

    A requeue after a node was lost looks like a preemption but for the node's state.
    """
    nodes = ", ".join(view.lost_nodes)
    if view.lost_nodes or view.node_down:
        return Classification.NODE_LOST, f"node {nodes} was lost" if nodes else "Slurm lost a node of the job"
    if view.requeued:
        return Classification.PREEMPTED, "Slurm requeued the job"
    if view.preempting:
        return Classification.PREEMPTED, "Slurm preempts the job"
    if view.completing and view.out_of_time:
        return Classification.TIMED_OUT, "the job reached its time limit"
    if view.completing:
        return Classification.CANCELLED, "the Slurm job was cancelled"
    return None


def needs_slurm(cause: Cause) -> bool:
    """Tell whether Slurm must be asked before this cause is named.

    Even a client that exited 0 may only have obeyed Slurm's TERM; were that a success, a requeued job would run twice.
    """
    return cause.trigger in ASK_SLURM


def name_cause(cause: Cause, view: JobView | None) -> Cause:
    """Give the cause with its classification; None for a client that exited 0, which later facts decide."""
    found = slurm_name(view) if view is not None and needs_slurm(cause) else None
    if found is not None:
        name, reason = found
        return replace(
            cause,
            named=name,
            reason=reason if cause.trigger is Trigger.SIGNALLED else f"{reason} (first sign: {cause.reason})",
        )
    if cause.trigger is Trigger.CLIENT_EXITED:
        return replace(cause, named=None if cause.exit_code == 0 else Classification.CLIENT_FAILED)
    return replace(cause, named=_OWN_NAME[cause.trigger])


def judge(facts: Facts) -> Verdict:
    """Decide how the attempt ended. `facts.cause` must have been named."""
    cause = facts.cause
    if cause.named is not None:
        return Verdict(cause.named, cause.reason, _exit_code(cause))
    if facts.output_problems:
        return Verdict(Classification.OUTPUT_MISMATCH, "; ".join(facts.output_problems), 1)
    if facts.health_failure is not None:
        return Verdict(Classification.SERVICE_LOST, describe_failure(facts.health_failure), 1)
    return Verdict(Classification.SUCCEEDED, None, 0)


def describe_failure(failure: HealthFailure) -> str:
    """Say for a person what was lost."""
    what = "the monitor" if failure.deployment is None else failure.deployment
    where = f" ({failure.backend})" if failure.backend else ""
    return f"{what}{where}: {failure.reason}"


def describe_exit(code: int) -> str:
    """Say for a person how a process or step ended; -N and 128 + N are signals."""
    number = -code if code < 0 else code - 128
    try:
        return f"was killed by {signal.Signals(number).name}" if number > 0 else f"exited with {code}"
    except ValueError:
        return f"exited with {code}"


def _exit_code(cause: Cause) -> int:
    if cause.named is Classification.CANCELLED:
        return 128 + (cause.signal or signal.SIGTERM)
    return 1
