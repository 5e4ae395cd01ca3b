"""The lifecycle on one machine: what ends an attempt, and what it leaves."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path

import pytest

from tests.runtime.lifecycle import FAKE, Scenario, StartLocal, client, fault, free_ports
from tests.runtime.minislurm import wait_until

ASKING = """
import sys, urllib.request
url, out = sys.argv[1:3]
with open(out, "w") as file:
    for _ in range(5):
        body = b'{"model": "m", "prompt": "x", "max_tokens": 2}'
        request = urllib.request.Request(url + "/v1/completions", body, {"content-type": "application/json"})
        file.write(urllib.request.urlopen(request).read().decode().strip() + "\\n")
"""


def test_a_client_that_delivers_makes_the_attempt_succeed_and_publishes_a_winner(start_local: StartLocal) -> None:
    run = start_local(Scenario(deployments=("llama", "qwen"), cpus_per_node=8))
    assert run.wait() == 0
    attempt = run.attempt
    record = attempt.read("attempt.json")
    assert (record["state"], record["classification"], record["reason"], record["job"]) == (
        "succeeded", "succeeded", None, None,
    )  # fmt: skip
    winner = attempt.read("winner.json")
    assert [(one["path"], one["records"]) for one in winner["outputs"]] == [("out.jsonl", 3)]
    assert winner["run"] == record["run"] == attempt.path.parent.name
    readiness = attempt.read("readiness.json")
    assert (readiness["state"], readiness["health_failure"]) == ("stopped", None)
    assert [one["ready_backends"] for one in readiness["deployments"]] == [2, 2]
    assert attempt.read("health.json")["final"] is True


def test_steps_start_in_order_and_the_client_only_after_ready(start_local: StartLocal) -> None:
    run = start_local(Scenario())
    assert run.wait() == 0
    order = [(one["event"], one.get("step")) for one in run.attempt.events()]
    started = [
        order.index(("step_started", name)) for name in ("llama-replica-1", "llama-endpoint", "monitor", "client")
    ]
    assert started == sorted(started)
    assert order.index(("step_ready", "llama-replica-0")) < order.index(("step_started", "llama-endpoint"))
    assert order.index(("step_ready", "llama-endpoint")) < order.index(("step_started", "monitor"))
    assert (
        order.index(("step_ready", "monitor")) < order.index(("ready", None)) < order.index(("step_started", "client"))
    )


def test_the_report_holds_exact_counts_and_the_summary_says_them(start_local: StartLocal, tmp_path: Path) -> None:
    command = [sys.executable, "-c", ASKING, "{endpoint.llama}", "{attempt_dir}/out.jsonl"]
    run = start_local(Scenario(client=command, records=5))
    assert run.wait() == 0
    report = run.attempt.read("report.json")
    endpoint = report["endpoints"][0]
    assert (endpoint["name"], endpoint["requests"], endpoint["attempts"]) == ("llama", 5, 5)
    assert endpoint["responses"] == {"200": 5}
    assert endpoint["cpu_s"] > 0 and endpoint["peak_rss_bytes"] > 2**20
    assert [(one["records"], one["expected_records"]) for one in report["outputs"]] == [(5, 5)]
    assert report["records_per_minute"] == pytest.approx(5 * 60 / report["elapsed_s"], rel=0.01)
    summary = (tmp_path / "run.err").read_text()
    assert "succeeded" in summary and "out.jsonl: 5 of 5 records" in summary and "5 requests, 0 failed" in summary


def test_a_client_that_fails_fails_the_attempt_and_publishes_nothing(start_local: StartLocal) -> None:
    run = start_local(Scenario(client=client(code=3)))
    assert run.wait() == 1
    record = run.attempt.read("attempt.json")
    assert (record["state"], record["classification"]) == ("failed", "client_failed")
    assert "exited with 3" in record["reason"] and "logs/client.err" in record["reason"]
    assert not (run.attempt.path / "winner.json").exists()
    assert run.attempt.read("readiness.json")["state"] == "stopped"
    assert run.attempt.read("report.json")["classification"] == "client_failed"


@pytest.mark.parametrize(("written", "records", "problem"), [(2, 3, "2 records, the plan wants 3"), (0, None, "empty")])
def test_too_few_records_are_an_output_mismatch(
    start_local: StartLocal, written: int, records: int | None, problem: str
) -> None:
    run = start_local(Scenario(client=client(written), records=records))
    assert run.wait() == 1
    record = run.attempt.read("attempt.json")
    assert record["classification"] == "output_mismatch"
    assert problem in record["reason"]
    assert not (run.attempt.path / "winner.json").exists()


def test_a_replica_that_exits_before_it_is_ready_fails_the_start_at_once(start_local: StartLocal) -> None:
    run = start_local(Scenario(replica=[sys.executable, "-c", "raise SystemExit(7)", "{port}"], startup_timeout="15m"))
    assert run.wait(30) == 1
    record = run.attempt.read("attempt.json")
    assert record["classification"] == "startup_failed"
    assert "exited with 7 before the attempt was ready; see logs/llama-replica-" in record["reason"]
    assert run.attempt.read("readiness.json")["state"] == "stopped"
    assert not run.attempt.events("step_started", step="client")


def test_a_replica_that_is_not_ready_in_time_fails_the_start_local(start_local: StartLocal) -> None:
    run = start_local(Scenario(replica=[*FAKE, "--startup-delay-s", "3600"], startup_timeout="2s"))
    assert run.wait() == 1
    record = run.attempt.read("attempt.json")
    assert record["classification"] == "startup_failed"
    assert "did not become ready within 2s: /health: status 503; see logs/llama-replica-" in record["reason"]


def test_a_slow_replica_is_waited_for(start_local: StartLocal) -> None:
    run = start_local(Scenario(replica=[*FAKE, "--startup-delay-s", "2"]))
    assert run.wait() == 0


def test_a_taken_port_is_named_before_anything_starts(start_local: StartLocal) -> None:
    import socket

    base = free_ports(2)
    with socket.create_server(("127.0.0.1", base + 1)):
        run = start_local(Scenario(base_port=base))
        assert run.wait() == 1
    record = run.attempt.read("attempt.json")
    assert record["classification"] == "startup_failed"
    assert f"port {base + 1} (127.0.0.1:{base + 1}) of llama-replica-1 is taken by another process" in record["reason"]
    assert not run.attempt.events("step_started")
    assert not (run.attempt.path / "report.json").exists()


def test_a_command_that_is_not_there_is_named_before_anything_starts(start_local: StartLocal) -> None:
    run = start_local(Scenario(replica=["no-such-engine", "{port}"], client=["/no/such/client"]))
    assert run.wait() == 1
    reason = run.attempt.read("attempt.json")["reason"]
    assert "command no-such-engine of llama was not found in PATH" in reason
    assert "command /no/such/client of client is not an executable file here" in reason
    assert not run.attempt.events("step_started")


def test_a_missing_variable_is_named_before_anything_starts(start_local: StartLocal) -> None:
    run = start_local(Scenario(env={"HF_TOKEN": {"from_env": "DD_TEST_NOT_THERE"}}))
    assert run.wait() == 1
    record = run.attempt.read("attempt.json")
    assert record["classification"] == "startup_failed"
    assert "DD_TEST_NOT_THERE" in record["reason"]


def test_an_endpoint_that_cannot_listen_fails_the_start_local(start_local: StartLocal) -> None:
    run = start_local(Scenario(endpoint={"upstream_ca_file": "/no/such/file"}))
    assert run.wait() == 1
    record = run.attempt.read("attempt.json")
    assert record["classification"] == "startup_failed"
    assert "llama-endpoint exited with 2" in record["reason"]


def test_an_endpoint_that_finds_its_backends_ill_fails_the_start(start_local: StartLocal) -> None:
    run = start_local(Scenario(endpoint={"health_path": "/nowhere"}, startup_timeout="6s"))
    assert run.wait() == 1
    record = run.attempt.read("attempt.json")
    assert record["classification"] == "startup_failed"
    assert "did not find every backend healthy within 6s: status 503" in record["reason"]


def test_secret_values_are_in_no_file_and_in_no_process_list(start_local: StartLocal, tmp_path: Path) -> None:
    secret, other = "hush-4711-literal", "hush-4712-from-env"
    env = {"HF_TOKEN": secret, "OTHER": {"from_env": "DD_TEST_SECRET"}}
    checking = (
        "import os, sys\n"
        "assert os.environ['HF_TOKEN'] == 'hush-4711-literal' and os.environ['OTHER'] == 'hush-4712-from-env'\n"
        "assert not [key for key in os.environ if key.startswith('DD_PROXY_PLAN_ENV_')], 'another step\\'s values'\n"
        "open(sys.argv[1], 'w').write('1\\n2\\n3\\n')\n"
        "import time; time.sleep(1)\n"
    )
    command = [sys.executable, "-c", checking.replace("hush-", "hu'+'sh-"), "{attempt_dir}/out.jsonl"]
    os.environ["DD_TEST_SECRET"] = other
    try:
        run = start_local(Scenario(env=env, client_env=env, client=command))
    finally:
        del os.environ["DD_TEST_SECRET"]
    run.attempt.wait_event("step_started", step="client")
    shown = b"".join(
        (folder / "cmdline").read_bytes()
        for folder in Path("/proc").iterdir()
        if folder.name.isdigit() and _lives(folder)
    )
    assert b"hush-4711" not in shown and b"hush-4712" not in shown
    assert run.wait() == 0, run.attempt.story()
    for path in run.attempt.path.parent.rglob("*"):
        if path.is_file():
            assert b"hush-471" not in path.read_bytes(), path
    assert "hush-471" not in (tmp_path / "run.err").read_text()


def _lives(folder: Path) -> bool:
    try:
        return bool((folder / "cmdline").read_bytes())
    except OSError:
        return False


def test_the_files_of_an_attempt_are_private(start_local: StartLocal) -> None:
    run = start_local(Scenario())
    assert run.wait() == 0
    for folder in (run.attempt.path.parent, run.attempt.path, run.attempt.path / "logs", run.attempt.path / "steps"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for name in (
        "attempt.json",
        "readiness.json",
        "health.json",
        "winner.json",
        "report.json",
        "events.jsonl",
        "plan.json",
        "services.json",
        "stats-llama-endpoint.json",
    ):
        assert stat.S_IMODE((run.attempt.path / name).stat().st_mode) == 0o600, name


def test_replicas_see_their_own_gpus_and_cpu_steps_none(start_local: StartLocal) -> None:
    telling = "import os, sys; open(sys.argv[1], 'w').write(os.environ['CUDA_VISIBLE_DEVICES']); "
    replica = [
        sys.executable, "-c", telling + "os.execv(sys.executable, [sys.executable, *sys.argv[2:]])",
        "{attempt_dir}/gpus-{index}", *FAKE[1:],
    ]  # fmt: skip
    run = start_local(Scenario(replica=replica, gpus_per_node=4, gpus_per_replica=2))
    assert run.wait() == 0
    assert [(run.attempt.path / f"gpus-{index}").read_text() for index in (0, 1)] == ["0,1", "2,3"]
    assert "gpus ''" in (run.attempt.path / "logs" / "client.out").read_text()


def test_progress_is_plain_lines_when_nobody_watches_on_a_terminal(start_local: StartLocal, tmp_path: Path) -> None:
    run = start_local(Scenario(replica=[*FAKE, "--startup-delay-s", "1.5"], client=client(-3)))
    run.attempt.wait_ready()
    wait_until(lambda: "2/2 replicas" in (tmp_path / "run.err").read_text(), 10)
    run.process.terminate()
    assert run.wait() == 143
    told = (tmp_path / "run.err").read_text()
    assert "llama 0/2 replicas" in told
    assert "\x1b" not in told and "\r" not in told


def test_the_state_says_who_runs_the_attempt(start_local: StartLocal) -> None:
    run = start_local(Scenario(client=client(-3)))
    run.attempt.wait_ready()
    record = run.attempt.read("attempt.json")
    assert record["controller"] == {"host": os.uname().nodename, "pid": run.process.pid}
    assert run.said == {"run_dir": str(run.attempt.path.parent), "attempt_dir": str(run.attempt.path)}
    identity = run.attempt.read("steps/llama-replica-1.json")
    assert (identity["role"], identity["job_id"], identity["step_id"]) == ("replica", None, None)
    fault(run.attempt.replica(0), kind="unhealthy")
    assert run.wait() == 1
    assert json.loads((run.attempt.path / "health.json").read_text())["failure"]["deployment"] == "llama"
