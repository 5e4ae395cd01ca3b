"""What a known loss comes to while files cannot be written, and a step that could not be told to end."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runtime import journal as journals
from runtime import monitor as monitors
from runtime.attempt import Attempt
from runtime.journal import Journal
from runtime.launcher import Step
from runtime.layout import AttemptDir
from runtime.monitor import Monitor
from runtime.services import Replica, Services
from runtime.site import Refusal, Site, term_step
from runtime.state import (
    Classification,
    HealthFailure,
    ReadinessState,
    StateError,
    new_attempt,
    read_health,
    read_readiness,
    utc_now,
    write_json,
)
from runtime.steps import Role
from runtime.teardown import Teardown
from runtime.verdict import Cause, Trigger
from tests.runtime.attempts import opened, running, small_plan


def journal_of(attempt: AttemptDir) -> Journal:
    readiness = read_readiness(attempt.path)
    assert readiness is not None
    return Journal(attempt, new_attempt(attempt.run, attempt.number, None), readiness)


def test_a_loss_that_cannot_be_written_is_known_and_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = running(tmp_path, None)
    journal = journal_of(attempt)

    def full(path: Path, value: Any) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    failure = HealthFailure(utc_now(), "m", "127.0.0.1:1", "monitor", "probe timed out 3 times")
    with monkeypatch.context() as patch:
        patch.setattr(journals, "write_json", full)
        with pytest.raises(OSError, match="quota"):
            journal.lose(failure)
    assert journal.readiness.health_failure == failure
    journal.stop_readiness()
    written = read_readiness(attempt.path)
    assert written is not None and written.health_failure == failure
    assert written.state in (ReadinessState.FAILED, ReadinessState.STOPPED)


def test_an_attempt_that_was_closed_before_its_controller_began_stays_closed(tmp_path: Path) -> None:
    attempt = opened(tmp_path, None)
    journal = journal_of(attempt)
    closed = new_attempt(attempt.run, attempt.number, None).end(Classification.CANCELLED, "by hand")
    write_json(attempt.attempt_json, closed)
    before = attempt.attempt_json.read_bytes()
    with pytest.raises(StateError, match="was closed before it began"):
        journal.run(cast(Any, None), None)
    assert attempt.attempt_json.read_bytes() == before


async def test_a_step_that_could_not_be_told_to_end_is_told_again() -> None:
    refusals: list[Refusal | None] = [Refusal("its task has not started yet"), None]
    step = SimpleNamespace(alive=True, stopping=False)

    async def term(_: Step) -> Refusal | None:
        return refusals.pop(0)

    site = cast(Site, SimpleNamespace(term=term))
    for _ in range(3):
        await term_step(site, cast(Step, step), lambda *_: None)
    assert (refusals, step.stopping) == ([], True)


async def test_a_monitor_that_cannot_be_stopped_in_order_is_a_loss(tmp_path: Path) -> None:
    """Its final snapshot is what a success rests on."""
    journal = journal_of(running(tmp_path, None))
    monitor = SimpleNamespace(name="monitor", alive=True, stopping=False)
    losses: list[tuple[HealthFailure, str | None]] = []

    async def term(_: Step) -> None:
        raise RuntimeError("can't start new thread")

    async def view(_: str | None) -> None:
        return None

    attempt = SimpleNamespace(
        journal=journal,
        site=SimpleNamespace(term=term),
        steps={},
        watching=True,
        losses=losses,
        of=lambda *roles: [monitor] if roles == (Role.MONITOR,) else [],
        note=lambda: lambda *_: None,
        lose=lambda failure: losses.append((failure, None)),
        view=view,
    )
    await Teardown(cast(Attempt, attempt), Cause(Trigger.CLIENT_EXITED, "the client exited with 0", exit_code=0)).run()
    failure = journal.readiness.health_failure
    assert failure is not None
    assert failure.reason == "cannot be stopped: RuntimeError: can't start new thread"
    assert attempt.watching is False


async def test_a_monitor_that_cannot_write_for_a_while_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt, plan = running(tmp_path, None), small_plan(tmp_path)
    replica = Replica("m-replica-0", "m", "node1", "127.0.0.1", 1)
    plan = replace(plan, runtime=replace(plan.runtime, monitor_interval_s=0.01))
    monitor = Monitor(attempt, plan, Services((), (replica,)))
    failures = [OSError(errno.ESTALE, "Stale file handle")] * 2

    def busy(path: Path, value: Any) -> None:
        if failures:
            raise failures.pop()
        write_json(path, value)

    monkeypatch.setattr(monitors, "write_json", busy)
    stop = asyncio.Event()
    task = asyncio.create_task(monitor.run(stop))
    async with asyncio.timeout(20):
        while not attempt.health_json.exists():  # noqa: ASYNC110  a file has no event
            await asyncio.sleep(0.01)
        stop.set()
        await task
    record = read_health(attempt.path)
    assert record is not None and record.final
