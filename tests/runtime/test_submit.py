"""Submitting leaves a run on disk and one job in Slurm, or a reason and neither."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from runtime import slurm as slurm_commands
from runtime import submit as submitting
from runtime.layout import find_attempts
from runtime.planfile import read_resolved
from runtime.render import render
from runtime.slurm import Failure, SlurmError
from runtime.state import read_attempt, read_readiness
from runtime.submit import SubmitError, submit
from tests.runtime.attempts import small_plan
from tests.runtime.minislurm import MiniSlurm
from tests.runtime.plans import SMALL, changed

LATER = changed(SMALL, ('"00:10:00"', '"00:10:00"\nsbatch = ["--begin=now+1hour"]'))  # a job that waits
DD_PROXY = (sys.executable, "-m", "proxy.cli")


def _dd_proxy(
    slurm: MiniSlurm, *arguments: str, cwd: Path | None = None, **extra: str
) -> subprocess.CompletedProcess[str]:
    environment = slurm.environment(PYTHONPATH=str(Path(__file__).parents[2]), **extra)
    return subprocess.run([*DD_PROXY, *arguments], env=environment, cwd=cwd, capture_output=True, text=True, timeout=60)


@pytest.mark.slurm
def test_submit_prints_where_the_run_is_and_opens_its_first_attempt(slurm: MiniSlurm, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(LATER)
    done = _dd_proxy(slurm, "submit", "plan.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    attempt = find_attempts(Path(printed["run_dir"]))[0]
    assert printed == {
        "job_id": printed["job_id"],
        "run_dir": str(attempt.run_dir),
        "attempt_dir": str(attempt.path),
    }
    assert attempt.run_dir.parent == tmp_path / "runs"
    assert attempt.script.read_text() == render(read_resolved(attempt))
    record, readiness = read_attempt(attempt.path), read_readiness(attempt.path)
    assert record is not None
    assert readiness is not None
    assert (record.run, record.attempt, record.state) == (attempt.run, 1, "submitted")
    assert record.job is not None
    assert (record.job.id, record.job.restart_count, record.controller) == (printed["job_id"], 0, None)
    assert (readiness.revision, readiness.state) == (1, "pending")
    job = slurm.job(printed["job_id"])
    assert (job["JobName"], job["JobState"]) == ("small", "PENDING")
    assert job["Reason"] != "JobHeldUser"
    assert job["StdOut"] == f"{attempt.run_dir}/slurm.out"


@pytest.mark.slurm
def test_everything_that_submit_writes_is_private(slurm_here: MiniSlurm, tmp_path: Path) -> None:
    attempt = submit(small_plan(tmp_path, LATER)).attempt
    for path in attempt.run_dir.rglob("*"):
        expected = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == expected, path
    assert slurm_here.nodes


@pytest.mark.slurm
def test_no_value_of_env_is_in_a_file_or_a_command_line(slurm: MiniSlurm, tmp_path: Path) -> None:
    """The job gets the values by its environment: the stand-in for the client prints what it has."""
    env = 'env = { PLAIN = "s3cret-a b", OTHER = { from_env = "OTHER" } }'
    plan = tmp_path / "plan.toml"
    plan.write_text(changed(LATER, ('command = ["work"]', f'command = ["work"]\n{env}')))
    done = _dd_proxy(slurm, "submit", str(plan), OTHER="s3cret-b")
    assert done.returncode == 0, done.stderr
    attempt = find_attempts(Path(json.loads(done.stdout)["run_dir"]))[0]
    for path in attempt.run_dir.rglob("*"):
        assert path.is_dir() or b"s3cret" not in path.read_bytes(), path
    assert "s3cret" not in done.stdout + done.stderr
    assert "s3cret" not in slurm.run("scontrol", "show", "job", json.loads(done.stdout)["job_id"])
    references = read_resolved(attempt).client.env
    assert references["PLAIN"].name.startswith("DD_PROXY_PLAN_ENV_")  # type: ignore[union-attr]  # never a string here


@pytest.mark.slurm
def test_slurms_refusal_is_shown_and_recorded(slurm: MiniSlurm, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(changed(SMALL, ('"00:10:00"', '"00:10:00"\npartition = "nope"')))
    done = _dd_proxy(slurm, "submit", str(plan))
    assert (done.returncode, done.stdout) == (1, "")
    assert "invalid partition specified: nope" in done.stderr
    assert "Traceback" not in done.stderr
    [run_dir] = (tmp_path / "runs").iterdir()
    record = read_attempt(find_attempts(run_dir)[0].path)
    assert record is not None
    assert (record.state, record.classification) == ("failed", "startup_failed")
    assert "nope" in str(record.reason)


@pytest.mark.slurm
def test_a_bad_plan_creates_and_submits_nothing(slurm: MiniSlurm, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(changed(SMALL, ("cpus_per_node = 4", "cpus_per_node = 0"), ("[client]", "[client]\ncolour = 1")))
    done = _dd_proxy(slurm, "submit", str(plan))
    assert (done.returncode, done.stdout) == (2, "")
    assert [line.split(": ")[1] for line in done.stderr.splitlines()] == ["job.cpus_per_node", "client.colour"]
    assert sorted(tmp_path.iterdir()) == [plan]
    assert slurm.run("squeue", "-h") == ""


@pytest.mark.slurm
def test_a_short_kill_wait_is_a_warning(slurm: MiniSlurm, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(LATER + '[runtime]\ndrain_timeout = "40s"\n')
    done = _dd_proxy(slurm, "submit", str(plan))
    assert done.returncode == 0
    assert "KillWait here is 30s" in done.stderr
    assert "dd-proxy cancel" in done.stderr
    plan.write_text(LATER.replace("base_port", 'stop_timeout = "5s"\nbase_port'))
    assert _dd_proxy(slurm, "submit", str(plan)).stderr == ""


@pytest.mark.slurm
def test_a_plan_that_holds_its_job_keeps_it_held(slurm_here: MiniSlurm, tmp_path: Path) -> None:
    submitted = submit(small_plan(tmp_path, LATER.replace("--begin=now+1hour", "--hold")))
    assert slurm_here.job(submitted.job_id)["Reason"] == "JobHeldUser"


@pytest.mark.slurm
@pytest.mark.parametrize(
    ("raised", "seen"),
    [
        (SlurmError(Failure.REFUSED, "no release"), SubmitError),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (OSError(28, "No space left on device"), OSError),
    ],
)
def test_a_job_that_was_not_released_is_taken_back(
    slurm_here: MiniSlurm,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    raised: BaseException,
    seen: type[BaseException],
) -> None:
    def refuse(job_id: str) -> None:
        raise raised

    monkeypatch.setattr(slurm_commands, "release_job", refuse)
    with pytest.raises(seen):
        submit(small_plan(tmp_path))
    [run_dir] = (tmp_path / "runs").iterdir()
    record = read_attempt(find_attempts(run_dir)[0].path)
    assert record is not None
    assert record.job is not None
    assert (record.state, record.classification) == ("failed", "startup_failed")
    assert slurm_here.job(record.job.id)["JobState"] == "CANCELLED"


def test_a_machine_without_slurm_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SubmitError, match="sbatch not found"):
        submit(small_plan(tmp_path))


def test_a_slow_slurm_may_have_taken_the_job_and_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*arguments: object) -> str:
        raise SlurmError(Failure.TIMEOUT, "sbatch did not answer within 60 s")

    monkeypatch.setattr(slurm_commands, "submit", silent)
    monkeypatch.setattr(slurm_commands, "config_kill_wait", lambda: 300.0)
    with pytest.raises(SubmitError, match=r"within 60 s; the job may be in the queue all the same, held: see squeue"):
        submit(small_plan(tmp_path))


def test_a_percent_sign_in_a_path_is_no_pattern(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def remember(options: list[str], script: str, arguments: list[str], environment: dict[str, str]) -> str:
        seen.extend(options)
        raise SlurmError(Failure.REFUSED, f"{script} {arguments} {environment}")

    monkeypatch.setattr(slurm_commands, "submit", remember)
    monkeypatch.setattr(slurm_commands, "config_kill_wait", lambda: 300.0)
    (tmp_path / "50%j").mkdir()
    with pytest.raises(SubmitError):
        submit(small_plan(tmp_path / "50%j"))
    assert any("/50%%j/runs/" in option for option in seen)
    assert submitting.BATCH_OUTPUT in seen[1]
    assert os.sep in seen[1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_while_slurm_takes_the_job_leaves_no_held_job_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    order: list[object] = []

    def takes_the_job(*arguments: object) -> str:
        os.kill(os.getpid(), number)
        return "123"

    monkeypatch.setattr(slurm_commands, "submit", takes_the_job)
    monkeypatch.setattr(slurm_commands, "config_kill_wait", lambda: 300.0)
    monkeypatch.setattr(slurm_commands, "release_job", order.append)
    before = signal.signal(number, lambda received, _: order.append(received))
    try:
        submitted = submit(small_plan(tmp_path))
    finally:
        signal.signal(number, before)
    assert order == ["123", number]
    record = read_attempt(submitted.attempt.path)
    assert record is not None and record.job is not None and record.job.id == "123"
    assert record.state == "submitted"
