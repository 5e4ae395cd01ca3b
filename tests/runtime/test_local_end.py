"""The lifecycle on one machine: signals, cancel, drains, and a controller that is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from runtime.own import own_command
from tests.runtime.lifecycle import FAKE, Attempt, LiveStream, Scenario, StartLocal, client
from tests.runtime.minislurm import wait_until

STREAMING = Scenario(replica=[*FAKE, "--token-interval", "0.1"], client=client(-3), drain_timeout="10s")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_cancels_in_order(start_local: StartLocal, number: signal.Signals, code: int) -> None:
    run = start_local(Scenario(client=client(-3)))
    run.attempt.wait_ready()
    run.process.send_signal(number)
    assert run.wait() == code
    record = run.attempt.read("attempt.json")
    assert (record["state"], record["classification"]) == ("cancelled", "cancelled")
    assert number.name in record["reason"]
    readiness = run.attempt.read("readiness.json")
    assert (readiness["state"], readiness["health_failure"]) == ("stopped", None)
    assert run.attempt.read("report.json")["outputs"][0]["records"] == 3


def test_a_signal_at_any_moment_of_the_start_cancels_and_leaves_nothing(
    start_local: StartLocal, tmp_path: Path
) -> None:
    for step in ("", "llama-replica-0", "llama-endpoint", "monitor", "client"):
        run = start_local(Scenario(client=client(-3)))
        if step:
            run.attempt.wait_event("step_started", step=step)
        run.process.terminate()
        assert run.wait() == 143, (step, run.attempt.story())
        assert run.attempt.read("attempt.json")["classification"] == "cancelled"
        assert run.attempt.read("readiness.json")["state"] == "stopped"


def test_a_reader_of_stderr_who_takes_nothing_holds_up_nobody(tmp_path: Path) -> None:
    plan = Scenario(client=client(-3)).write(tmp_path)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 65536)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"x")
    os.set_blocking(writer, True)
    argv = [*own_command(), "run", str(plan), "--local"]
    with subprocess.Popen(argv, cwd=tmp_path, stdout=subprocess.PIPE, stderr=writer) as process:
        assert process.stdout is not None
        attempt = Attempt(Path(json.loads(process.stdout.readline())["attempt_dir"]))
        attempt.wait_ready()
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    os.close(reader)
    os.close(writer)


def test_an_exit_code_counts_although_children_are_ignored_where_the_run_was_started(tmp_path: Path) -> None:
    plan = Scenario(client=["false"], records=None).write(tmp_path)
    ignoring = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    argv = [sys.executable, "-c", ignoring, *own_command(), "run", str(plan), "--local"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "client_failed" in done.stderr


def test_further_signals_change_nothing(start_local: StartLocal) -> None:
    run = start_local(STREAMING)
    run.attempt.wait_ready()
    stream = LiveStream(run.attempt.endpoint(), tokens=30)
    run.process.terminate()
    run.attempt.wait_event("drain_started")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGTERM):
        run.process.send_signal(number)
    assert stream.complete()
    assert run.attempt.active_at_drain() == 1
    assert run.wait() == 143
    assert run.attempt.read("attempt.json")["reason"] == "cancelled by SIGTERM"


def test_cancel_ends_a_local_run_in_order_and_says_so(start_local: StartLocal) -> None:
    run = start_local(STREAMING)
    run.attempt.wait_ready()
    stream = LiveStream(run.attempt.endpoint(), tokens=30)
    cancel = [*own_command(), "cancel", str(run.attempt.path)]
    done = subprocess.run(cancel, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert stream.complete()
    assert run.attempt.active_at_drain() == 1
    assert run.wait() == 143
    again = subprocess.run(cancel, capture_output=True, text=True, timeout=30)
    assert again.returncode == 0
    assert "cancelled" in again.stdout + again.stderr


def test_a_live_stream_ends_complete_when_the_client_ends(start_local: StartLocal) -> None:
    run = start_local(STREAMING)
    run.attempt.wait_ready()
    stream = LiveStream(run.attempt.endpoint(), tokens=30)
    os.kill(run.attempt.pid("client"), signal.SIGTERM)
    assert stream.complete()
    assert run.attempt.active_at_drain() == 1
    assert run.wait() == 0
    assert run.attempt.read("report.json")["endpoints"][0]["responses"] == {"200": 1}


def test_a_live_stream_ends_complete_when_another_replica_is_lost(start_local: StartLocal) -> None:
    run = start_local(STREAMING)
    run.attempt.wait_ready()
    stream = LiveStream(run.attempt.endpoint(), tokens=30)  # the first stream is on the first replica
    os.kill(run.attempt.pid("llama-replica-1"), signal.SIGKILL)
    assert stream.complete()
    assert run.attempt.active_at_drain() == 1
    assert run.wait() == 1
    assert run.attempt.read("attempt.json")["classification"] == "service_lost"


def test_a_drain_that_takes_too_long_is_forced(start_local: StartLocal) -> None:
    run = start_local(Scenario(replica=[*FAKE, "--token-interval", "0.1"], client=client(-3), drain_timeout="1s"))
    run.attempt.wait_ready()
    stream = LiveStream(run.attempt.endpoint(), tokens=600)
    run.process.terminate()
    assert run.wait(20) == 143
    assert not stream.complete()


def test_steps_that_ignore_term_are_killed_after_their_stop_timeout(start_local: StartLocal) -> None:
    deaf = "import signal, subprocess, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); " \
           "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]); subprocess.run(sys.argv[1:])"  # fmt: skip
    run = start_local(Scenario(replica=[sys.executable, "-c", deaf, *FAKE], client=client(-3), stop_timeout="1s"))
    run.attempt.wait_ready()
    run.process.terminate()
    assert run.wait(20) == 143
    assert len(run.attempt.events("signal_sent", signal="KILL")) == 2


def test_a_killed_controller_takes_its_steps_along_and_leaves_whole_files(start_local: StartLocal) -> None:
    run = start_local(Scenario(client=client(-3), monitor_interval="50ms"))
    stop, broken = threading.Event(), []

    def read_all() -> None:
        while not stop.is_set():
            for name in ("attempt.json", "readiness.json", "health.json"):
                path = run.attempt.path / name
                if path.exists():
                    try:
                        json.loads(path.read_bytes())
                    except ValueError as error:
                        broken.append(f"{name}: {error}")

    reader = threading.Thread(target=read_all)
    reader.start()
    try:
        run.attempt.wait_ready()
        run.process.kill()
        run.process.wait()
        run.assert_nothing_left()
    finally:
        stop.set()
        reader.join()
    assert broken == []
    assert run.attempt.read("attempt.json")["state"] == "running"
    status = subprocess.run(
        [*own_command(), "status", str(run.attempt.path), "--json"], capture_output=True, text=True, timeout=30
    )
    assert json.loads(status.stdout)["attempts"][0]["controller_alive"] is False
    cancel = subprocess.run(
        [*own_command(), "cancel", str(run.attempt.path)], capture_output=True, text=True, timeout=30
    )
    assert cancel.returncode == 1
    assert run.attempt.read("attempt.json")["classification"] == "internal_error"


def test_what_a_replica_started_dies_with_a_killed_controller_too(start_local: StartLocal) -> None:
    forking = "import subprocess, sys; subprocess.run(sys.argv[1:])"
    run = start_local(Scenario(replica=[sys.executable, "-c", forking, *FAKE], client=client(-3)))
    run.attempt.wait_ready()
    wait_until(lambda: len(run.left()) >= 8, 10)  # controller, warden, two replicas with a child each, endpoint, …
    run.process.kill()
    run.process.wait()
    run.assert_nothing_left()


def test_a_fault_of_the_controller_itself_takes_the_steps_down_in_order(start_local: StartLocal) -> None:
    breaking = (
        "import os, sys\nfile = sys.argv[1] + '/services.json'\nos.unlink(file)\nos.mkdir(file)\n"
        "os.execv(sys.executable, [sys.executable, *sys.argv[2:]])\n"
    )
    replica = [sys.executable, "-c", breaking, "{attempt_dir}", *FAKE[1:]]
    run = start_local(Scenario(replica=replica, replicas=1))
    assert run.wait() == 1
    record = run.attempt.read("attempt.json")
    assert (record["state"], record["classification"]) == ("failed", "internal_error")
    assert "services.json" in record["reason"]
    assert run.attempt.read("readiness.json")["state"] == "stopped"
    assert run.attempt.events("signal_sent", step="llama-endpoint", signal="TERM")


def test_an_attempt_that_was_closed_from_outside_stays_as_it_was_closed(start_local: StartLocal) -> None:
    closing = (
        "import json, os, sys\nos.chdir(sys.argv[1])\nopen('out.jsonl', 'w').write('{}')\n"
        "closed = {'state': 'failed', 'classification': 'node_lost', 'reason': 'gone'}\n"
        "record = json.load(open('attempt.json')) | closed\n"
        "json.dump(record, open('new', 'w'))\nos.replace('new', 'attempt.json')"
    )
    run = start_local(Scenario(client=[sys.executable, "-c", closing, "{attempt_dir}"], records=1))
    assert run.wait() == 1
    record = run.attempt.read("attempt.json")
    assert (record["state"], record["classification"], record["reason"]) == ("failed", "node_lost", "gone")
    assert not (run.attempt.path / "winner.json").exists()
    assert run.attempt.events("closed_elsewhere")


def test_a_winner_that_cannot_be_published_is_no_success(start_local: StartLocal) -> None:
    writing = "import sys\nfor name in ('winner.json', 'out.jsonl'): open(sys.argv[1] + '/' + name, 'w').write('mine')"
    run = start_local(Scenario(client=[sys.executable, "-c", writing, "{attempt_dir}"], records=1))
    assert run.wait() == 1
    record = run.attempt.read("attempt.json")
    assert record["classification"] == "internal_error"
    assert "winner.json cannot be published" in record["reason"]
    assert (run.attempt.path / "winner.json").read_text() == "mine"
