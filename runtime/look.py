"""One look at a run from outside: its records on disk, what Slurm says, and whether its controller lives.

Owns that judgement for `status` and `cancel`. Writes nothing.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from runtime import slurm
from runtime.identity import StepIdentity, read_identity
from runtime.layout import AttemptDir, LayoutError, find_attempts
from runtime.parse import JobInfo
from runtime.slurm import SlurmError
from runtime.state import (
    AttemptRecord,
    AttemptState,
    ControllerRef,
    ReadinessRecord,
    read_attempt,
    read_readiness,
)

# While a job is in one of these its batch process, the controller, may live. Everything else is before or after.
_BATCH_MAY_LIVE = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"})
# A job in one of these may still run or run again; in every other one Slurm is done with it.
NOT_ENDED = _BATCH_MAY_LIVE | {
    *("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD", "REVOKED")
}
_CLOCK_SLACK_S = 2.0  # boot time in /proc/stat is a whole second


@dataclass(frozen=True, slots=True)
class AttemptView:
    """One attempt as seen from outside.

    `job` is what Slurm says of the start that this attempt was made for; `later_start` is what it says when the job was
    requeued since and waits for, or runs, another attempt.
    `alive` tells whether the controller lives, None when nobody can say; `trouble` then says why.
    """

    directory: AttemptDir
    attempt: AttemptRecord
    readiness: ReadinessRecord | None
    steps: tuple[StepIdentity, ...]
    job: JobInfo | None
    later_start: JobInfo | None
    alive: bool | None
    trouble: str | None

    @property
    def orphaned(self) -> bool:
        """Tell whether nobody runs the attempt any more, although its state is not terminal."""
        if self.attempt.state is AttemptState.RUNNING:
            return self.alive is False
        return self.never_started

    @property
    def never_started(self) -> bool:
        """Tell whether Slurm is done with the job before a controller took over."""
        waiting = self.attempt.state in (AttemptState.CREATED, AttemptState.SUBMITTED)
        return waiting and self.job is not None and self.job.state not in NOT_ENDED


def look(directory: Path) -> list[AttemptView]:
    """Look at every attempt of a run or attempt directory, oldest first. Raises LayoutError, StateError.

    One that a requeued job is only just making, or was killed while it made it, is left out.
    """
    first, *later = find_attempts(directory)
    return [look_at(attempt) for attempt in (first, *(one for one in later if one.attempt_json.exists()))]


def look_at(directory: AttemptDir) -> AttemptView:
    """Look at one attempt. Raises LayoutError when it has no state, StateError when that is broken."""
    record = read_attempt(directory.path)
    if record is None:
        raise LayoutError(f"{directory.attempt_json} is missing: this attempt was never opened")
    found, trouble = _ask_slurm(record)
    mine = found is not None and record.job is not None and found.restarts == record.job.restart_count
    job, later_start = (found, None) if mine else (None, found)
    return AttemptView(
        directory=directory,
        attempt=record,
        readiness=read_readiness(directory.path),
        steps=_steps(directory),
        job=job,
        later_start=later_start,
        alive=None if trouble else _is_alive(record, job),
        trouble=trouble,
    )


def _ask_slurm(record: AttemptRecord) -> tuple[JobInfo | None, str | None]:
    if record.job is None:
        return None, None
    try:
        return slurm.show_job(record.job.id), None
    except SlurmError as error:  # an attempt that has ended needs no Slurm
        return None, None if record.state.terminal else str(error)


def _is_alive(record: AttemptRecord, job: JobInfo | None) -> bool | None:
    if record.state is not AttemptState.RUNNING or record.controller is None:
        return False
    if record.job is not None:
        return job is not None and job.state in _BATCH_MAY_LIVE
    if record.controller.host != os.uname().nodename:
        return None
    return local_controller_lives(record.controller, record.created_at)


def local_controller_lives(controller: ControllerRef, created_at: str) -> bool:
    """Tell whether a process of this machine is still the controller that made an attempt.

    A controller is older than its attempt; a process that was given its number later is not.
    """
    try:
        fields = Path(f"/proc/{controller.pid}/stat").read_text().rpartition(")")[2].split()
        boot = next(
            int(line.split()[1]) for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime ")
        )
    except (FileNotFoundError, ProcessLookupError):  # the latter when it ends while it is read
        return False
    state, start_ticks = fields[0], int(fields[19])
    started = boot + start_ticks / os.sysconf("SC_CLK_TCK")
    created = datetime.fromisoformat(created_at).timestamp()
    return state != "Z" and started <= created + _CLOCK_SLACK_S


def _steps(directory: AttemptDir) -> tuple[StepIdentity, ...]:
    found = (read_identity(path) for path in directory.steps.glob("[!.]*.json"))
    return tuple(sorted((one for one in found if one is not None), key=lambda one: _natural(one.name)))


def _natural(name: str) -> tuple[str, int]:
    """Sort replica 10 after replica 9."""
    stem, _, number = name.rpartition("-")
    return (stem, int(number)) if number.isdecimal() else (name, -1)
