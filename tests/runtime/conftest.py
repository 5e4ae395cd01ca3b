"""Fixtures of the lifecycle tests: one real Slurm for the whole session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime.jobs import SlurmRun, StartSlurm
from tests.runtime.lifecycle import LocalRun, Scenario, StartLocal
from tests.runtime.minislurm import INSTALL, MiniSlurm, missing_programs


def require_slurm() -> None:
    """Skip, with the line that mends it, where Slurm is not installed; in CI that is a failure instead."""
    missing = missing_programs()
    if not missing:
        return
    message = f"this test needs a real Slurm ({', '.join(missing)} not found): {INSTALL}"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)


@pytest.fixture(scope="session")
def shared_slurm() -> Iterator[MiniSlurm]:
    """Run one cluster for all tests of the session."""
    require_slurm()
    with MiniSlurm() as cluster:
        yield cluster


@pytest.fixture
def slurm(shared_slurm: MiniSlurm) -> Iterator[MiniSlurm]:
    """Give a test the shared cluster; afterwards no job, step or process of a job is left on it."""
    yield shared_slurm
    shared_slurm.clear()


@pytest.fixture
def slurm_here(slurm: MiniSlurm, monkeypatch: pytest.MonkeyPatch) -> MiniSlurm:
    """Point this very process at the shared cluster, for tests that call the lifecycle's own functions."""
    for name in [name for name in os.environ if name.startswith(("SLURM", "SBATCH", "SRUN"))]:
        monkeypatch.delenv(name)
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, slurm.environment()[name])
    return slurm


@pytest.fixture
def start_local(tmp_path: Path) -> Iterator[StartLocal]:
    """Start scenarios as local runs; what a failing test leaves of them is ended."""
    runs: list[LocalRun] = []

    def start(scenario: Scenario, **env: str) -> LocalRun:
        runs.append(LocalRun(scenario.write(tmp_path), **env))
        return runs[-1]

    yield start
    for run in runs:
        run.close()


@pytest.fixture
def start_slurm(slurm: MiniSlurm, tmp_path: Path) -> StartSlurm:
    """Submit scenarios to the shared cluster."""

    def start(scenario: Scenario) -> SlurmRun:
        return SlurmRun(slurm, scenario.write(tmp_path))

    return start
