"""`make test` goes on after a failure, says what failed, and says what it cannot do here."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tools.checks import BESIDE, GROUPS, Beside, Check, checks, close, run, shell_scripts
from tools.launch import ROOT


def test_every_folder_of_tests_is_run() -> None:
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    assert folders <= set(GROUPS)


def test_the_harness_is_run_where_it_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "conformance" not in [check.name for check in checks(tmp_path, 4)]
    assert "left out" in capsys.readouterr().out
    (tmp_path / "harness.py").touch()
    [found] = [check for check in checks(tmp_path, 4) if check.name == "conformance"]
    assert found.argv[2:5] == (str(tmp_path / "harness.py"), "--jobs", "4")
    assert found.argv[-1].endswith("dd-proxy")


def test_shell_scripts_are_found_by_their_first_line() -> None:
    assert {Path(".ci/run"), Path("tools/debian-packages")} <= set(shell_scripts())


def test_one_failure_fails_the_whole_and_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    good = Check("good", (sys.executable, "-c", ""))
    bad = Check("bad", (sys.executable, "-c", "raise SystemExit(3)"))
    assert run(good)
    assert not run(bad)
    assert close([("good", True, 1.0)]) == 0
    assert close([("good", True, 1.0), ("bad", False, 2.0)]) == 1
    closing = capsys.readouterr().out
    assert "FAILED  bad" in closing
    assert closing.splitlines()[-1] == "checks: 1 passed, 1 failed"


def test_packages_that_cannot_be_installed_are_named_and_nothing_fails(tmp_path: Path) -> None:
    for name, text in {"id": "echo 1000", "dpkg-query": "exit 1"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    script = str(ROOT / "tools" / "debian-packages")
    done = subprocess.run([script, "shellcheck", "valgrind"], env=env, capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr.startswith("not installed here: shellcheck valgrind")
    assert len(done.stderr.splitlines()) == 1


def test_a_check_beside_the_others_is_shown_when_it_has_ended(capfd: pytest.CaptureFixture[str]) -> None:
    with tempfile.TemporaryFile() as output:
        failing = Beside(Check("beside", (sys.executable, "-c", "import sys; print('said'); sys.exit(3)")), output)
        name, passed, took = failing.finish()
    assert (name, passed, took > 0) == ("beside", False, True)
    assert capfd.readouterr().out == "\n=== beside\nsaid\n"


def test_the_check_that_runs_beside_the_others_is_one_of_them(tmp_path: Path) -> None:
    assert BESIDE in [check.name for check in checks(tmp_path, 4)]
