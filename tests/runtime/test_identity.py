"""A step records who it is before it becomes its command, and only that very step is ever taken for it."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from runtime.identity import StepIdentity, mismatch, read_identity, role_of
from runtime.parse import JobInfo, StepInfo, parse_job, parse_step
from tests.runtime.minislurm import MiniSlurm, wait_until
from tests.runtime.test_parse import JOB, STEP

EXEC = (sys.executable, "-m", "proxy.cli", "exec")
RECORDED = StepIdentity("llama-replica-0", "replica", "17", 2, "5", "node2", 4711, "2026-11-29T20:26:33.000Z")


def _clean_environment(**extra: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("SLURM")}
    return {**kept, "PYTHONPATH": str(Path(__file__).parents[2]), **extra}


def _execute(file: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    whole = [*EXEC, "--identity", str(file), "--", *command]
    return subprocess.run(whole, env=_clean_environment(**environment), capture_output=True, text=True, timeout=30)


def test_the_step_is_recorded_and_keeps_its_pid(tmp_path: Path) -> None:
    file = tmp_path / "llama-replica-3.json"
    slurm = {"SLURM_JOB_ID": "17", "SLURM_RESTART_COUNT": "2", "SLURM_STEP_ID": "5", "SLURMD_NODENAME": "node2"}
    done = _execute(file, "sh", "-c", "echo $$", **slurm)
    identity = read_identity(file)
    assert identity == replace(
        RECORDED, name="llama-replica-3", pid=int(done.stdout), recorded_at=json.loads(file.read_text())["recorded_at"]
    )
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert identity is not None
    assert identity.recorded_at.endswith("Z")


def test_a_first_start_has_restart_count_zero(tmp_path: Path) -> None:
    _execute(tmp_path / "monitor.json", "true", SLURM_JOB_ID="17", SLURM_STEP_ID="0")
    identity = read_identity(tmp_path / "monitor.json")
    assert identity is not None
    assert (identity.role, identity.restart_count, identity.step_id) == ("monitor", 0, "0")


def test_the_commands_exit_code_is_the_steps(tmp_path: Path) -> None:
    assert _execute(tmp_path / "client.json", "sh", "-c", "exit 7").returncode == 7
    assert _execute(tmp_path / "client.json", "sh", "-c", "kill -TERM $$").returncode == -signal.SIGTERM


def test_the_command_gets_its_arguments_whatever_they_look_like(tmp_path: Path) -> None:
    done = _execute(tmp_path / "client.json", "printf", "%s|", "--", "--identity", "a b", "")
    assert done.stdout == "--|--identity|a b||"


_SIGNALS_OF_GLIBC = 0b11 << 31  # 32 and 33: no program can change them, and GNU make leaves them ignored


def test_the_command_starts_with_the_default_of_every_signal(tmp_path: Path) -> None:
    done = _execute(tmp_path / "client.json", "grep", "SigIgn", "/proc/self/status")
    ignored = int(done.stdout.split()[1], 16)
    assert ignored & ~_SIGNALS_OF_GLIBC == 0


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [(("no-such-program",), 127, "no-such-program: command not found"), (("/tmp",), 126, "/tmp cannot be run")],
)
def test_a_command_that_cannot_be_run_is_one_line(
    tmp_path: Path, command: tuple[str, ...], code: int, words: str
) -> None:
    done = _execute(tmp_path / "client.json", *command)
    assert done.returncode == code
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_step_that_cannot_be_recorded_does_not_start(tmp_path: Path) -> None:
    done = _execute(tmp_path / "missing" / "client.json", "echo", "started")
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot write" in done.stderr


@pytest.mark.parametrize(
    "arguments", [(), ("--identity", "client.json"), ("--identity", "client.json", "--"), ("--", "true")]
)
def test_bad_usage_is_one_line_and_exit_code_2(arguments: tuple[str, ...]) -> None:
    done = subprocess.run([*EXEC, *arguments], env=_clean_environment(), capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def test_a_name_that_is_no_step_is_refused(tmp_path: Path) -> None:
    done = _execute(tmp_path / "other.json", "true")
    assert done.returncode == 2
    assert "not a step name" in done.stderr


def test_a_local_step_dies_with_its_controller(tmp_path: Path) -> None:
    file, pid_file = tmp_path / "client.json", tmp_path / "pid"
    command = [*EXEC, "--identity", str(file), "--die-with-parent", "{}", "--", "sleep", "600"]
    controller = (
        "import os, subprocess, sys\n"
        f"command = [part.replace('{{}}', str(os.getpid())) for part in {command!r}]\n"
        "step = subprocess.Popen(command)\n"
        f"open({str(pid_file)!r}, 'w').write(str(step.pid))\n"
        "step.wait()\n"
    )
    environment = _clean_environment(SLURM_JOB_ID="17")
    with subprocess.Popen([sys.executable, "-c", controller], env=environment) as process:
        wait_until(lambda: file.exists() and pid_file.exists() and pid_file.read_text() != "", 20)
        process.kill()
    identity = read_identity(file)
    assert identity is not None
    assert (identity.job_id, identity.step_id) == (None, None)  # somebody's allocation around it is not its own
    wait_until(lambda: not Path(f"/proc/{pid_file.read_text()}").exists() or _is_zombie(int(pid_file.read_text())), 10)


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_local_step_without_its_controller_does_not_start(tmp_path: Path) -> None:
    command = [*EXEC, "--identity", str(tmp_path / "client.json"), "--die-with-parent", "1", "--", "echo", "started"]
    done = subprocess.run(command, env=_clean_environment(), capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (1, "")


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("llama-replica-3", "replica"),
        ("llama-endpoint", "endpoint"),
        ("monitor", "monitor"),
        ("client", "client"),
        ("a-endpoint-replica-0", "replica"),
        ("a-replica-0-endpoint", "endpoint"),
    ],
)
def test_a_role_follows_from_the_name(name: str, role: str) -> None:
    assert role_of(name) == role


def _seen() -> tuple[JobInfo, StepInfo]:
    return parse_job(JOB), parse_step(STEP.format(""))


def test_the_recorded_step_is_recognised() -> None:
    assert mismatch(RECORDED, *_seen()) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"job_id": "18"}, "job id"),
        ({"restart_count": 1}, "restart count"),
        ({"step_id": "4"}, "step id"),
        ({"name": "llama-replica-1"}, "step name"),
        ({"node": "node1"}, "node"),
        ({"job_id": None, "step_id": None}, "job id"),
    ],
)
def test_any_difference_makes_it_another_step(change: dict[str, object], words: str) -> None:
    reason = mismatch(replace(RECORDED, **change), *_seen())  # type: ignore[arg-type]  # fields of the record, by name
    assert reason is not None
    assert words in reason


@pytest.mark.slurm
def test_a_real_step_is_recognised_and_not_after_a_requeue(slurm: MiniSlurm, tmp_path: Path) -> None:
    file = tmp_path / "m-replica-0.json"
    script, output = tmp_path / "script.sh", tmp_path / "output"
    step = f"{' '.join(EXEC)} --identity {file} -- sleep 600"
    script.write_text(f"#!/bin/bash\nsrun -n1 -c1 --mem=50M --job-name=m-replica-0 {step}\n")
    environment = slurm.environment(PYTHONPATH=str(Path(__file__).parents[2]))
    command = ["sbatch", "--parsable", "--requeue", "-o", str(output), str(script)]
    job_id = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip()

    def recorded(restart_count: int) -> StepIdentity:
        def is_there() -> bool:
            identity = read_identity(file)
            return identity is not None and identity.restart_count == restart_count

        wait_until(is_there, 60, lambda: f"{slurm.job(job_id)} {output.read_text()}")
        identity = read_identity(file)
        assert identity is not None
        return identity

    def seen() -> tuple[JobInfo, StepInfo]:
        job = parse_job(slurm.run("scontrol", "-o", "show", "job", job_id))
        return job, parse_step(slurm.run("scontrol", "-o", "show", "step", f"{job_id}.0"))

    first = recorded(0)
    assert mismatch(first, *seen()) is None
    slurm.run("scontrol", "requeue", job_id)
    slurm.hasten(job_id)
    second = recorded(1)
    assert (first.job_id, first.step_id) == (second.job_id, second.step_id)  # which is why these alone prove nothing
    assert mismatch(second, *seen()) is None
    assert mismatch(first, *seen()) is not None
