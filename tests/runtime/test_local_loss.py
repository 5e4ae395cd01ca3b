"""The lifecycle on one machine: a required service is lost, or only seems to be."""

from __future__ import annotations

import os
import signal
import sys

from tests.runtime.lifecycle import FAKE, LiveStream, LocalRun, Scenario, StartLocal, client, fault
from tests.runtime.minislurm import wait_until


def _assert_lost(run: LocalRun, source: str, backend: str | None, deployment: str | None = "llama") -> str:
    """Check everything that a lost service must leave behind, and return the recorded reason."""
    assert run.wait() == 1
    record = run.attempt.read("attempt.json")
    assert (record["state"], record["classification"]) == ("failed", "service_lost")
    readiness = run.attempt.read("readiness.json")
    assert readiness["state"] == "failed"
    failure = readiness["health_failure"]
    assert (failure["source"], failure["backend"], failure["deployment"]) == (source, backend, deployment)
    assert not (run.attempt.path / "winner.json").exists()
    assert run.attempt.read("report.json")["classification"] == "service_lost"
    return str(failure["reason"])


def _order(run: LocalRun, *wanted: tuple[str, str, str]) -> list[int]:
    """Give the positions of events by kind, step and signal."""
    told = [(one["event"], one.get("step", ""), one.get("signal", "")) for one in run.attempt.events()]
    return [told.index(one) for one in wanted]


def test_a_killed_replica_is_found_by_its_launcher(start_local: StartLocal) -> None:
    run = start_local(Scenario(client=client(-3), monitor_interval="30s"))
    run.attempt.wait_ready()
    lost = run.attempt.replica(1)
    os.kill(run.attempt.pid("llama-replica-1"), signal.SIGKILL)
    assert "llama-replica-1 was killed by SIGKILL" in _assert_lost(run, "launcher", lost)


def test_a_lost_service_stops_the_client_first_and_the_replicas_last(start_local: StartLocal) -> None:
    run = start_local(Scenario(client=client(-3)))
    run.attempt.wait_ready()
    os.kill(run.attempt.pid("llama-replica-1"), signal.SIGKILL)
    assert run.wait() == 1
    positions = _order(
        run,
        ("signal_sent", "client", "TERM"),
        ("signal_sent", "monitor", "TERM"),
        ("signal_sent", "llama-endpoint", "TERM"),
        ("drain_ended", "llama-endpoint", ""),
        ("signal_sent", "llama-replica-0", "TERM"),
    )
    assert positions == sorted(positions)


def test_an_unhealthy_replica_that_lives_is_found_by_the_monitor(start_local: StartLocal) -> None:
    run = start_local(Scenario(client=client(-3)))
    run.attempt.wait_ready()
    lost = run.attempt.replica(0)
    fault(lost, kind="unhealthy")
    assert "probe failed (status 503) 3 times" in _assert_lost(run, "monitor", lost)


def test_a_hanging_replica_is_found_by_the_monitor(start_local: StartLocal) -> None:
    run = start_local(Scenario(client=client(-3), endpoint={"health_timeout": 0.5}))
    run.attempt.wait_ready()
    lost = run.attempt.replica(0)
    os.kill(run.attempt.pid("llama-replica-0"), signal.SIGSTOP)
    assert "probe timed out 3 times" in _assert_lost(run, "monitor", lost)


def test_a_loss_that_cannot_be_recorded_still_takes_the_steps_down_in_order(start_local: StartLocal) -> None:
    breaking = (
        "import json, os, signal, sys\nos.chdir(sys.argv[1])\nos.unlink('readiness.json')\nos.mkdir('readiness.json')\n"
        "os.kill(json.load(open('steps/llama-replica-1.json'))['pid'], signal.SIGKILL)\nsignal.pause()"
    )
    run = start_local(Scenario(client=[sys.executable, "-c", breaking, "{attempt_dir}"], monitor_interval="30s"))
    assert run.wait() == 1
    assert run.attempt.read("attempt.json")["classification"] == "service_lost"
    assert run.attempt.events("readiness_failed")
    assert run.attempt.events("signal_sent", step="llama-replica-0", signal="TERM")


def test_one_failed_probe_is_no_loss(start_local: StartLocal) -> None:
    run = start_local(Scenario(client=client(-3), monitor_interval="2s"))
    run.attempt.wait_ready()
    fault(run.attempt.replica(0), kind="unhealthy")
    wait_until(lambda: run.attempt.read("health.json")["deployments"][0]["healthy"] == 1, 10)
    fault(run.attempt.replica(0), kind="clear")
    wait_until(lambda: run.attempt.read("readiness.json")["deployments"][0]["ready_backends"] == 2, 10)
    assert run.attempt.read("health.json")["failure"] is None
    run.process.terminate()
    assert run.wait() == 143


def test_a_busy_replica_is_not_lost_although_its_health_path_is_silent(start_local: StartLocal) -> None:
    run = start_local(
        Scenario(
            replica=[*FAKE, "--token-interval", "0.1"],
            client=client(-3),
            endpoint={"health_timeout": 1.0, "health_interval": 0.3},
            monitor_interval="200ms",
        )
    )
    run.attempt.wait_ready()
    streams = [LiveStream(run.attempt.endpoint(), tokens=80) for _ in range(2)]
    for index in (0, 1):
        fault(run.attempt.replica(index), kind="unhealthy", how="hang")
    assert all(stream.complete() for stream in streams)  # eight seconds: a silent idle replica gets under four
    assert not run.attempt.events("health_failure")
    assert "monitor" in _assert_lost_source(run)  # idle now: silence means what it says


def _assert_lost_source(run: LocalRun) -> str:
    assert run.wait() == 1
    return str(run.attempt.read("readiness.json")["health_failure"]["source"])


def test_a_killed_endpoint_is_found_by_its_launcher(start_local: StartLocal) -> None:
    run = start_local(Scenario(client=client(-3), monitor_interval="30s"))
    run.attempt.wait_ready()
    side_port = run.attempt.read("readiness.json")["deployments"][0]["metrics"]
    os.kill(run.attempt.pid("llama-endpoint"), signal.SIGKILL)
    assert "llama-endpoint was killed by SIGKILL" in _assert_lost(run, "launcher", side_port)
    report = run.attempt.read("report.json")
    assert report["endpoints"][0]["requests"] is None


def test_a_hanging_endpoint_is_found_by_the_monitor(start_local: StartLocal) -> None:
    run = start_local(Scenario(client=client(-3), drain_timeout="1s"))
    run.attempt.wait_ready()
    side_port = run.attempt.read("readiness.json")["deployments"][0]["metrics"]
    os.kill(run.attempt.pid("llama-endpoint"), signal.SIGSTOP)
    assert "side port" in _assert_lost(run, "monitor", side_port)
    assert run.attempt.events("signal_sent", step="llama-endpoint", signal="KILL")


def test_a_killed_monitor_is_a_lost_service(start_local: StartLocal) -> None:
    run = start_local(Scenario(client=client(-3)))
    run.attempt.wait_ready()
    os.kill(run.attempt.pid("monitor"), signal.SIGKILL)
    assert "monitor was killed by SIGKILL" in _assert_lost(run, "launcher", None, None)


def test_a_loss_between_the_clients_end_and_the_final_snapshot_is_never_a_success(start_local: StartLocal) -> None:
    run = start_local(Scenario(client=client(-3)))
    run.attempt.wait_ready()
    monitor, lost = run.attempt.pid("monitor"), run.attempt.replica(0)
    os.kill(monitor, signal.SIGSTOP)  # it cannot take its final snapshot yet
    os.kill(run.attempt.pid("client"), signal.SIGTERM)  # the client ends with 0, its output complete
    run.attempt.wait_event("end_cause", trigger="client_exited")
    os.kill(run.attempt.pid("llama-replica-0"), signal.SIGKILL)
    run.attempt.wait_event("step_exited", step="llama-replica-0")
    os.kill(monitor, signal.SIGCONT)
    assert "llama-replica-0 was killed" in _assert_lost(run, "launcher", lost)
    assert run.attempt.read("report.json")["outputs"][0]["records"] == 3


def test_a_monitor_without_a_final_snapshot_is_never_a_success(start_local: StartLocal) -> None:
    run = start_local(Scenario(client=client(-3)))
    run.attempt.wait_ready()
    os.kill(run.attempt.pid("monitor"), signal.SIGSTOP)
    os.kill(run.attempt.pid("client"), signal.SIGTERM)
    assert "left no final snapshot" in _assert_lost(run, "launcher", None, None)


def test_a_failed_client_stays_the_cause_when_a_service_is_lost_during_the_cleanup(start_local: StartLocal) -> None:
    run = start_local(Scenario(client=client(-3, code=4)))
    run.attempt.wait_ready()
    monitor = run.attempt.pid("monitor")
    os.kill(monitor, signal.SIGSTOP)
    os.kill(run.attempt.pid("client"), signal.SIGTERM)
    run.attempt.wait_event("ending")
    os.kill(run.attempt.pid("llama-replica-0"), signal.SIGKILL)
    run.attempt.wait_event("step_exited", step="llama-replica-0")
    os.kill(monitor, signal.SIGCONT)
    assert run.wait() == 1
    assert run.attempt.read("attempt.json")["classification"] == "client_failed"
    assert run.attempt.read("readiness.json")["health_failure"]["backend"] == run.attempt.replica(0)
