"""Attempts on disk for tests of the commands that look at them from outside."""

from __future__ import annotations

import os
from pathlib import Path

from runtime.layout import AttemptDir
from runtime.plan import Plan
from runtime.state import (
    AttemptState,
    Classification,
    ControllerRef,
    JobRef,
    ReadinessState,
    new_attempt,
    new_readiness,
    write_json,
)
from runtime.submit import open_run
from tests.runtime.plans import SMALL, parse

NO_SUCH_JOB = "999999"
NO_SUCH_PID = 2**22 + 1  # above any pid that Linux gives


def small_plan(tmp_path: Path, text: str = SMALL) -> Plan:
    """Parse a plan whose runs go to `tmp_path`."""
    return parse(text, tmp_path / "plan.toml")


def opened(tmp_path: Path, job: JobRef | None) -> AttemptDir:
    """Make an attempt as `submit` leaves it, or as a local run begins it."""
    plan = small_plan(tmp_path)
    attempt = open_run(plan)
    record = new_attempt(attempt.run, attempt.number, job)
    write_json(attempt.attempt_json, record if job is None else record.move(AttemptState.SUBMITTED))
    write_json(attempt.readiness_json, new_readiness({one.name: one.replicas for one in plan.deployments}))
    return attempt


def running(tmp_path: Path, job: JobRef | None, pid: int = NO_SUCH_PID, host: str | None = None) -> AttemptDir:
    """Make an attempt that says it runs under the controller `pid`."""
    attempt = opened(tmp_path, job)
    record = new_attempt(attempt.run, attempt.number, job)
    controller = ControllerRef(host or os.uname().nodename, pid)
    write_json(attempt.attempt_json, record.move(AttemptState.RUNNING, controller=controller))
    readiness = new_readiness({"m": 1}).move(ReadinessState.STARTING).move(ReadinessState.READY)
    write_json(attempt.readiness_json, readiness)
    return attempt


def ended(tmp_path: Path, job: JobRef | None, classification: Classification, reason: str | None = None) -> AttemptDir:
    """Make an attempt that ended."""
    attempt = opened(tmp_path, job)
    record = new_attempt(attempt.run, attempt.number, job).move(AttemptState.RUNNING)
    write_json(attempt.attempt_json, record.end(classification, reason))
    return attempt
