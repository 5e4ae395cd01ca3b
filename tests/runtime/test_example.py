"""The example runs as the pages say: the very commands, on a real Slurm of three nodes and on one machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.minislurm import MiniSlurm

CHECKOUT = Path(__file__).parents[2]
DD_PROXY = (sys.executable, "-m", "proxy.cli")


def _dd_proxy(environment: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [*DD_PROXY, *arguments], cwd=CHECKOUT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _own_python_first(environment: dict[str, str]) -> dict[str, str]:
    """Let `python3` in the plan be one that is new enough, as an activated environment does."""
    return {**environment, "PATH": f"{Path(sys.executable).parent}:{environment['PATH']}"}


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """Copy the example, with runs of its own."""
    text = (CHECKOUT / "examples" / "plan.toml").read_text(encoding="utf-8")
    assert '"../runs"' in text
    copy = tmp_path / "plan.toml"
    copy.write_text(text.replace('"../runs"', '"runs"'), encoding="utf-8")
    return copy


def _check(run_dir: Path) -> None:
    attempt_dir = run_dir / "attempt-1"
    winner: dict[str, Any] = json.loads((attempt_dir / "winner.json").read_text())
    assert [(one["path"], one["records"]) for one in winner["outputs"]] == [("out.jsonl", 500)]
    records = [json.loads(line) for line in (attempt_dir / "out.jsonl").read_text().splitlines()]
    assert [record["id"] for record in records] == list(range(500))
    assert all(record["text"] and record["verdict"] for record in records)
    report: dict[str, Any] = json.loads((attempt_dir / "report.json").read_text())
    assert {one["name"]: one["requests"] for one in report["endpoints"]} == {"writer": 500, "judge": 500}


@pytest.mark.slurm
@pytest.mark.slow
def test_on_slurm(slurm: MiniSlurm, plan: Path) -> None:
    environment = _own_python_first(slurm.environment())
    assert _dd_proxy(environment, "check", str(plan)) == f"{plan}: ok\n"
    assert _dd_proxy(environment, "render", str(plan)).startswith("#!/bin/bash\n#SBATCH --job-name=example\n")
    submitted = json.loads(_dd_proxy(environment, "submit", str(plan)))
    shown = _dd_proxy(environment, "status", submitted["run_dir"], "--watch")
    assert "attempt 1  succeeded" in shown
    assert "out.jsonl 500/500" in shown
    _check(Path(submitted["run_dir"]))
    assert "had ended already: succeeded" in _dd_proxy(environment, "cancel", submitted["run_dir"])
    slurm.wait_job(submitted["job_id"], "COMPLETED")
    assert slurm.step_daemons() == []


@pytest.mark.slow
def test_on_one_machine(plan: Path) -> None:
    printed = _dd_proxy(_own_python_first(dict(os.environ)), "run", str(plan), "--local")
    _check(Path(json.loads(printed)["run_dir"]))
