"""Which attempt a controller runs after a requeue, and how the one before is closed."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.layout import AttemptDir
from runtime.look import look
from runtime.opening import AlreadyWon, OpeningError, open_slurm
from runtime.services import Node, Services, services_path
from runtime.state import (
    AttemptState,
    Classification,
    JobRef,
    ReadinessState,
    new_attempt,
    new_readiness,
    read_attempt,
    read_readiness,
    write_json,
)

FIRST, SECOND, THIRD = (JobRef("77", restart) for restart in range(3))


def none_lost(names: tuple[str, ...]) -> tuple[str, ...]:
    """Say that every node lives."""
    return ()


def last_lost(names: tuple[str, ...]) -> tuple[str, ...]:
    """Say that the last node is gone."""
    return names[-1:]


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptDir:
    """The first attempt of a run as `submit` leaves it."""
    directory = AttemptDir(tmp_path / "gen-1" / "attempt-1")
    directory.run_dir.mkdir()
    directory.create()
    directory.plan_json.write_text('{"plan": 1}')
    directory.script.write_text("#!/bin/bash\n")
    write_json(directory.attempt_json, new_attempt("gen-1", 1, FIRST).move(AttemptState.SUBMITTED))
    write_json(directory.readiness_json, new_readiness({"m": 1}))
    return directory


def begin(directory: AttemptDir, job: JobRef) -> None:
    """Let a controller have begun the attempt and be gone."""
    record = new_attempt("gen-1", directory.number, job).move(AttemptState.RUNNING)
    write_json(directory.attempt_json, record)
    write_json(directory.readiness_json, new_readiness({"m": 1}).move(ReadinessState.STARTING))
    nodes = (Node("node1", "10.0.0.1"), Node("node2", "10.0.0.2"))
    write_json(services_path(directory), Services(nodes, (), job=job.id, restart_count=job.restart_count))


def test_the_first_start_takes_the_submitted_attempt(attempt: AttemptDir) -> None:
    directory, record = open_slurm(attempt, FIRST, none_lost)
    assert (directory, record.state, record.job) == (attempt, AttemptState.SUBMITTED, FIRST)


@pytest.mark.parametrize(
    ("lost", "classification", "words"),
    [
        (none_lost, Classification.PREEMPTED, "requeued the job"),
        (last_lost, Classification.NODE_LOST, "node2 was lost"),
    ],
)
def test_a_requeue_closes_what_was_left_open_and_opens_the_next_beside_it(
    attempt: AttemptDir, lost: object, classification: Classification, words: str
) -> None:
    begin(attempt, FIRST)
    directory, record = open_slurm(attempt, SECOND, lost)  # type: ignore[arg-type]  # one of the two above
    assert directory.path == attempt.run_dir / "attempt-2"
    assert (record.attempt, record.job, record.state) == (2, SECOND, AttemptState.CREATED)
    assert directory.plan_json.read_text() == '{"plan": 1}'
    closed = read_attempt(attempt.path)
    assert closed is not None
    assert (closed.state, closed.classification) == ("failed", classification)
    assert words in str(closed.reason)
    readiness = read_readiness(attempt.path)
    assert readiness is not None and readiness.state == "stopped"


def test_an_attempt_that_closed_itself_is_left_as_it_is(attempt: AttemptDir) -> None:
    begin(attempt, FIRST)
    record = read_attempt(attempt.path)
    assert record is not None
    ended = record.end(Classification.PREEMPTED, "told by Slurm")
    write_json(attempt.attempt_json, ended)
    directory, _ = open_slurm(attempt, SECOND, last_lost)
    assert directory.number == 2
    assert read_attempt(attempt.path) == ended


def test_a_third_start_goes_on_from_the_second_whatever_directory_it_is_given(attempt: AttemptDir) -> None:
    begin(attempt, FIRST)
    second, _ = open_slurm(attempt, SECOND, none_lost)
    begin(second, SECOND)
    third, record = open_slurm(attempt, THIRD, none_lost)
    assert (third.number, record.job) == (3, THIRD)
    closed = read_attempt(second.path)
    assert closed is not None and closed.classification is Classification.PREEMPTED


def test_an_attempt_whose_making_was_cut_short_is_made_anew(attempt: AttemptDir) -> None:
    begin(attempt, FIRST)
    half = attempt.following()
    half.path.mkdir()
    (half.path / "plan.json").write_text('{"pl')
    assert [view.directory for view in look(attempt.run_dir)] == [attempt]
    directory, record = open_slurm(attempt, SECOND, none_lost)
    assert (directory, record.state) == (half, AttemptState.CREATED)
    assert directory.plan_json.read_text() == '{"plan": 1}'


def test_an_attempt_that_never_began_before_the_requeue_is_closed_too(attempt: AttemptDir) -> None:
    directory, _ = open_slurm(attempt, SECOND, none_lost)
    assert directory.number == 2
    closed = read_attempt(attempt.path)
    assert closed is not None and closed.classification is Classification.PREEMPTED


def test_an_attempt_that_has_ended_or_runs_is_not_run_again(attempt: AttemptDir) -> None:
    begin(attempt, FIRST)
    with pytest.raises(OpeningError, match="is running already"):
        open_slurm(attempt, FIRST, none_lost)


def test_another_job_is_refused(attempt: AttemptDir) -> None:
    with pytest.raises(OpeningError, match="belongs to job 77, this is job 78"):
        open_slurm(attempt, JobRef("78", 0), none_lost)


def test_a_winner_that_was_published_before_the_crash_stays_a_success(attempt: AttemptDir) -> None:
    begin(attempt, FIRST)
    write_json(attempt.winner_json, {"schema_version": 1})
    with pytest.raises(AlreadyWon):
        open_slurm(attempt, SECOND, last_lost)
    closed = read_attempt(attempt.path)
    assert closed is not None and closed.classification is Classification.SUCCEEDED
    readiness = read_readiness(attempt.path)
    assert readiness is not None and readiness.state == "stopped"
    assert not attempt.following().path.exists()


def test_a_requeue_after_a_success_runs_nothing_again(attempt: AttemptDir) -> None:
    begin(attempt, FIRST)
    record = read_attempt(attempt.path)
    assert record is not None
    write_json(attempt.attempt_json, record.end(Classification.SUCCEEDED, None))
    with pytest.raises(AlreadyWon):
        open_slurm(attempt, SECOND, none_lost)
    assert not attempt.following().path.exists()
