"""The one module that runs Slurm's commands.

Owns their argument vectors, their timeouts and the meaning of their failures. Refuses to know attempts and steps beyond
their ids. Every function is synchronous; a caller with an event loop uses a thread. All raise SlurmError.
"""

from __future__ import annotations

import enum
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from runtime import parse
from runtime.parse import JobInfo, NodeInfo, ParseError, StepInfo

QUERY_TIMEOUT_S = 15.0
SUBMIT_TIMEOUT_S = 120.0

# Set by the surrounding job, or defaults that outrank the directives. A job submitted with them would run on the
# plan of another: SLURM_RESTART_COUNT of a requeued job, say, would be taken for its own.
_KEPT_SLURM = frozenset({"SLURM_CONF", "SLURM_CLUSTERS", "SLURM_MPI_TYPE", "SLURM_JWT"})
_PLANNED_SBATCH = frozenset({
    "SBATCH_ARRAY_INX", "SBATCH_CPUS_PER_GPU", "SBATCH_CPUS_PER_TASK", "SBATCH_EXPORT", "SBATCH_GPUS",
    "SBATCH_GPUS_PER_NODE", "SBATCH_GPUS_PER_TASK", "SBATCH_GRES", "SBATCH_JOB_NAME", "SBATCH_MEM_PER_CPU",
    "SBATCH_MEM_PER_GPU", "SBATCH_MEM_PER_NODE", "SBATCH_NO_REQUEUE", "SBATCH_OPEN_MODE", "SBATCH_OUTPUT",
    "SBATCH_ERROR", "SBATCH_REQUEUE", "SBATCH_SIGNAL", "SBATCH_TIMELIMIT", "SBATCH_WAIT",
})  # fmt: skip

_Parsed = TypeVar("_Parsed")


class Failure(enum.Enum):
    """Why a Slurm command did not do what it was asked for."""

    MISSING = "missing"  # the program is not installed
    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"  # the controller daemon does not answer: worth another try
    NOT_FOUND = "not_found"  # no such job, step or node, or one that is ending already
    REFUSED = "refused"  # any other failure, with Slurm's own words
    UNREADABLE = "unreadable"  # it ran, but printed something else


class SlurmError(Exception):
    """A Slurm command failed. The text is one line for a person; `failure` says what kind it is."""

    def __init__(self, failure: Failure, text: str) -> None:
        super().__init__(text)
        self.failure = failure


def hostnames(node_list: str) -> tuple[str, ...]:
    """Expand a node list ("node[1-3]") to names, in order."""
    return _read(["scontrol", "show", "hostnames", node_list], parse.parse_hostnames)


def show_job(job_id: str) -> JobInfo | None:
    """Look a job up; None when Slurm does not know it (any more: finished jobs are forgotten after MinJobAge)."""
    return _read_known(["scontrol", "-o", "show", "job", job_id], parse.parse_job)


def show_step(step_id: str) -> StepInfo | None:
    """Look the step JOB.STEP up; None when there is no such step (any more)."""
    return _read_known(["scontrol", "-o", "show", "step", step_id], parse.parse_step)


def show_nodes(names: Sequence[str]) -> dict[str, NodeInfo]:
    """Look nodes up, by name."""
    return _read(["scontrol", "-o", "show", "node", ",".join(names)], parse.parse_nodes)


def config_kill_wait() -> float:
    """Tell the site's KillWait: the seconds from TERM to KILL."""
    return _read(["scontrol", "show", "config"], parse.parse_kill_wait)


def signal_step(job_id: str, step: str, signal: str) -> None:
    """Signal every task of one step. A step that is gone from a live job is no error."""
    _run(["scancel", f"--signal={signal}", f"{job_id}.{step}"])


def signal_batch(job_id: str, signal: str) -> None:
    """Signal the batch process of a job alone, none of its steps. Fails while the job is completing."""
    _run(["scancel", f"--signal={signal}", "--batch", job_id])


def cancel_job(job_id: str) -> None:
    """Cancel a whole job. One that is gone is no error."""
    _run(["scancel", job_id])


def release_job(job_id: str) -> None:
    """Let a job that was submitted with --hold be scheduled."""
    _run(["scontrol", "release", job_id])


def submit(options: Sequence[str], script: str, arguments: Sequence[str], environment: Mapping[str, str]) -> str:
    """Submit a batch script with `arguments` and return the job id.

    The job gets this process's environment, less what belongs to a surrounding job, plus `environment`: values never
    stand on a command line.
    """
    command = ["sbatch", "--parsable", "--export=ALL", *options, script, *arguments]
    output = _run(command, timeout=SUBMIT_TIMEOUT_S, environment={**submit_environment(os.environ), **environment})
    try:
        return parse.parse_submitted(output)
    except ParseError as error:
        raise SlurmError(Failure.UNREADABLE, str(error)) from None


def submit_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Take out of an environment what another job put there, or what would outrank the script's directives."""
    return {
        key: value
        for key, value in environment.items()
        if key not in _PLANNED_SBATCH and (not key.startswith("SLURM") or key in _KEPT_SLURM)
    }


def _read(command: Sequence[str], read: Callable[[str], _Parsed]) -> _Parsed:
    try:
        return read(_run(command))
    except ParseError as error:
        raise SlurmError(Failure.UNREADABLE, f"{command[0]}: {error}") from None


def _read_known(command: Sequence[str], read: Callable[[str], _Parsed]) -> _Parsed | None:
    try:
        return _read(command, read)
    except SlurmError as error:
        if error.failure is Failure.NOT_FOUND:
            return None
        raise


def _run(command: Sequence[str], *, timeout: float | None = None, environment: Mapping[str, str] | None = None) -> str:
    """Run one command and return what it prints. Nothing of `environment` gets into an error."""
    limit = QUERY_TIMEOUT_S if timeout is None else timeout
    variables = {**(os.environ if environment is None else environment), "SLURM_TIME_FORMAT": "standard"}
    try:
        done = subprocess.run(
            command,
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=limit,
        )
    except FileNotFoundError:
        raise SlurmError(Failure.MISSING, f"{command[0]} not found: is this a Slurm machine?") from None
    except OSError as error:
        raise SlurmError(Failure.MISSING, f"{command[0]} cannot be run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise SlurmError(Failure.TIMEOUT, f"{command[0]} did not answer within {limit:g} s") from None
    if done.returncode != 0:
        raise _refusal(command[0], done.returncode, f"{done.stderr}\n{done.stdout}")
    return done.stdout


def _refusal(program: str, code: int, output: str) -> SlurmError:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    text = "; ".join(lines)[:1000] or f"exit code {code}"
    if not text.startswith(program):
        text = f"{program}: {text}"
    if "Invalid job id" in text or " not found" in text or "already completing" in text:
        return SlurmError(Failure.NOT_FOUND, text)
    if "Unable to contact" in text or "Socket timed out" in text or "Connection refused" in text:
        return SlurmError(Failure.UNREACHABLE, text)
    return SlurmError(Failure.REFUSED, text)
