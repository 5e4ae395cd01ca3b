"""A run for people and scripts: `status`, as text, as JSON, or followed to its end.

Owns the words and the JSON shape. Writes nothing, and decides nothing: what there is to see comes from look.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from runtime.codec import encode
from runtime.look import NOT_ENDED, AttemptView, look
from runtime.state import AttemptState
from runtime.submit import BATCH_OUTPUT
from runtime.units import human_duration

_LOOK_S = 5.0  # each look asks Slurm's controller, which has others to serve


def main_status(directory: Path, *, as_json: bool, watch: bool) -> int:
    """Show a run, and with `watch` follow its last attempt until it ends. Raises LayoutError, StateError."""
    if watch and as_json:
        return _follow_json(directory)
    if watch:
        from runtime.watch import watch as follow

        follow(look(directory)[-1].directory)
    views = look(directory)
    print(json.dumps(status_json(views)) if as_json else status_text(views))
    return 0


def _follow_json(directory: Path) -> int:
    """Print one JSON object a line, whenever something has changed, until the attempt has ended."""
    before = None
    while True:
        views = look(directory)
        now = json.dumps(status_json(views))
        if now != before:
            print(now, flush=True)
            before = now
        if views[-1].attempt.state.terminal or views[-1].orphaned:
            return 0
        time.sleep(_LOOK_S)  # nothing sends this process an event: the controller may live on another machine


def status_json(views: list[AttemptView]) -> dict[str, Any]:
    """Give a run as JSON values. `controller_alive` is null when nobody can say."""
    return {
        "run": views[0].attempt.run,
        "attempts": [
            {
                "attempt": encode(view.attempt),
                "readiness": None if view.readiness is None else encode(view.readiness),
                "steps": [encode(step) for step in view.steps],
                "slurm": None if view.job is None else asdict(view.job),
                "controller_alive": view.alive,
            }
            for view in views
        ],
    }


def status_text(views: list[AttemptView]) -> str:
    """Write a run for a person, the latest attempt last and in full."""
    lines = [f"run {views[0].attempt.run}  ({views[0].directory.run_dir})"]
    for view in views[:-1]:
        lines.append(_headline(view))
    lines.append(_headline(views[-1]))
    lines += [f"  {line}" for line in _details(views[-1])]
    return "\n".join(lines)


def _headline(view: AttemptView) -> str:
    record = view.attempt
    text = f"attempt {record.attempt}  {record.state}"
    if record.classification is not None and record.classification.value != record.state.value:
        text += f" ({record.classification})"
    started = datetime.fromisoformat(record.created_at)
    ended = datetime.fromisoformat(record.updated_at) if record.state.terminal else datetime.now(started.tzinfo)
    text += f"  {human_duration(int((ended - started).total_seconds()))}"
    return f"{text}  {record.reason}" if record.reason else text


def _details(view: AttemptView) -> list[str]:
    lines = []
    if view.never_started:
        lines.append(f"the job ended before its controller had started: see {view.directory.run_dir / BATCH_OUTPUT}")
    elif view.orphaned:
        lines.append(f"the controller is gone: dd-proxy cancel {view.directory.run_dir} closes this attempt")
    if view.trouble:
        lines.append(f"Slurm cannot be asked: {view.trouble}")
    lines += _job(view)
    lines += _readiness(view)
    for step in view.steps if view.attempt.state is AttemptState.RUNNING else ():
        number = "" if step.step_id is None else f"  step {step.job_id}.{step.step_id}"
        lines.append(f"step {step.name}  {step.node}{number}  pid {step.pid}")
    lines.append(f"logs {view.directory.logs}")
    return lines


def _job(view: AttemptView) -> list[str]:
    job = view.job or view.later_start
    if job is None:
        asked = view.attempt.job is not None and not view.trouble and not view.attempt.state.terminal
        return [f"job {view.attempt.job.id}  Slurm does not know it any more"] if asked and view.attempt.job else []
    reason = f" ({job.reason})" if job.reason else ""
    where = f" on {job.node_list}" if job.node_list else ""
    again = "  requeued for another attempt" if view.later_start is not None and job.state in NOT_ENDED else ""
    return [f"job {job.job_id}  {job.state}{reason}{where}  restarts {job.restarts}{again}"]


def _readiness(view: AttemptView) -> list[str]:
    readiness = view.readiness
    if readiness is None:
        return []
    lines = [f"readiness {readiness.state}"]
    for one in readiness.deployments:
        endpoint = f"  {one.endpoint}" if one.endpoint else ""
        side = f"  side port {one.metrics}" if one.metrics else ""
        lines.append(
            f"  {one.name}  {one.state}  {one.ready_backends}/{one.expected_backends} replicas{endpoint}{side}"
        )
    failure = readiness.health_failure
    if failure is not None:
        what = " ".join(part for part in (failure.deployment, failure.backend) if part) or "the monitor"
        lines.append(f"  lost: {what}: {failure.reason} (seen by the {failure.source} at {failure.observed_at})")
    return lines
