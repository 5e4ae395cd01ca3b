"""Ending a run from outside, in order.

Owns the question who can end it: Slurm while the job is pending, its controller while that lives, and this command when
the controller is gone. Waits for the end and reports it. Looks at files and asks Slurm again and again, because nothing
sends this process an event: the controller may live on another machine.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from runtime import slurm
from runtime.budget import drain_budget
from runtime.layout import AttemptDir, find_attempts
from runtime.look import NOT_ENDED, AttemptView, local_controller_lives, look_at
from runtime.opening import close_as_won, stop_readiness
from runtime.parse import JobInfo
from runtime.planfile import read_resolved
from runtime.slurm import Failure, SlurmError
from runtime.state import (
    AttemptRecord,
    AttemptState,
    Classification,
    IllegalMove,
    read_attempt,
    write_json,
)

_LOOK_S = 0.2
_SILENCES = 10  # of Slurm, each followed by another look
_ASK_SLURM_S = 1.0
_SETTLE_S = 3.0  # for the last write of a controller that just ended to be seen here, on a shared file system
_NEXT_ATTEMPT_S = 10.0  # for the controller of a requeued job to open its attempt
_MARGIN_S = 30.0  # beyond the drain budget: Slurm's own delays, a slow file system


class CancelError(Exception):
    """The run did not end as asked. The text is one line for a person."""


def main_cancel(directory: Path) -> int:
    """End the last attempt of a run and say how it ended. Raises LayoutError, StateError."""
    try:
        print(cancel(directory))
    except (CancelError, SlurmError) as error:
        print(f"dd-proxy cancel: {error}", file=sys.stderr)
        return 1
    return 0


def cancel(directory: Path) -> str:
    """End the last attempt of a run in order, wait for it, and say how it ended.

    Raises CancelError when it did not end so, SlurmError when Slurm cannot be asked, LayoutError, StateError.
    """
    view = _latest(directory)
    if view.attempt.state.terminal:
        return _cancel_ended(view)
    if view.attempt.job is None:
        return _cancel_local(view)
    return _cancel_job(view, view.attempt.job.id)


def _latest(directory: Path) -> AttemptView:
    """Look at the last attempt; while a requeued job opens the next one, wait for that."""
    deadline = time.monotonic() + _NEXT_ATTEMPT_S
    while True:
        first, *later = find_attempts(directory)
        opened = [attempt for attempt in later if attempt.attempt_json.exists()]
        view = look_at([first, *opened][-1])
        if not _is_being_followed(view) or time.monotonic() > deadline:
            return view
        time.sleep(_LOOK_S)


def _is_being_followed(view: AttemptView) -> bool:
    return view.later_start is not None and view.later_start.state == "RUNNING"


def _cancel_ended(view: AttemptView) -> str:
    """Report an attempt that had ended; its job may wait for, or already be starting, another one."""
    text = f"{_name(view)} had ended already: {_outcome(view.attempt)}"
    job = view.later_start or _later_start(view)
    if job is None or job.state not in NOT_ENDED:
        return text
    slurm.cancel_job(job.job_id)
    _wait_for_job(job.job_id, _budget_s(view.directory))
    return f"{text}; job {job.job_id}, requeued for another attempt, was cancelled"


def _later_start(view: AttemptView) -> JobInfo | None:
    """Ask for a later start of the job of an attempt that has ended, of which nothing is known. Raises SlurmError."""
    if view.job is not None or view.attempt.job is None:
        return None
    try:
        job = slurm.show_job(view.attempt.job.id)
    except SlurmError as error:
        if error.failure is Failure.MISSING:  # a run directory may be looked at where there is no Slurm
            return None
        raise
    return job if job is not None and job.restarts != view.attempt.job.restart_count else None


def _cancel_local(view: AttemptView) -> str:
    controller = view.attempt.controller
    if controller is not None and controller.host != os.uname().nodename:
        raise CancelError(f"{_name(view)} runs on {controller.host}: cancel it there")
    created_at = view.attempt.created_at
    if controller is None or not local_controller_lives(controller, created_at):
        return _close_orphan(view)
    with suppress(ProcessLookupError):  # it ended meanwhile
        os.kill(controller.pid, signal.SIGTERM)
    record = _wait_for_end(view, lambda: not local_controller_lives(controller, created_at), settle_s=0.0)
    return _report(view, record) if record else _close_orphan(view)


def _cancel_job(view: AttemptView, job_id: str) -> str:
    view = _answered(view)
    # A start that never had a controller, because a prolog failed, say, leaves its attempt to the next start.
    job = view.job or (view.later_start if view.attempt.controller is None else None)
    if job is None or job.state not in NOT_ENDED:
        if job is not None and job.state == "CANCELLED" and view.attempt.controller is None:
            return _close_unstarted(view)
        return _close_orphan(view)
    if job.state in ("PENDING", "CONFIGURING"):
        slurm.cancel_job(job_id)  # should it start at this very moment, its controller hears of it and ends in order
    else:
        try:
            slurm.signal_batch(job_id, "TERM")
        except SlurmError as error:
            if error.failure is not Failure.NOT_FOUND:
                raise  # a completing job is "not found": Slurm has told its controller to stop already
    record = _wait_for_end(view, lambda: _job_is_over(view))
    if record is not None:
        return _report(view, record)
    return _close_unstarted(view) if _reread(view.directory).controller is None else _close_orphan(view)


def _answered(view: AttemptView) -> AttemptView:
    """Look again while Slurm does not say what the job does: its silence is not the end of a controller.

    Raises CancelError when it goes on being silent.
    """
    for _ in range(_SILENCES):
        if view.trouble is None:
            return view
        time.sleep(_LOOK_S)
        view = look_at(view.directory)
    if view.trouble is not None:
        raise CancelError(f"{_name(view)} was not told to stop: {view.trouble}; try again")
    return view


def _close_unstarted(view: AttemptView) -> str:
    """Close an attempt that was cancelled before it had a controller."""
    _close(view.directory, Classification.CANCELLED, "cancelled before its controller started")
    return f"{_name(view)} was cancelled before it started"


def _close_orphan(view: AttemptView) -> str:
    """Close an attempt whose controller cannot do it any more; its job goes first.

    Raises CancelError to say so; returns only when the attempt turns out to have been closed at the last moment.
    """
    record = _reread(view.directory)
    if record.state.terminal:
        return _report(view, record)
    why = "its controller is gone"
    if record.job is not None:
        job = slurm.show_job(record.job.id)
        if job is not None and job.state in NOT_ENDED:
            slurm.cancel_job(record.job.id)
            _wait_for_job(record.job.id, _budget_s(view.directory))
            why += f"; job {record.job.id} was cancelled"
    record = _reread(view.directory)
    if close_as_won(view.directory, record):
        return _report(view, _reread(view.directory))
    with suppress(IllegalMove):  # the next attempt may have closed it meanwhile
        _close(view.directory, Classification.INTERNAL_ERROR, why)
    record = _reread(view.directory)
    closed = f"{record.state} ({record.classification})" if record.reason == why else _outcome(record)
    raise CancelError(f"{_name(view)}: {why}; it is closed as {closed}")


def _close(directory: AttemptDir, classification: Classification, reason: str) -> None:
    stop_readiness(directory)
    write_json(directory.attempt_json, _reread(directory).end(classification, reason))


def _wait_for_end(view: AttemptView, is_over: Callable[[], bool], settle_s: float = _SETTLE_S) -> AttemptRecord | None:
    """Wait until the attempt is terminal and return it; None when what runs it ended and left it open."""
    directory = view.directory
    deadline = time.monotonic() + _budget_s(directory)
    next_question = time.monotonic()
    settle: float | None = None
    while time.monotonic() < deadline:
        record = _reread(directory)
        if record.state.terminal:
            return record
        now = time.monotonic()
        if settle is None and now >= next_question:
            next_question = now + _ASK_SLURM_S
            if is_over():
                settle = now + settle_s
        if settle is not None and now >= settle:
            record = _reread(directory)
            return record if record.state.terminal else None
        time.sleep(_LOOK_S)
    raise CancelError(f"{_name(view)} was asked to stop and has not ended within {_budget_s(directory):.0f} s")


def _job_is_over(view: AttemptView) -> bool:
    """Ask whether Slurm is done with the job as far as it was this attempt's; no answer is no end."""
    reference = view.attempt.job
    try:
        job = slurm.show_job(reference.id) if reference is not None else None
    except SlurmError:
        return False
    if job is None or reference is None:
        return True
    return job.state not in NOT_ENDED or job.restarts != reference.restart_count


def _wait_for_job(job_id: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        job = slurm.show_job(job_id)
        if job is None or job.state not in NOT_ENDED:
            return
        time.sleep(_ASK_SLURM_S)
    raise CancelError(f"job {job_id} was cancelled and has not ended within {timeout_s:.0f} s")


def _budget_s(directory: AttemptDir) -> float:
    first = find_attempts(directory.run_dir)[0]  # attempts of a run share one plan
    return drain_budget(read_resolved(first)).total_s + _MARGIN_S


def _reread(directory: AttemptDir) -> AttemptRecord:
    record = read_attempt(directory.path)
    if record is None:
        raise CancelError(f"{directory.attempt_json} is gone")
    return record


def _report(view: AttemptView, record: AttemptRecord) -> str:
    if record.state is AttemptState.CANCELLED:
        return f"{_name(view)} was cancelled"
    return f"{_name(view)} ended by itself meanwhile: {_outcome(record)}"


def _outcome(record: AttemptRecord) -> str:
    if record.classification is None:
        return record.state
    reason = f": {record.reason}" if record.reason else ""
    same = record.classification.value == record.state.value
    return f"{record.state}{reason}" if same else f"{record.state} ({record.classification}){reason}"


def _name(view: AttemptView) -> str:
    return f"attempt {view.attempt.attempt} of {view.attempt.run}"
