"""A run's directories are private, never shared by two runs, and found again."""

from __future__ import annotations

import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest

from runtime.layout import AttemptDir, LayoutError, find_attempts, new_run, read_json, write_private

NOW = datetime(2026, 11, 29, 10, 15, tzinfo=UTC)


def test_a_run_is_named_by_its_job_and_the_utc_second(tmp_path: Path) -> None:
    attempt = new_run(tmp_path, "gen", NOW)
    assert attempt.path == tmp_path / "gen-20261129T101500Z" / "attempt-1"
    assert (attempt.run, attempt.number) == ("gen-20261129T101500Z", 1)


def test_runs_of_the_same_second_do_not_share_a_directory(tmp_path: Path) -> None:
    runs = [new_run(tmp_path, "gen", NOW).run for _ in range(3)]
    assert runs == ["gen-20261129T101500Z", "gen-20261129T101500Z-2", "gen-20261129T101500Z-3"]


def test_everything_is_private_to_the_user(tmp_path: Path) -> None:
    attempt = new_run(tmp_path / "runs", "gen", NOW)
    write_private(attempt.plan_json, "{}")
    for folder in (tmp_path / "runs", attempt.run_dir, attempt.path, attempt.logs, attempt.steps):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(attempt.plan_json.stat().st_mode) == 0o600


def test_a_private_file_is_never_written_over(tmp_path: Path) -> None:
    write_private(tmp_path / "file", "first")
    with pytest.raises(FileExistsError):
        write_private(tmp_path / "file", "second")


def test_attempts_are_found_from_the_run_and_from_each_attempt(tmp_path: Path) -> None:
    attempt = new_run(tmp_path, "gen", NOW)
    expected = [attempt]
    for _ in range(10):
        expected.append(expected[-1].following())
        expected[-1].create()
    assert find_attempts(attempt.run_dir) == expected  # 10 comes after 9
    assert find_attempts(expected[4].path) == expected


def test_an_attempt_is_never_opened_twice(tmp_path: Path) -> None:
    attempt = new_run(tmp_path, "gen", NOW)
    with pytest.raises(LayoutError, match="File exists"):
        attempt.create()


@pytest.mark.parametrize("name", ["missing", "empty", "file"])
def test_a_directory_without_a_run_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(LayoutError, match=name):
        find_attempts(tmp_path / name)


def test_a_state_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LayoutError, match="cannot create"):
        new_run(tmp_path / "file" / "runs", "gen", NOW)


def test_another_directory_is_no_attempt(tmp_path: Path) -> None:
    with pytest.raises(LayoutError, match="attempt-N"):
        _ = AttemptDir(tmp_path / "attempt-0").number


def test_json_is_read_or_named(tmp_path: Path) -> None:
    assert read_json(tmp_path / "none") is None
    (tmp_path / "list").write_text("[]")
    (tmp_path / "broken").write_text("{")
    for name in ("list", "broken"):
        with pytest.raises(LayoutError, match=name):
            read_json(tmp_path / name)
