"""`status` shows all attempts of a run, and says so when a controller is gone although the state says running."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from runtime import progress
from runtime import watch as watching
from runtime.identity import StepIdentity
from runtime.layout import AttemptDir, LayoutError
from runtime.look import AttemptView, look, look_at
from runtime.state import (
    Classification,
    HealthFailure,
    JobRef,
    StateError,
    new_attempt,
    read_readiness,
    utc_now,
    write_json,
)
from runtime.status import main_status, status_json, status_text
from runtime.submit import submit
from tests.runtime.attempts import NO_SUCH_JOB, ended, opened, running, small_plan
from tests.runtime.minislurm import MiniSlurm
from tests.runtime.test_submit import LATER


def test_the_json_has_every_attempt_and_its_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = ended(tmp_path, None, Classification.CLIENT_FAILED, "client exited with 3")
    second = first.following()
    second.create()
    write_json(second.attempt_json, new_attempt(second.run, 2, None))
    identity = StepIdentity("m-replica-0", "replica", None, 0, None, "here", 4711, utc_now())
    write_json(second.step_json("m-replica-0"), identity)
    assert main_status(second.path, as_json=True, watch=False) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["run"] == first.run
    assert [one["attempt"]["attempt"] for one in printed["attempts"]] == [1, 2]
    one, two = printed["attempts"]
    assert one["attempt"] == json.loads(first.attempt_json.read_text())
    assert one["readiness"] == json.loads(first.readiness_json.read_text())
    assert (one["steps"], one["slurm"], one["controller_alive"]) == ([], None, False)
    assert two["steps"] == [json.loads(second.step_json("m-replica-0").read_text())]
    assert two["readiness"] is None


def test_the_text_names_each_attempt_and_how_it_ended(tmp_path: Path) -> None:
    first = ended(tmp_path, None, Classification.SERVICE_LOST, "m (10.0.0.2:18003): probe timed out 3 times")
    second = first.following()
    second.create()
    write_json(second.attempt_json, new_attempt(second.run, 2, None))
    text = status_text(look(first.run_dir))
    assert f"run {first.run}" in text
    assert "attempt 1  failed (service_lost)" in text
    assert "probe timed out 3 times" in text
    assert "attempt 2  created" in text
    assert str(second.logs) in text


def test_a_lost_service_is_shown_with_its_evidence(tmp_path: Path) -> None:
    attempt = running(tmp_path, None, pid=os.getpid())
    readiness = read_readiness(attempt.path)
    assert readiness is not None
    failure = HealthFailure(utc_now(), "m", "10.0.0.2:18003", "monitor", "probe timed out 3 times")
    write_json(attempt.readiness_json, readiness.fail(failure))
    assert "lost: m 10.0.0.2:18003: probe timed out 3 times (seen by the monitor" in status_text(look(attempt.path))


def test_a_living_local_controller_is_alive(tmp_path: Path) -> None:
    attempt = running(tmp_path, None, pid=os.getpid())
    [view] = look(attempt.run_dir)
    assert view.alive is True
    assert "controller is gone" not in status_text([view])


def test_a_killed_local_controller_is_gone(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        attempt = running(tmp_path, None, pid=process.pid)
        assert look(attempt.path)[0].alive is True
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert look(attempt.path)[0].alive is False  # a zombie, still in the process table
    assert f"the controller is gone: dd-proxy cancel {attempt.run_dir}" in status_text(look(attempt.path))


def test_watching_what_nobody_runs_any_more_ends_at_the_first_look(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[AttemptDir] = []

    def counted(directory: AttemptDir) -> AttemptView:
        looks.append(directory)
        return look_at(directory)

    monkeypatch.setattr(watching, "look_at", counted)
    monkeypatch.setattr(progress, "INTERVAL_S", 600.0)  # a second round would not come within this test
    attempt = running(tmp_path, None)
    assert main_status(attempt.run_dir, as_json=False, watch=True) == 0
    assert looks == [attempt]
    assert "controller is gone" in capsys.readouterr().out


def test_a_controller_on_another_machine_cannot_be_judged(tmp_path: Path) -> None:
    [view] = look(running(tmp_path, None, host="elsewhere").path)
    assert view.alive is None


def test_without_slurm_the_files_are_shown_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    views = look(running(tmp_path, JobRef(NO_SUCH_JOB, 0)).path)
    assert status_json(views)["attempts"][0]["controller_alive"] is None
    assert "Slurm cannot be asked: scontrol not found" in status_text(views)


@pytest.mark.slurm
def test_slurm_is_asked_about_the_job_of_an_attempt(slurm_here: MiniSlurm, tmp_path: Path) -> None:
    submitted = submit(small_plan(tmp_path, LATER))
    [view] = look(submitted.attempt.path)
    assert view.job is not None
    assert (view.job.job_id, view.job.state) == (submitted.job_id, "PENDING")
    assert f"job {submitted.job_id}  PENDING" in status_text([view])
    assert status_json([view])["attempts"][0]["slurm"]["state"] == "PENDING"
    # What Slurm says about a later start of the job is not about this attempt.
    earlier = replace(view.attempt, job=JobRef(submitted.job_id, 1))
    write_json(submitted.attempt.attempt_json, earlier)
    assert look(submitted.attempt.path)[0].job is None
    assert slurm_here.nodes


@pytest.mark.slurm
def test_a_job_that_is_gone_leaves_no_controller(slurm_here: MiniSlurm, tmp_path: Path) -> None:
    job_id = slurm_here.run("sbatch", "--parsable", "-o", "/dev/null", "--wrap", "sleep 600").strip()
    slurm_here.wait_job(job_id, "RUNNING")
    attempt = running(tmp_path, JobRef(job_id, 0))
    assert look(attempt.path)[0].alive is True
    slurm_here.run("scancel", job_id)
    slurm_here.wait_job(job_id, "CANCELLED")
    [view] = look(attempt.path)
    assert view.orphaned
    assert "the controller is gone" in status_text([view])


@pytest.mark.slurm
def test_a_job_that_ended_without_a_controller_points_to_its_output(slurm_here: MiniSlurm, tmp_path: Path) -> None:
    submitted = submit(small_plan(tmp_path, LATER))
    slurm_here.run("scancel", submitted.job_id)
    slurm_here.wait_job(submitted.job_id, "CANCELLED")
    [view] = look(submitted.attempt.path)
    assert view.orphaned  # so that nobody goes on watching it
    text = status_text([view])
    assert f"the job ended before its controller had started: see {submitted.attempt.run_dir}/slurm.out" in text


def test_following_as_json_ends_with_the_attempt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    attempt = ended(tmp_path, None, Classification.SUCCEEDED)
    assert main_status(attempt.path, as_json=True, watch=True) == 0
    [line] = capsys.readouterr().out.splitlines()
    assert json.loads(line)["attempts"][0]["attempt"]["state"] == "succeeded"


def test_replicas_are_listed_in_their_order(tmp_path: Path) -> None:
    attempt = running(tmp_path, None, pid=os.getpid())
    names = ["client", "m-endpoint", *(f"m-replica-{index}" for index in range(12)), "monitor"]
    for name in names:
        write_json(attempt.step_json(name), StepIdentity(name, "replica", None, 0, None, "here", 1, utc_now()))
    assert [step.name for step in look(attempt.path)[0].steps] == names


def test_a_directory_that_is_no_run_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(LayoutError, match="holds no attempt"):
        look(tmp_path)
    attempt = opened(tmp_path, None)
    attempt.attempt_json.unlink()
    with pytest.raises(LayoutError, match="never opened"):
        look(attempt.path)
    attempt.attempt_json.write_text("{")
    with pytest.raises(StateError, match=r"attempt\.json"):
        look(attempt.path)
