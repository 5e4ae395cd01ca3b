"""Every drill holds all its promises in a short run, and a proxy that breaks one is found out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.drilling.checks import State
from tools.drilling.runner import run_drill
from tools.drilling.spec import read_drill
from tools.launch import DdProxy, Fake

ROOT = Path(__file__).resolve().parents[2]
DRILLS = sorted((ROOT / "tools" / "drills").glob("*.toml"))
SECONDS = {"hanging": 5.0, "mixed-day": 6.0, "total-overload": 4.0}
TELLING = """
title = "Sabotage"
about = "A proxy that may not fail over meets a replica that fails."
seconds = 1
replicas = { count = 2 }
proxy = { max_attempts = 1, breaker_failure_threshold = 0 }
load = [{ rate = 80 }]
event = [{ at = 0.0, replica = 0, kind = "status", status = 500 }]
holds = { seen = ["retries_total"] }
"""


def test_there_is_a_drill_for_each_kind_of_trouble() -> None:
    assert [path.stem for path in DRILLS] == [
        "departures", "errors", "hanging", "keep-alive-cuts", "killed", "mixed-day", "partial-overload",
        "rolling-restart", "slow-clients", "steady", "thundering-start", "total-overload",
    ]  # fmt: skip


@pytest.mark.parametrize("path", DRILLS, ids=lambda path: path.stem)
def test_a_short_run_of_the_drill_holds_every_promise(path: Path, tmp_path: Path) -> None:
    drill = read_drill(path)
    report = run_drill(drill, SECONDS.get(drill.name, 2.5), tmp_path, print)
    broken = [f"{verdict.promise}: {verdict.said}" for verdict in report.verdicts if verdict.state is State.BROKEN]
    assert not broken
    skipped = [verdict.promise for verdict in report.verdicts if verdict.state is State.SKIPPED]
    assert not skipped, "a drill that starts everything itself has evidence for every promise"


def test_a_proxy_that_breaks_a_promise_fails_the_command_loudly(tmp_path: Path) -> None:
    (tmp_path / "sabotage.toml").write_text(TELLING)
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "drill.py"), "sabotage.toml", "--report", "out.html"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "BROKEN   nothing lost" in done.stdout
    assert "BROKEN   only the expected statuses: unexpected answers: 500" in done.stdout
    assert "BROKEN   the drill met what it is about: never seen: retries_total" in done.stdout
    assert "FAILED   sabotage" in done.stdout
    assert "1 of 1 failed" in (tmp_path / "out.html").read_text()


def test_the_drill_of_the_documentation_can_be_carried_out_and_passes(tmp_path: Path) -> None:
    _, _, behind = (ROOT / "docs" / "drills.md").read_text().partition("```toml\n")
    (tmp_path / "example.toml").write_text(behind.partition("```")[0])
    report = run_drill(read_drill(tmp_path / "example.toml"), 5.0, tmp_path, print)
    assert [verdict.said for verdict in report.verdicts if verdict.state is State.BROKEN] == []


def test_a_drill_that_does_not_exist_is_one_clear_line() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "drill.py"), "nope"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (2, "drill: no drill nope; --list shows them, or name a .toml file\n")


def test_a_bad_drill_file_is_one_clear_line_and_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text('title = "x"\nabout = "y"\nseconds = 1\nload = [{}]\ncolour = 1\n')
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "drill.py"), str(tmp_path / "bad.toml")],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith(f"drill: {tmp_path}/bad.toml: colour: unknown")
    assert len(done.stderr.splitlines()) == 1


def test_a_running_endpoint_is_drilled_without_touching_its_replicas(tmp_path: Path) -> None:
    with Fake(tmp_path / "fake.log", "--port", "0") as fake, DdProxy(tmp_path / "proxy.log", fake.urls) as proxy:
        proxy.wait_ready()
        side = f"http://127.0.0.1:{proxy.side_port}"
        done = subprocess.run(
            [sys.executable, str(ROOT / "tools" / "drill.py"), "steady", "killed", "--scale", "0.1",
             "--url", proxy.url, "--metrics-url", side, "--report", "out.html"],
            cwd=tmp_path, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped  killed" in done.stdout
    assert "passed   steady" in done.stdout
    assert "SKIPPED  memory bounded: the process of the endpoint is not at hand" in done.stdout
