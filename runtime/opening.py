"""Which attempt a controller runs, and what becomes of the ones before it.

Owns the opening of an attempt after a requeue, beside the one that it follows, and the closing of attempts that their
controller left open. Refuses to know how an attempt is run. Nothing of an earlier attempt is ever signalled: its steps
died with its allocation.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace

from runtime.layout import AttemptDir, find_attempts, write_private
from runtime.plan import Plan, detach_env
from runtime.services import read_services
from runtime.state import (
    AttemptRecord,
    AttemptState,
    Classification,
    JobRef,
    StateError,
    new_attempt,
    new_readiness,
    read_attempt,
    read_readiness,
    write_json,
)
from runtime.submit import open_run


class OpeningError(Exception):
    """There is no attempt to run. The text is one line for a person."""


class AlreadyWon(Exception):
    """An earlier attempt of this run has published its winner; nothing is left to do."""


LostNodes = Callable[[tuple[str, ...]], tuple[str, ...]]


def open_local(plan: Plan) -> tuple[AttemptDir, Plan, dict[str, str]]:
    """Create a run with its first attempt for this machine.

    Returns the attempt, the plan as its file holds it, and the literal values of its `env` tables, which no file holds.
    Raises LayoutError, OSError.
    """
    attempt = open_run(plan)
    detached, values = detach_env(plan)
    write_json(attempt.attempt_json, new_attempt(attempt.run, attempt.number, None))
    return attempt, detached, values


def open_slurm(given: AttemptDir, job: JobRef, lost_nodes: LostNodes) -> tuple[AttemptDir, AttemptRecord]:
    """Find or create the attempt of this start of the job, and close the ones that were left open before it.

    Raises OpeningError when the attempt has ended already or belongs to another job, AlreadyWon, StateError.
    """
    attempts = find_attempts(given.path)
    for earlier in attempts:
        record = read_attempt(earlier.path)
        if record is None or not _before(record, job):
            continue
        if not record.state.terminal:
            close_left_open(earlier, record, lost_nodes)
        elif record.state is AttemptState.SUCCEEDED:  # the requeue came between its verdict and its exit
            raise AlreadyWon(f"{earlier.path} has succeeded already")
    if len(attempts) > 1 and not attempts[-1].attempt_json.exists():  # whoever made it was killed before it was whole
        shutil.rmtree(attempts.pop().path)
    last = attempts[-1]
    record = read_attempt(last.path)
    if record is None or record.state in (AttemptState.CREATED, AttemptState.SUBMITTED):
        record = record or new_attempt(last.run, last.number, job)
        if record.job is not None and record.job.id != job.id:
            raise OpeningError(f"{last.path} belongs to job {record.job.id}, this is job {job.id}")
        return last, replace(record, job=job)
    if record.job is None or record.job.id != job.id:
        raise OpeningError(
            f"{last.path} belongs to {'another job' if record.job else 'a local run'}, this is job {job.id}"
        )
    if record.job.restart_count >= job.restart_count:
        raise OpeningError(f"{last.path} is {record.state} already: submit the plan again for a new run")
    following = last.following()
    following.create()
    for path in (last.plan_json, last.script):
        if path.exists():
            write_private(following.path / path.name, path.read_text(encoding="utf-8"))
    fresh = new_attempt(following.run, following.number, job)
    write_json(following.attempt_json, fresh)
    return following, fresh


def _before(record: AttemptRecord, job: JobRef) -> bool:
    # `submit` cannot know the restart count; what never ran before a requeue belongs to the first start.
    started = 0 if record.job is None else record.job.restart_count
    return started < job.restart_count


def close_left_open(attempt: AttemptDir, record: AttemptRecord, lost_nodes: LostNodes) -> None:
    """Close an attempt whose allocation is gone: `node_lost` when one of its nodes is, else `preempted`.

    Raises AlreadyWon when it had published its winner and died before it could say so: then it is closed as succeeded.
    """
    if close_as_won(attempt, record):
        raise AlreadyWon(f"{attempt.path} has published its winner already")
    try:
        nodes = tuple(node.name for node in read_services(attempt).nodes)
    except StateError:
        nodes = ()
    lost = lost_nodes(nodes) if nodes else ()
    if lost:
        ended = record.end(Classification.NODE_LOST, f"node {', '.join(lost)} was lost and Slurm requeued the job")
    else:
        ended = record.end(Classification.PREEMPTED, "Slurm requeued the job before the attempt had ended")
    stop_readiness(attempt)
    write_json(attempt.attempt_json, ended)


def stop_readiness(attempt: AttemptDir) -> None:
    """Say in readiness.json of an attempt without a controller that nothing serves any more. Raises StateError."""
    readiness = read_readiness(attempt.path)
    if readiness is not None and (stopped := readiness.stop()) is not readiness:
        write_json(attempt.readiness_json, stopped)


def close_as_won(attempt: AttemptDir, record: AttemptRecord) -> bool:
    """Close an attempt whose controller published the winner and died before it could say so; tell whether it did."""
    if record.state is not AttemptState.RUNNING or not attempt.winner_json.exists():
        return False
    stop_readiness(attempt)
    write_json(attempt.attempt_json, record.end(Classification.SUCCEEDED, None))
    return True


def fresh_readiness(plan: Plan, attempt: AttemptDir) -> None:
    """Write revision 1 of an attempt's readiness, unless `submit` did."""
    if read_readiness(attempt.path) is None:
        write_json(attempt.readiness_json, new_readiness({one.name: one.replicas for one in plan.deployments}))
