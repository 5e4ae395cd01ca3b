"""Who a step is: the record that `dd-proxy exec` leaves before it becomes the step's command.

Owns that record, its writing and the check that a step found in Slurm is still the one recorded. Refuses to signal
anything: whoever signals asks `mismatch` first, because a requeue keeps the job id and counts steps from 0 again.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runtime.parse import JobInfo, StepInfo
from runtime.state import SCHEMA_VERSION, read_record, utc_now, write_json

_PR_SET_PDEATHSIG = 1
_NOT_EXECUTABLE, _NOT_FOUND = 126, 127  # exit codes as shells give them
_ROLES = (
    (re.compile(r".+-replica-\d+"), "replica"),
    (re.compile(r".+-endpoint"), "endpoint"),
    (re.compile(r"monitor|client"), ""),
)


@dataclass(frozen=True, slots=True)
class StepIdentity:
    """steps/NAME.json. `job_id` and `step_id` are None for a local step."""

    name: str
    role: str
    job_id: str | None
    restart_count: int
    step_id: str | None
    node: str
    pid: int
    recorded_at: str
    schema_version: int = SCHEMA_VERSION


def role_of(name: str) -> str:
    """Tell a step's role by its name: replica, endpoint, monitor or client. Raises ValueError for another name."""
    for pattern, role in _ROLES:
        if pattern.fullmatch(name):
            return role or name
    raise ValueError(f"{name!r} is not a step name: DEPLOYMENT-replica-I, DEPLOYMENT-endpoint, monitor or client")


def current_identity(name: str, environment: Mapping[str, str], *, local: bool) -> StepIdentity:
    """Describe this process as the step `name`. A local step has no job, even inside somebody's allocation."""
    return StepIdentity(
        name=name,
        role=role_of(name),
        job_id=None if local else environment.get("SLURM_JOB_ID"),
        restart_count=0 if local else int(environment.get("SLURM_RESTART_COUNT", "0")),
        step_id=None if local else environment.get("SLURM_STEP_ID"),
        node=os.uname().nodename if local else environment.get("SLURMD_NODENAME", os.uname().nodename),
        pid=os.getpid(),
        recorded_at=utc_now(),
    )


def read_identity(path: Path) -> StepIdentity | None:
    """Read a step's identity; None when it was not recorded yet. Raises StateError."""
    return read_record(path, StepIdentity)


def mismatch(identity: StepIdentity, job: JobInfo, step: StepInfo) -> str | None:
    """Say why a recorded step is not the one that Slurm shows; None when job, restart, step, name and node agree."""
    expected = f"{identity.job_id}.{identity.step_id}"
    differences = (
        ("job id", identity.job_id, job.job_id),
        ("restart count", identity.restart_count, job.restarts),
        ("step id", expected, step.step_id),
        ("step name", identity.name, step.name),
        ("node", identity.node, step.node_list),
    )
    for what, recorded, shown in differences:
        if recorded != shown:
            return f"the {what} of {identity.name} was recorded as {recorded}, Slurm shows {shown}"
    return None


def become(identity_file: Path, command: Sequence[str], parent: int | None) -> int:
    """Record this step's identity, then become `command`: same pid, its exit code. Returns only when that fails.

    With `parent` the step is a local one and is killed with that process, as Slurm does with steps of a dead job; when
    it is gone already nothing is started.
    """
    if parent is not None:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the call above
            return _fail(1, f"process {parent} is gone")
    try:
        identity = current_identity(identity_file.stem, os.environ, local=parent is not None)
        write_json(identity_file, identity)
    except ValueError as error:
        return _fail(2, str(error))
    except OSError as error:
        return _fail(1, f"cannot write {identity_file}: {error.strerror}")
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and a new program would inherit that
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], list(command))
    except FileNotFoundError:
        return _fail(_NOT_FOUND, f"{command[0]}: command not found")
    except OSError as error:
        return _fail(_NOT_EXECUTABLE, f"{command[0]} cannot be run: {error.strerror}")


def _fail(code: int, reason: str) -> int:
    print(f"dd-proxy exec: {reason}", file=sys.stderr)
    return code
