"""What a known loss comes to while files cannot be written, and a step that could not be told to end."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runtime import journal as journals
from runtime.journal import Journal
from runtime.launcher import Step
from runtime.layout import AttemptDir
from runtime.site import Refusal, Site, term_step
from runtime.state import (
    Classification,
    HealthFailure,
    ReadinessState,
    StateError,
    new_attempt,
    read_readiness,
    utc_now,
    write_json,
)
from tests.runtime.attempts import opened, running


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
