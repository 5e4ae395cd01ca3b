"""Each failure of a Slurm command has its kind and Slurm's own words."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from runtime import slurm
from runtime.slurm import Failure, SlurmError, submit_environment
from tests.runtime.minislurm import MiniSlurm, wait_until

Commands = Path


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Put a directory of stand-ins for Slurm's programs first and alone on the PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def _stand_in(commands: Commands, name: str, body: str) -> None:
    program = commands / name
    program.write_text(f"#!{sys.executable}\nimport json, os, sys, time\n{body}\n")
    program.chmod(0o755)


def _failure(stderr: str, commands: Commands) -> SlurmError:
    _stand_in(commands, "scancel", f"print({stderr!r}, file=sys.stderr); sys.exit(1)")
    with pytest.raises(SlurmError) as caught:
        slurm.cancel_job("7")
    return caught.value


def test_a_machine_without_slurm_is_told_apart(commands: Commands) -> None:
    with pytest.raises(SlurmError, match="scancel not found") as caught:
        slurm.cancel_job("7")
    assert caught.value.failure is Failure.MISSING


@pytest.mark.parametrize(
    ("stderr", "failure"),
    [
        ("scancel: error: Kill job error on job id 7: Invalid job id specified", Failure.NOT_FOUND),
        ("scancel: error: Kill job error on job id 7: Job/step already completing or completed", Failure.NOT_FOUND),
        ("scancel: error: Unable to contact slurm controller (connect failure)", Failure.UNREACHABLE),
        ("scancel: error: Kill job error on job id 7: Access/permission denied", Failure.REFUSED),
    ],
)
def test_a_refusal_has_its_kind_and_slurms_words(commands: Commands, stderr: str, failure: Failure) -> None:
    error = _failure(stderr + "\n", commands)
    assert (error.failure, str(error)) == (failure, stderr)


def test_a_refusal_is_one_line(commands: Commands) -> None:
    assert str(_failure("scancel: error: one\n\nscancel: error: two\n", commands)) == (
        "scancel: error: one; scancel: error: two"
    )


def test_a_command_that_hangs_is_given_up(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "QUERY_TIMEOUT_S", 0.2)
    _stand_in(commands, "scontrol", "time.sleep(60)")
    with pytest.raises(SlurmError, match="within") as caught:
        slurm.show_job("7")
    assert caught.value.failure is Failure.TIMEOUT


def test_what_is_not_understood_is_told_apart(commands: Commands) -> None:
    _stand_in(commands, "scontrol", "print('No jobs in the system')")
    with pytest.raises(SlurmError) as caught:
        slurm.show_job("7")
    assert caught.value.failure is Failure.UNREADABLE


def test_values_for_the_job_travel_by_environment_alone(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    _stand_in(commands, "sbatch", "json.dump([sys.argv, dict(os.environ)], open(os.environ['SEEN'], 'w')); print(17)")
    seen = commands / "seen"
    monkeypatch.setenv("SEEN", str(seen))
    monkeypatch.setenv("SLURM_RESTART_COUNT", "3")
    assert slurm.submit(["--hold"], "script.sh", ["/a b"], {"TOKEN": "s3cret"}) == "17"
    argv, environment = json.loads(seen.read_text())
    assert argv[1:] == ["--parsable", "--export=ALL", "--hold", "script.sh", "/a b"]
    assert environment["TOKEN"] == "s3cret"
    assert "SLURM_RESTART_COUNT" not in environment


def test_a_new_job_inherits_nothing_of_a_surrounding_one() -> None:
    surrounding = {
        "PATH": "/bin",
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_JOB_ID": "7",
        "SLURM_RESTART_COUNT": "1",
        "SLURMD_NODENAME": "node1",
        "SBATCH_SIGNAL": "TERM@10",
        "SBATCH_PARTITION": "batch",
    }
    assert submit_environment(surrounding) == {
        "PATH": "/bin",
        "SLURM_CONF": "/etc/slurm.conf",
        "SBATCH_PARTITION": "batch",
    }


@pytest.mark.slurm
def test_a_real_slurm_answers_every_question(slurm_here: MiniSlurm, tmp_path: Path) -> None:
    cluster = slurm_here
    assert slurm.hostnames("node[1-3]") == ("node1", "node2", "node3")
    assert slurm.config_kill_wait() == cluster.shape.kill_wait_s
    nodes = slurm.show_nodes(["node1", "node3"])
    assert {name: node.address for name, node in nodes.items()} == {"node1": "127.0.0.11", "node3": "127.0.0.13"}
    assert not any(node.lost for node in nodes.values())
    assert slurm.show_job("999999") is None
    task = tmp_path / "task"
    wrap = f"srun -n1 --mem=10M -J a-replica-0 sh -c 'echo > {task}; exec sleep 60'"
    job_id = cluster.run("sbatch", "--parsable", "--hold", "-o", "/dev/null", "--wrap", wrap).strip()
    held = slurm.show_job(job_id)
    assert held is not None
    assert (held.state, held.reason) == ("PENDING", "JobHeldUser")
    slurm.release_job(job_id)
    wait_until(task.exists, 60)  # Slurm shows a step before its task is there to be signalled
    step = slurm.show_step(f"{job_id}.0")
    assert step is not None
    assert (step.name, step.state) == ("a-replica-0", "RUNNING")
    assert slurm.show_step(f"{job_id}.7") is None
    slurm.signal_step(job_id, "0", "TERM")
    cluster.wait_job(job_id, "FAILED")  # srun's exit code is the step's
    slurm.cancel_job(job_id)
    with pytest.raises(SlurmError) as caught:
        slurm.signal_batch(job_id, "TERM")
    assert caught.value.failure is Failure.NOT_FOUND


@pytest.mark.slurm
def test_sbatchs_own_refusal_is_kept(slurm_here: MiniSlurm, tmp_path: Path) -> None:
    script = tmp_path / "script.sh"
    script.write_text("#!/bin/sh\n")
    with pytest.raises(SlurmError, match="invalid partition specified: nope") as caught:
        slurm.submit(["--partition=nope"], str(script), [], {})
    assert caught.value.failure is Failure.REFUSED
    assert os.environ["SLURM_CONF"] == str(slurm_here.config)
