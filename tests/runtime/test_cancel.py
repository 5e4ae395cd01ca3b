"""`cancel` ends a run in order whoever still lives, and says how it ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtime import slurm
from runtime.cancel import CancelError, cancel, main_cancel
from runtime.look import look
from runtime.parse import JobInfo
from runtime.slurm import Failure, SlurmError
from runtime.state import AttemptRecord, Classification, JobRef, read_attempt, read_readiness, write_json
from runtime.status import status_text
from runtime.submit import submit
from tests.runtime.attempts import NO_SUCH_JOB, ended, opened, running, small_plan
from tests.runtime.minislurm import MiniSlurm, wait_until
from tests.runtime.test_submit import LATER


def _record(directory: Path) -> AttemptRecord:
    record = read_attempt(directory)
    assert record is not None
    return record


@pytest.mark.slurm
def test_a_pending_job_is_cancelled_and_its_attempt_closed(slurm_here: MiniSlurm, tmp_path: Path) -> None:
    submitted = submit(small_plan(tmp_path, LATER))
    assert "was cancelled before it started" in cancel(submitted.attempt.run_dir)
    record, readiness = _record(submitted.attempt.path), read_readiness(submitted.attempt.path)
    assert (record.state, record.classification) == ("cancelled", "cancelled")
    assert readiness is not None
    assert readiness.state == "stopped"
    assert slurm_here.job(submitted.job_id)["JobState"] == "CANCELLED"
    assert "had ended already: cancelled" in cancel(submitted.attempt.path)


@pytest.mark.slurm
def test_a_job_that_was_cancelled_behind_our_back_while_pending_is_closed(
    slurm_here: MiniSlurm, tmp_path: Path
) -> None:
    submitted = submit(small_plan(tmp_path, LATER))
    slurm_here.run("scancel", submitted.job_id)
    slurm_here.wait_job(submitted.job_id, "CANCELLED")
    assert "was cancelled before it started" in cancel(submitted.attempt.run_dir)
    assert _record(submitted.attempt.path).state == "cancelled"


@pytest.mark.slurm
def test_a_gone_controller_with_a_job_that_is_still_there(slurm_here: MiniSlurm, tmp_path: Path) -> None:
    """The job runs on, requeued and without a controller of ours: it goes, and the attempt is closed."""
    job_id = slurm_here.run("sbatch", "--parsable", "--requeue", "-o", "/dev/null", "--wrap", "sleep 600").strip()
    slurm_here.wait_job(job_id, "RUNNING")
    attempt = running(tmp_path, JobRef(job_id, 0))
    slurm_here.run("scontrol", "requeue", job_id)
    slurm_here.wait_job(job_id, "PENDING")
    with pytest.raises(CancelError, match=f"job {job_id} was cancelled"):
        cancel(attempt.run_dir)
    assert slurm_here.job(job_id)["JobState"] == "CANCELLED"
    assert _record(attempt.path).classification == "internal_error"


@pytest.mark.slurm
def test_an_ended_attempt_whose_job_waits_for_another_one(slurm_here: MiniSlurm, tmp_path: Path) -> None:
    job_id = slurm_here.run("sbatch", "--parsable", "--requeue", "-o", "/dev/null", "--wrap", "sleep 600").strip()
    slurm_here.wait_job(job_id, "RUNNING")
    slurm_here.run("scontrol", "requeue", job_id)
    slurm_here.wait_job(job_id, "PENDING")
    attempt = ended(tmp_path, JobRef(job_id, 0), Classification.PREEMPTED)
    assert f"job {job_id}  PENDING (BeginTime)  restarts 1  requeued for another attempt" in status_text(
        look(attempt.path)
    )
    text = cancel(attempt.run_dir)
    assert "had ended already: failed (preempted)" in text
    assert f"job {job_id}, requeued for another attempt, was cancelled" in text
    assert slurm_here.job(job_id)["JobState"] == "CANCELLED"


@pytest.mark.slurm
def test_a_job_that_was_requeued_before_it_had_a_controller(slurm_here: MiniSlurm, tmp_path: Path) -> None:
    job_id = slurm_here.run("sbatch", "--parsable", "--requeue", "-o", "/dev/null", "--wrap", "sleep 600").strip()
    slurm_here.wait_job(job_id, "RUNNING")
    slurm_here.run("scontrol", "requeue", job_id)
    slurm_here.wait_job(job_id, "PENDING")
    attempt = opened(tmp_path, JobRef(job_id, 0))
    assert "was cancelled before it started" in cancel(attempt.run_dir)
    assert slurm_here.job(job_id)["JobState"] == "CANCELLED"


@pytest.mark.slurm
def test_a_gone_controller_whose_job_is_gone_too(slurm_here: MiniSlurm, tmp_path: Path) -> None:
    attempt = running(tmp_path, JobRef(NO_SUCH_JOB, 0))
    with pytest.raises(CancelError, match=r"its controller is gone; it is closed as failed \(internal_error\)"):
        cancel(attempt.run_dir)
    readiness = read_readiness(attempt.path)
    assert readiness is not None
    assert readiness.state == "stopped"
    assert slurm_here.nodes


def test_without_an_answer_from_slurm_nothing_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    attempt = running(tmp_path, JobRef(NO_SUCH_JOB, 0))
    with pytest.raises(CancelError, match="was not told to stop: scontrol not found"):
        cancel(attempt.run_dir)
    assert _record(attempt.path).state == "running"


def _held_job(slurm_here: MiniSlurm) -> str:
    return slurm_here.run("sbatch", "--parsable", "--hold", "-o", "/dev/null", "--wrap", "sleep 600").strip()


def _unreachable_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next question for a job fail, as it does while slurmctld is busy."""
    show_job, failures = slurm.show_job, [SlurmError(Failure.UNREACHABLE, "Socket timed out")]

    def show(job_id: str) -> JobInfo | None:
        if failures:
            raise failures.pop()
        return show_job(job_id)

    monkeypatch.setattr(slurm, "show_job", show)


@pytest.mark.slurm
def test_one_failed_question_is_not_the_end_of_a_controller(
    slurm_here: MiniSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = opened(tmp_path, JobRef(_held_job(slurm_here), 0))
    _unreachable_once(monkeypatch)
    assert "was cancelled before it started" in cancel(attempt.run_dir)
    assert _record(attempt.path).classification == "cancelled"


@pytest.mark.slurm
def test_one_failed_question_does_not_hide_a_requeued_job(
    slurm_here: MiniSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = _held_job(slurm_here)
    attempt = ended(tmp_path, JobRef(job_id, 7), Classification.PREEMPTED)  # whose next start waits
    _unreachable_once(monkeypatch)
    assert f"job {job_id}, requeued for another attempt, was cancelled" in cancel(attempt.run_dir)


@pytest.mark.parametrize("classification", list(Classification))
def test_an_attempt_that_had_ended_is_left_alone(
    tmp_path: Path, classification: Classification, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # needs no Slurm
    attempt = ended(tmp_path, JobRef(NO_SUCH_JOB, 0), classification, "because")
    before = attempt.attempt_json.read_bytes()
    assert main_cancel(attempt.run_dir) == 0
    assert classification in capsys.readouterr().out
    assert attempt.attempt_json.read_bytes() == before


def test_a_local_controller_is_asked_and_waited_for(tmp_path: Path) -> None:
    stand_in = (
        "import signal, sys, pathlib\n"
        "from runtime.state import read_attempt, write_json, Classification\n"
        "directory = pathlib.Path(sys.argv[1])\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
        "print('ready', flush=True)\n"
        "signal.sigwait([signal.SIGTERM])\n"
        "record = read_attempt(directory).end(Classification.CANCELLED, 'cancelled by SIGTERM')\n"
        "write_json(directory / 'attempt.json', record)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.argv[1] = input(); exec(sys.argv[2])", "", stand_in],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        attempt = running(tmp_path, None, pid=process.pid)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{attempt.path}\n")
        process.stdin.flush()
        assert process.stdout.readline() == "ready\n"
        assert cancel(attempt.run_dir) == f"attempt 1 of {attempt.run} was cancelled"
        assert process.wait(10) == 0


def test_a_local_controller_that_was_killed_is_closed_as_an_internal_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    attempt = running(tmp_path, None)
    assert main_cancel(attempt.run_dir) == 1
    assert "its controller is gone" in capsys.readouterr().err
    assert _record(attempt.path).classification == "internal_error"
    assert main_cancel(attempt.run_dir) == 0


def test_what_a_killed_controller_left_is_closed_whole_and_said_once(tmp_path: Path) -> None:
    attempt = running(tmp_path, None)
    before = read_readiness(attempt.path)
    with pytest.raises(CancelError) as caught:
        cancel(attempt.run_dir)
    closed = "its controller is gone; it is closed as failed (internal_error)"
    assert str(caught.value) == f"attempt 1 of {attempt.run}: {closed}"
    after = read_readiness(attempt.path)
    assert before is not None and after is not None
    assert after.revision == before.revision + 1
    assert [one.state for one in after.deployments] == ["stopped"]


def test_a_winner_that_was_published_before_the_controller_died_stays_a_success(tmp_path: Path) -> None:
    attempt = running(tmp_path, None)
    write_json(attempt.winner_json, {"schema_version": 1})
    assert cancel(attempt.run_dir) == f"attempt 1 of {attempt.run} ended by itself meanwhile: succeeded"
    readiness = read_readiness(attempt.path)
    assert readiness is not None
    assert (_record(attempt.path).state, readiness.state) == ("succeeded", "stopped")


def test_a_controller_that_dies_of_the_signal_is_noticed(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        attempt = running(tmp_path, None, pid=process.pid)
        with pytest.raises(CancelError, match="its controller is gone"):
            cancel(attempt.run_dir)
    assert _record(attempt.path).state == "failed"


def test_a_process_that_inherited_the_number_is_not_signalled(tmp_path: Path) -> None:
    attempt = running(tmp_path, None)
    with subprocess.Popen(["sleep", "600"]) as later:
        try:
            text = attempt.attempt_json.read_text().replace('"created_at": "20', '"created_at": "19')
            attempt.attempt_json.write_text(text.replace("4194305", str(later.pid)))
            with pytest.raises(CancelError, match="its controller is gone"):
                cancel(attempt.run_dir)
            assert later.poll() is None
        finally:
            later.kill()
    wait_until(lambda: _record(attempt.path).state.terminal, 1)


def test_a_local_run_of_another_machine_is_left_to_it(tmp_path: Path) -> None:
    attempt = running(tmp_path, None, host="elsewhere")
    with pytest.raises(CancelError, match="runs on elsewhere: cancel it there"):
        cancel(attempt.run_dir)
    assert _record(attempt.path).state == "running"


def test_a_local_run_that_never_had_a_controller_is_closed(tmp_path: Path) -> None:
    attempt = opened(tmp_path, None)
    with pytest.raises(CancelError, match="its controller is gone"):
        cancel(attempt.run_dir)
    assert _record(attempt.path).state == "failed"
