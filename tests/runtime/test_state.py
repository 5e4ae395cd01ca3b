"""State files: what may follow what, whole writes, and clear words about a broken file."""

from __future__ import annotations

import errno
import itertools
import json
import os
import stat
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from runtime.state import (
    ATTEMPT_MOVES,
    READINESS_MOVES,
    AttemptRecord,
    AttemptState,
    Classification,
    ControllerRef,
    HealthFailure,
    HealthRecord,
    IllegalMove,
    JobRef,
    ReadinessRecord,
    ReadinessState,
    StateError,
    new_attempt,
    new_readiness,
    read_attempt,
    read_record,
    write_json,
)

LOSS = HealthFailure("2026-01-01T00:00:00.000Z", "m", "10.0.0.2:18003", "monitor", "probe timed out 3 times")
LATER_LOSS = replace(LOSS, backend="10.0.0.3:18004", source="launcher")
LEGAL_ATTEMPT_MOVES = {
    ("created", "submitted"), ("created", "running"), ("created", "failed"), ("created", "cancelled"),
    ("submitted", "running"), ("submitted", "failed"), ("submitted", "cancelled"),
    ("running", "succeeded"), ("running", "failed"), ("running", "cancelled"),
}  # fmt: skip
LEGAL_READINESS_MOVES = {
    ("pending", "starting"), ("pending", "stopped"), ("starting", "starting"), ("starting", "ready"),
    ("starting", "stopped"), ("ready", "ready"), ("ready", "stopped"), ("ready", "failed"), ("failed", "failed"),
}  # fmt: skip


@pytest.mark.parametrize(("before", "after"), list(itertools.product(AttemptState, AttemptState)))
def test_an_attempt_makes_exactly_the_moves_of_its_table(before: AttemptState, after: AttemptState) -> None:
    record = replace(new_attempt("run", 1, None), state=before)
    if (before, after) in LEGAL_ATTEMPT_MOVES:
        assert record.move(after).state is after
    else:
        with pytest.raises(IllegalMove, match=f"is {before} and cannot become {after}"):
            record.move(after)


@pytest.mark.parametrize(("before", "after"), list(itertools.product(ReadinessState, ReadinessState)))
def test_readiness_makes_exactly_the_moves_of_its_table(before: ReadinessState, after: ReadinessState) -> None:
    record = replace(new_readiness({"m": 2}), state=before)
    if after is ReadinessState.FAILED:
        if (before, after) in LEGAL_READINESS_MOVES:
            assert record.fail(LOSS).state is after
        else:
            with pytest.raises(IllegalMove):
                record.fail(LOSS)
    elif (before, after) in LEGAL_READINESS_MOVES:
        assert record.move(after).state is after
    else:
        with pytest.raises(IllegalMove):
            record.move(after)


def test_every_state_has_its_row() -> None:
    assert set(ATTEMPT_MOVES) == set(AttemptState)
    assert set(READINESS_MOVES) == set(ReadinessState)
    assert {state for state in AttemptState if state.terminal} == {"succeeded", "failed", "cancelled"}


def test_every_classification_belongs_to_the_state_of_the_contract() -> None:
    states = {one: one.state for one in Classification}
    assert states.pop(Classification.SUCCEEDED) is AttemptState.SUCCEEDED
    assert states.pop(Classification.CANCELLED) is AttemptState.CANCELLED
    assert set(states.values()) == {AttemptState.FAILED}


def test_readiness_never_fails_without_evidence_and_keeps_the_first() -> None:
    ready = new_readiness({"m": 2, "n": 1}).move(ReadinessState.STARTING).move(ReadinessState.READY)
    with pytest.raises(IllegalMove):
        ready.move(ReadinessState.FAILED)
    failed = ready.fail(LOSS)
    assert [one.state for one in failed.deployments] == [ReadinessState.FAILED, ReadinessState.PENDING]
    assert failed.fail(LATER_LOSS).health_failure == LOSS
    assert failed.move(ReadinessState.FAILED, ()).health_failure == LOSS
    with pytest.raises(IllegalMove):
        failed.move(ReadinessState.STOPPED)


def test_revisions_grow_by_one() -> None:
    record = new_readiness({"m": 2})
    assert record.revision == 1
    for number, state in enumerate((ReadinessState.STARTING, ReadinessState.STARTING, ReadinessState.READY), 2):
        record = record.move(state)
        assert record.revision == number


def test_what_stops_stops_with_every_deployment_and_only_once() -> None:
    ready = new_readiness({"m": 2}).move(ReadinessState.STARTING).move(ReadinessState.READY)
    stopped = ready.stop()
    assert (stopped.revision, stopped.state) == (ready.revision + 1, "stopped")
    assert [one.state for one in stopped.deployments] == ["stopped"]
    assert stopped.stop() is stopped
    failed = ready.fail(LOSS)
    assert failed.stop() is failed


def test_records_survive_a_file(tmp_path: Path) -> None:
    attempt = new_attempt("run", 2, JobRef("123", 1)).move(
        AttemptState.RUNNING, controller=ControllerRef("node1", 4242)
    )
    ended = attempt.end(Classification.NODE_LOST, "node node3 was lost")
    write_json(tmp_path / "attempt.json", ended)
    assert read_attempt(tmp_path) == ended
    ready = new_readiness({"m": 2}).move(ReadinessState.STARTING).move(ReadinessState.READY).fail(LOSS)
    write_json(tmp_path / "readiness.json", ready)
    assert read_record(tmp_path / "readiness.json", ReadinessRecord) == ready


def test_the_files_have_the_keys_of_the_contract(tmp_path: Path) -> None:
    write_json(tmp_path / "a", new_attempt("run", 1, JobRef("123", 0)))
    assert list(json.loads((tmp_path / "a").read_bytes())) == [
        "schema_version", "run", "attempt", "job", "state", "created_at", "updated_at", "classification", "reason",
        "controller",
    ]  # fmt: skip
    write_json(tmp_path / "r", new_readiness({"m": 2}))
    readiness = json.loads((tmp_path / "r").read_bytes())
    assert set(readiness) == {"schema_version", "revision", "state", "updated_at", "deployments", "health_failure"}
    assert set(readiness["deployments"][0]) == {
        "name", "state", "expected_backends", "ready_backends", "endpoint", "metrics",
    }  # fmt: skip
    write_json(tmp_path / "h", HealthRecord(1, "t", (), LOSS))
    health = json.loads((tmp_path / "h").read_bytes())
    assert set(health) == {"schema_version", "sequence", "observed_at", "deployments", "failure", "final"}
    assert set(health["failure"]) == {"observed_at", "deployment", "backend", "source", "reason"}


def test_a_file_is_private_and_leaves_no_temporary_behind(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        write_json(tmp_path / "attempt.json", {"a": 1})
        write_json(tmp_path / "attempt.json", {"a": 2})
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "attempt.json").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["attempt.json"]


def test_a_failed_write_keeps_the_old_file_and_no_temporary(tmp_path: Path) -> None:
    write_json(tmp_path / "attempt.json", {"a": 1})
    with pytest.raises(TypeError):
        write_json(tmp_path / "attempt.json", {"a": object()})
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError):
        write_json(tmp_path / "taken", {"a": 2})
    assert json.loads((tmp_path / "attempt.json").read_bytes()) == {"a": 1}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["attempt.json", "taken"]


def test_a_file_that_is_written_once_is_never_replaced(tmp_path: Path) -> None:
    write_json(tmp_path / "winner.json", {"a": 1}, once=True)
    with pytest.raises(FileExistsError):
        write_json(tmp_path / "winner.json", {"a": 2}, once=True)
    assert json.loads((tmp_path / "winner.json").read_bytes()) == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["winner.json"]


def test_what_is_published_stays_published_whatever_fails_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def fails_for_folders(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, "Input/output error")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fails_for_folders)
    write_json(tmp_path / "winner.json", {"a": 1}, once=True)
    assert json.loads((tmp_path / "winner.json").read_bytes()) == {"a": 1}


def test_a_link_whose_answer_was_lost_on_the_way_is_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def made_twice(source: str, target: Path) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", made_twice)
    write_json(tmp_path / "winner.json", {"a": 1}, once=True)
    assert [path.name for path in tmp_path.iterdir()] == ["winner.json"]


def test_a_reader_sees_whole_files_while_they_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "health.json"
    write_json(path, {"fill": "x" * 10})
    stop = threading.Event()

    def write() -> None:
        size = 10
        while not stop.is_set():
            size = 200_000 if size == 10 else 10
            write_json(path, {"fill": "x" * size})

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(300):
            assert len(json.loads(path.read_bytes())["fill"]) in (10, 200_000)
    finally:
        stop.set()
        writer.join()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[]", "expected dict, found"),
        ('{"schema_version": 2}', "schema_version 2 is not 1"),
        ('{"schema_version": 1}', "run: missing"),
        (
            '{"run": "r", "attempt": 1, "job": null, "state": "done", "created_at": "t", "updated_at": "t"}',
            "state: 'done' is not one of",
        ),
        (
            '{"run": "r", "attempt": "1", "job": null, "state": "failed", "created_at": "t", "updated_at": "t"}',
            "attempt: expected int, found '1'",
        ),
        (
            '{"run": "r", "attempt": 1, "job": {"id": "5"}, "state": "failed", "created_at": "t", "updated_at": "t"}',
            "job.restart_count: missing",
        ),
    ],
)
def test_a_broken_file_is_named_with_its_fault(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "attempt.json").write_text(content)
    with pytest.raises(StateError) as raised:
        read_attempt(tmp_path)
    assert str(tmp_path / "attempt.json") in str(raised.value)
    assert words in str(raised.value)


def test_an_absent_file_is_none_and_a_newer_key_is_ignored(tmp_path: Path) -> None:
    assert read_attempt(tmp_path) is None
    write_json(tmp_path / "attempt.json", new_attempt("run", 1, None))
    data = json.loads((tmp_path / "attempt.json").read_bytes())
    (tmp_path / "attempt.json").write_text(json.dumps({**data, "newer": True}))
    assert isinstance(read_attempt(tmp_path), AttemptRecord)
