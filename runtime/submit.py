"""Submitting a plan: a run and its first attempt on disk, then one Slurm job.

Owns the order in which that happens. The job is submitted held and released only when `attempt.json` names it, so that
the controller, once it runs, is the only writer of the state files.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from runtime import slurm
from runtime.budget import drain_budget
from runtime.layout import AttemptDir, LayoutError, new_run, write_private
from runtime.own import own_command
from runtime.plan import Plan, detach_env, plan_to_json
from runtime.render import render
from runtime.signals import held_signals
from runtime.slurm import Failure, SlurmError
from runtime.state import AttemptState, Classification, JobRef, new_attempt, new_readiness, write_json

BATCH_OUTPUT = "slurm.out"


@dataclass(frozen=True, slots=True)
class Submitted:
    """A run whose job Slurm has taken."""

    job_id: str
    attempt: AttemptDir


class SubmitError(Exception):
    """Slurm did not take the job. The text holds Slurm's own words."""


def open_run(plan: Plan) -> AttemptDir:
    """Create a run with its first attempt, its script and its resolved plan, which holds no value of any `env`.

    Raises LayoutError.
    """
    attempt = new_run(plan.job.state_dir, plan.job.name)
    detached, _ = detach_env(plan)
    try:
        write_private(attempt.script, render(plan))
        write_private(attempt.plan_json, json.dumps(plan_to_json(detached), indent=1) + "\n")
        write_private(attempt.run_dir / BATCH_OUTPUT, "")  # Slurm would make it for everybody to read
    except OSError as error:
        raise LayoutError(f"cannot write to {attempt.path}: {error.strerror}") from None
    return attempt


def submit(plan: Plan) -> Submitted:
    """Submit a plan. Raises SubmitError after the attempt was closed as a failed start, LayoutError, OSError.

    Interrupted or failing in between, it takes a job back that was submitted already.
    """
    with held_signals():  # killed now, it would leave a held job that nobody knows of
        return _submit(plan)


def _submit(plan: Plan) -> Submitted:
    attempt = open_run(plan)
    record = new_attempt(attempt.run, attempt.number, None)
    readiness = new_readiness({one.name: one.replicas for one in plan.deployments})
    write_json(attempt.attempt_json, record)
    write_json(attempt.readiness_json, readiness)
    _warn_of_kill_wait(plan)
    job_id = None
    try:
        job_id = _submit_held(plan, attempt)
        record = record.move(AttemptState.SUBMITTED, job=JobRef(job_id, 0))
        write_json(attempt.attempt_json, record)
        if not _held_by_plan(plan):
            slurm.release_job(job_id)
    except BaseException as error:  # interrupted as well: a held job nobody releases would wait for ever
        if job_id is not None:
            _give_up(job_id)
        write_json(attempt.readiness_json, readiness.stop())
        reason = str(error) or "interrupted"
        write_json(attempt.attempt_json, record.end(Classification.STARTUP_FAILED, reason))
        if isinstance(error, SlurmError):
            late = job_id is None and error.failure is Failure.TIMEOUT
            hint = "; the job may be in the queue all the same, held: see squeue --me" if late else ""
            raise SubmitError(f"{error}{hint} (recorded in {attempt.path})") from None
        raise
    return Submitted(job_id, attempt)


def main_submit(plan: Plan) -> int:
    """Submit a plan and print where it is, as one JSON line. Returns the exit code."""
    try:
        submitted = submit(plan)
    except SubmitError as error:
        print(f"dd-proxy submit: {error}", file=sys.stderr)
        return 1
    run_dir, attempt_dir = str(submitted.attempt.run_dir), str(submitted.attempt.path)
    print(json.dumps({"job_id": submitted.job_id, "run_dir": run_dir, "attempt_dir": attempt_dir}))
    return 0


def _submit_held(plan: Plan, attempt: AttemptDir) -> str:
    _, values = detach_env(plan)
    options = ["--hold", f"--output={_literal(attempt.run_dir / BATCH_OUTPUT)}"]
    return slurm.submit(options, str(attempt.script), [str(attempt.path), *own_command()], values)


def _literal(path: Path) -> str:
    """Write a path for sbatch, which gives % a meaning in file names."""
    return str(path).replace("%", "%%")


def _held_by_plan(plan: Plan) -> bool:
    return any(option in ("--hold", "-H") for option in plan.job.sbatch)


def _give_up(job_id: str) -> None:
    """Take a job back that was submitted but cannot be released."""
    try:
        slurm.cancel_job(job_id)
    except SlurmError as error:
        print(f"dd-proxy submit: job {job_id} is held and could not be cancelled: {error}", file=sys.stderr)


def _warn_of_kill_wait(plan: Plan) -> None:
    """Tell what a plain scancel would cut on this site. Not knowing is no reason to refuse."""
    try:
        cut = drain_budget(plan).cut_by(slurm.config_kill_wait())
    except SlurmError as error:
        cut = f"the site's KillWait is not known: {error}"
    if cut is not None:
        print(f"dd-proxy submit: warning: {cut}", file=sys.stderr)
