"""The lifecycle on a real Slurm of three nodes: cancel, scancel, time limit, requeue, lost nodes, and live streams."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from tests.runtime.jobs import SlurmRun, StartSlurm, lost_node, scenario
from tests.runtime.lifecycle import CLIENT, FAKE, GRACEFUL, LiveStream, client
from tests.runtime.minislurm import MiniSlurm, Shape, wait_until

pytestmark = pytest.mark.slurm

LASTING = [*GRACEFUL, "--events", "40"]
STREAMING = [*FAKE, "--token-interval", "0.1"]
# Stays until TERM in the first attempt, delivers at once in the second.
SECOND_TIME = [
    sys.executable, "-c", "import sys; sys.argv[2] = '-3' if 'attempt-1' in sys.argv[1] else '3'\n" + CLIENT,
    "{attempt_dir}/out.jsonl", "3", "0",
]  # fmt: skip


def test_a_live_stream_ends_complete_when_the_client_ends(start_slurm: StartSlurm) -> None:
    run = start_slurm(scenario(client=client(-3), replica=STREAMING, drain_timeout="10s"))
    run.attempt.wait_ready()
    stream = LiveStream(run.attempt.endpoint())
    run.kill_step("client", signal.SIGTERM)
    assert stream.complete(), run.attempt.story()
    assert run.attempt.active_at_drain() == 1
    run.end("succeeded")
    assert run.attempt.read("report.json")["endpoints"][0]["responses"] == {"200": 1}


def test_a_live_stream_ends_complete_when_another_service_is_lost(start_slurm: StartSlurm) -> None:
    run = start_slurm(scenario(client=client(-3), replica=STREAMING, drain_timeout="10s"))
    run.attempt.wait_ready()
    stream = LiveStream(run.attempt.endpoint())
    run.kill_step("llama-replica-4", signal.SIGKILL)
    assert stream.complete(), run.attempt.story()
    assert run.attempt.active_at_drain() == 1
    run.end("service_lost")


def test_cancel_drains_in_order_and_says_how_it_ended(start_slurm: StartSlurm) -> None:
    run = start_slurm(scenario(client=client(-3), replica=STREAMING, drain_timeout="10s"))
    run.attempt.wait_ready()
    stream = LiveStream(run.attempt.endpoint())
    done = run.cancel()
    assert done.returncode == 0, done.stderr
    assert stream.complete(), run.attempt.story()
    assert run.attempt.active_at_drain() == 1
    assert "cancelled by SIGTERM" in run.end("cancelled")
    told = [(one["event"], one.get("step"), one.get("signal")) for one in run.attempt.events()]
    endpoint_done = told.index(("step_exited", "llama-endpoint", None))
    assert told.index(("signal_sent", "monitor", "TERM")) < told.index(("signal_sent", "llama-endpoint", "TERM"))
    assert all(endpoint_done < told.index(("signal_sent", f"llama-replica-{index}", "TERM")) for index in range(5))
    again = run.cancel()
    assert again.returncode == 0
    assert "ended already" in again.stdout + again.stderr


def test_a_plain_scancel_is_a_cancel_and_cuts_no_stream(start_slurm: StartSlurm) -> None:
    run = start_slurm(scenario(client=client(-3), replica=LASTING, drain_timeout="10s"))
    run.attempt.wait_ready()
    stream = LiveStream(run.attempt.endpoint())
    run.slurm.run("scancel", run.job_id)
    assert stream.complete(), run.attempt.story()
    assert run.attempt.active_at_drain() == 1
    run.end("cancelled")
    assert run.attempt.read("readiness.json")["state"] == "stopped"
    assert run.attempt.read("readiness.json")["health_failure"] is None


def test_the_time_limit_ends_in_order_and_cuts_no_stream(start_slurm: StartSlurm) -> None:
    run = start_slurm(scenario(client=client(-3), replica=STREAMING, time="00:01:00"))
    run.attempt.wait_ready()
    complete: list[bool] = []
    while not run.attempt.events("drain_ended"):  # one stream after the other, so that one runs when the drain begins
        try:
            stream = LiveStream(run.attempt.endpoint(), tokens=20)
        except (OSError, AssertionError):
            break
        complete.append(stream.complete())
    assert all(complete) and complete
    assert "time limit" in run.end("timed_out")
    assert run.attempt.events("signal_received", signal="SIGUSR1")
    assert run.attempt.events("drain_started", by="controller")
    assert run.attempt.read("report.json")["endpoints"][0]["incomplete"] == 0
    assert run.slurm.job(run.job_id)["JobState"] != "TIMEOUT"


def test_a_term_to_the_launcher_would_have_cut_the_stream(start_slurm: StartSlurm) -> None:
    run = start_slurm(scenario(client=client(-3), replica=STREAMING, drain_timeout="10s"))
    run.attempt.wait_ready()
    stream = LiveStream(run.attempt.endpoint())
    os.kill(run.launcher("llama-endpoint"), signal.SIGTERM)
    assert not stream.complete()
    run.end("service_lost")


def test_an_identity_that_does_not_match_is_never_signalled(start_slurm: StartSlurm) -> None:
    run = start_slurm(scenario(client=client(-3)))
    run.attempt.wait_ready()
    path = run.attempt.path / "steps" / "llama-endpoint.json"
    recorded = json.loads(path.read_text())
    recorded["step_id"] = json.loads((run.attempt.path / "steps" / "llama-replica-4.json").read_text())["step_id"]
    path.write_text(json.dumps(recorded))
    run.cancel()
    run.end("cancelled")
    refused = run.attempt.events("signal_not_sent", step="llama-endpoint")[0]
    assert "was recorded as llama-endpoint, Slurm shows llama-replica-4" in refused["reason"]
    told = [(one["event"], one.get("step"), one.get("signal")) for one in run.attempt.events()]
    assert told.index(("signal_sent", "llama-endpoint", "KILL")) < told.index(("step_exited", "llama-replica-4", None))


def test_a_requeue_gives_a_second_attempt_beside_the_first(start_slurm: StartSlurm) -> None:
    run = start_slurm(scenario(client=SECOND_TIME))
    run.attempt.wait_ready()
    run.slurm.run("scontrol", "requeue", run.job_id)
    assert "requeued" in run.end("preempted")
    second = run.next_attempt()
    run.end("succeeded", attempt=second)
    assert second.read("attempt.json")["job"] == {"id": run.job_id, "restart_count": 1}
    assert second.read("steps/client.json")["restart_count"] == 1
    assert (second.path / "winner.json").exists() and not (run.attempt.path / "winner.json").exists()
    assert run.attempt.read("readiness.json")["state"] == "stopped"
    status = json.loads(run.command("status", str(run.run_dir), "--json").stdout)
    assert [one["attempt"]["classification"] for one in status["attempts"]] == ["preempted", "succeeded"]


def test_a_preempted_attempt_whose_controller_was_killed_is_closed_by_the_next_one(start_slurm: StartSlurm) -> None:
    run = start_slurm(scenario(client=SECOND_TIME))
    run.attempt.wait_ready()
    os.kill(run.attempt.read("attempt.json")["controller"]["pid"], signal.SIGSTOP)  # it will hear nothing until KILL
    pid = run.attempt.read("attempt.json")["controller"]["pid"]
    run.slurm.run("scontrol", "requeue", run.job_id)
    os.kill(pid, signal.SIGKILL)
    second = run.next_attempt()
    run.end("preempted")
    run.end("succeeded", attempt=second)
    assert not second.events("signal_not_sent")


def test_preemption_by_another_job_is_told_from_a_loss(start_slurm: StartSlurm, slurm: MiniSlurm) -> None:
    run = start_slurm(scenario(client=client(-3), partition="main"))
    run.attempt.wait_ready()
    urgent = slurm.run(
        *("sbatch", "--parsable", "-p", "urgent", "-N", "3", "--exclusive", "-o", "/dev/null", "--wrap", "true")
    ).strip()
    run.end("preempted")
    assert run.attempt.read("readiness.json")["health_failure"] is None
    slurm.wait_job(urgent, "COMPLETED")
    assert run.cancel().returncode == 0


def test_a_lost_node_is_told_from_a_cancel(start_slurm: StartSlurm, slurm: MiniSlurm) -> None:
    run = start_slurm(scenario(client=client(-3), sbatch=["--no-requeue"]))
    run.attempt.wait_ready()
    with lost_node(slurm, "node3"):
        record = run.attempt.wait_state("failed")
    assert record["classification"] == "node_lost", run.attempt.story()
    assert "node3" in run.end("node_lost")


def test_a_requeue_after_a_lost_node_is_told_from_a_preemption(start_slurm: StartSlurm, slurm: MiniSlurm) -> None:
    run = start_slurm(scenario(client=SECOND_TIME, nodes=2, replicas=2))
    run.attempt.wait_ready()
    nodes = [one["name"] for one in run.attempt.read("services.json")["nodes"]]
    with lost_node(slurm, nodes[1]):
        record = run.attempt.wait_state("failed")
        assert record["classification"] == "node_lost", run.attempt.story()
        assert nodes[1] in record["reason"]
        second = run.next_attempt()
        assert second.wait_state("succeeded")["job"]["restart_count"] == 1
    run.end("succeeded", attempt=second)


@pytest.mark.usefixtures("slurm")  # it knows what to say where there is no Slurm
def test_a_preemption_with_a_grace_time_is_no_lost_service(tmp_path: Path) -> None:
    partition = "PartitionName=grace Nodes=ALL PriorityTier=1 PreemptMode=CANCEL GraceTime=30 MaxTime=INFINITE State=UP"
    with MiniSlurm(Shape(extra=[partition])) as cluster:
        plan = scenario(client=client(-3), replica=LASTING, drain_timeout="10s", partition="grace").write(tmp_path)
        run = SlurmRun(cluster, plan)
        run.attempt.wait_ready()
        stream = LiveStream(run.attempt.endpoint())
        cluster.run("sbatch", "-p", "urgent", "-N", "3", "--exclusive", "-o", "/dev/null", "--wrap", "true")
        assert stream.complete(), run.attempt.story()
        assert run.attempt.active_at_drain() == 1
        assert "preempts" in run.end("preempted")
        assert run.attempt.read("readiness.json")["health_failure"] is None


def test_a_killed_controller_leaves_whole_files_and_no_step(start_slurm: StartSlurm) -> None:
    run = start_slurm(scenario(client=client(-3), monitor_interval="50ms"))
    stop, broken = threading.Event(), []

    def read_all() -> None:
        while not stop.is_set():
            for name in ("attempt.json", "readiness.json", "health.json"):
                try:
                    run.attempt.read(name)
                except FileNotFoundError:
                    continue
                except ValueError as error:
                    broken.append(f"{name}: {error}")

    reader = threading.Thread(target=read_all)
    reader.start()
    try:
        run.attempt.wait_ready()
        os.kill(run.attempt.read("attempt.json")["controller"]["pid"], signal.SIGKILL)
        wait_until(lambda: run.slurm.job(run.job_id)["JobState"] in ("FAILED", "CANCELLED"), 30)
        run.assert_nothing_left()
    finally:
        stop.set()
        reader.join()
    assert broken == []
    status = json.loads(run.command("status", str(run.run_dir), "--json").stdout)["attempts"][0]
    assert (status["attempt"]["state"], status["controller_alive"]) == ("running", False)
    assert run.cancel().returncode == 1
    assert run.attempt.read("attempt.json")["classification"] == "internal_error"


def test_a_kill_wait_that_is_too_short_is_told_in_the_events(start_slurm: StartSlurm) -> None:
    run = start_slurm(scenario(replicas=1, drain_timeout="45s"))
    run.end("succeeded")
    warning = run.attempt.events("kill_wait_short")[0]["reason"]
    assert "dd-proxy cancel ends the attempt in order" in warning
