"""The lifecycle's command line: usage, exit codes, and one clear line for each mistake."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime.plans import FULL, SMALL, changed

CHECKOUT = Path(__file__).parents[2]


def _dd_proxy(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "proxy.cli", *arguments]
    return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=60)


def test_a_good_plan_is_ok(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(FULL)
    done = _dd_proxy("check", str(plan))
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{plan}: ok\n", "")


def test_the_example_plan_is_ok() -> None:
    assert _dd_proxy("check", "examples/plan.toml").returncode == 0


@pytest.mark.parametrize("command", [("check",), ("render",), ("submit",), ("run", "--local")])
def test_a_bad_plan_is_told_in_full_and_exit_code_2(tmp_path: Path, command: tuple[str, ...]) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(changed(SMALL, ("cpus_per_node = 4", "cpus_per_nod = 4"), ("base_port = 18000", 'base_port = "x"')))
    done = _dd_proxy(command[0], str(plan), *command[1:])
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert [line.split(": ")[:2] for line in lines] == [
        [str(plan), "job.cpus_per_nod"],
        [str(plan), "job.cpus_per_node"],
        [str(plan), "deployment[m].base_port"],
    ]
    assert sorted(tmp_path.iterdir()) == [plan]


def test_a_plan_that_cannot_be_read_is_one_line() -> None:
    done = _dd_proxy("render", "/nowhere/plan.toml")
    assert (done.returncode, done.stderr) == (2, "/nowhere/plan.toml: cannot be read: No such file or directory\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("render",),
        ("submit", "a", "b"),
        ("run",),
        ("run", "plan.toml"),
        ("run", "--local"),
        ("run", "plan.toml", "--local", "--attempt-dir", "x"),
        ("run", "--local", "--attempt-dir", "x"),
        ("monitor",),
        ("status",),
        ("status", "x", "--jsn"),
        ("status", "x", "--js"),
        ("cancel",),
        ("cancel", "x", "--force"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(arguments: tuple[str, ...]) -> None:
    done = _dd_proxy(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert arguments[0] in done.stderr


@pytest.mark.parametrize("command", ["render", "submit", "run", "monitor", "exec", "status", "cancel"])
def test_every_subcommand_has_help(command: str) -> None:
    done = _dd_proxy(command, "--help")
    assert done.returncode == 0
    assert f"usage: dd-proxy {command}" in done.stdout


@pytest.mark.parametrize("command", ["status", "cancel"])
def test_a_directory_without_a_run_is_one_line(tmp_path: Path, command: str) -> None:
    done = _dd_proxy(command, str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert str(tmp_path) in done.stderr


def test_a_run_of_somebody_else_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "attempt-1").mkdir()
    (tmp_path / "attempt-1" / "attempt.json").mkdir()  # stands for a file that may not be read: tests may run as root
    done = _dd_proxy("status", str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1


def test_a_reader_that_leaves_is_no_error_of_ours(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(FULL)
    render = f"{sys.executable} -m proxy.cli render {plan}"
    done = subprocess.run(["bash", "-c", f"{render} | true"], cwd=CHECKOUT, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
