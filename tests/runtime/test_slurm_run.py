"""The lifecycle on a real Slurm of three nodes: steps and what they are given, and how attempts end by themselves."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from tests.runtime.jobs import StartSlurm, scenario
from tests.runtime.lifecycle import FAKE, client, fault, free_ports

pytestmark = pytest.mark.slurm


def test_two_deployments_and_a_client_succeed_on_three_nodes(start_slurm: StartSlurm) -> None:
    run = start_slurm(scenario(deployments=("llama", "qwen"), replicas=3, client=client(-3)))
    run.attempt.wait_ready()
    steps = run.steps()
    replicas = [name for name in steps if "-replica-" in name]
    assert len(replicas) == 6
    assert {steps[name]["TresPerNode"] for name in replicas} == {"gres:gpu:1"}
    assert sorted(steps[name]["NodeList"] for name in replicas) == sorted(["node1", "node2", "node3"] * 2)
    for name in ("llama-endpoint", "qwen-endpoint", "monitor", "client"):
        assert "TresPerNode" not in steps[name], f"{name} holds a GPU"
        assert steps[name]["NodeList"] == "node1"
    identity = run.attempt.read("steps/qwen-replica-2.json")
    assert steps["qwen-replica-2"]["StepId"] == f"{run.job_id}.{identity['step_id']}"
    assert steps["qwen-replica-2"]["NodeList"] == identity["node"]
    assert "gpus '' None" in (run.attempt.path / "logs" / "client.out").read_text()
    run.kill_step("client", signal.SIGTERM)
    run.end("succeeded")
    record = run.attempt.read("attempt.json")
    assert record["job"] == {"id": run.job_id, "restart_count": 0}
    assert record["controller"]["host"] == "node1"
    assert run.slurm.job(run.job_id)["JobState"] == "COMPLETED"
    assert [one["name"] for one in run.attempt.read("report.json")["endpoints"]] == ["llama", "qwen"]
    assert run.attempt.read("winner.json")["outputs"][0]["records"] == 3


def test_replicas_of_one_node_get_disjoint_gpus(start_slurm: StartSlurm) -> None:
    telling = "import os, sys; open(sys.argv[1], 'w').write(os.environ['CUDA_VISIBLE_DEVICES']); "
    replica = [
        sys.executable, "-c", telling + "os.execv(sys.executable, [sys.executable, *sys.argv[2:]])",
        "{attempt_dir}/gpus-{index}", *FAKE[1:],
    ]  # fmt: skip
    run = start_slurm(scenario(replica=replica, replicas=6, env={"PATH": os.environ["PATH"]}))
    run.end("succeeded")
    nodes: dict[str, list[str]] = {}
    for index in range(6):
        node = run.attempt.read(f"steps/llama-replica-{index}.json")["node"]
        nodes.setdefault(node, []).append((run.attempt.path / f"gpus-{index}").read_text())
    assert {node: sorted(gpus) for node, gpus in nodes.items()} == {node: ["0", "1"] for node in run.slurm.nodes}


def test_a_failing_client_a_short_output_and_a_slow_replica(start_slurm: StartSlurm) -> None:
    failing = start_slurm(scenario(replicas=1, client=client(3, code=5)))
    assert "exited with 5" in failing.end("client_failed")
    assert failing.slurm.job(failing.job_id)["ExitCode"] == "1:0"
    short = start_slurm(scenario(replicas=1, client=client(2), replica=[*FAKE, "--startup-delay-s", "1"]))
    assert "2 records, the plan wants 3" in short.end("output_mismatch")
    assert not (short.attempt.path / "winner.json").exists()


def test_a_start_that_takes_too_long_or_dies_fails(start_slurm: StartSlurm) -> None:
    slow = start_slurm(scenario(replicas=2, replica=[*FAKE, "--startup-delay-s", "3600"], startup_timeout="1s"))
    assert "did not become ready within 1s" in slow.end("startup_failed")
    dying = start_slurm(scenario(replicas=2, replica=[sys.executable, "-c", "raise SystemExit(7)", "{port}"]))
    assert "exited with 7 before the attempt was ready" in dying.end("startup_failed")


def test_preflight_names_node_port_and_command_before_any_replica_starts(start_slurm: StartSlurm) -> None:
    base = free_ports(5)
    with socket.create_server(("127.0.0.12", base + 2)):
        run = start_slurm(scenario(base_port=base, client=["no-such-client"]))
        reason = run.end("startup_failed")
    assert f"node2: port {base + 2} (127.0.0.12:{base + 2}) of llama-replica-2 is taken" in reason
    assert "node1: command no-such-client of client was not found in PATH" in reason
    assert [one["step"] for one in run.attempt.events("step_started")] == ["preflight"]


@pytest.mark.parametrize(
    ("step", "number", "source", "words"),
    [
        ("llama-replica-3", signal.SIGKILL, "launcher", "llama-replica-3 was killed by SIGKILL"),
        ("llama-endpoint", signal.SIGKILL, "launcher", "llama-endpoint was killed by SIGKILL"),
        ("monitor", signal.SIGKILL, "launcher", "monitor was killed by SIGKILL"),
    ],
)
def test_a_killed_service_is_lost(
    start_slurm: StartSlurm, step: str, number: signal.Signals, source: str, words: str
) -> None:
    run = start_slurm(scenario(client=client(-3), monitor_interval="30s"))
    run.attempt.wait_ready()
    run.kill_step(step, number)
    assert words in run.end("service_lost")
    failure = run.attempt.read("readiness.json")["health_failure"]
    assert failure["source"] == source
    if step.startswith("llama-replica"):
        assert failure["backend"] == run.attempt.replica(3)


def test_an_unhealthy_replica_that_lives_is_lost(start_slurm: StartSlurm) -> None:
    run = start_slurm(scenario(client=client(-3)))
    run.attempt.wait_ready()
    fault(run.attempt.replica(2), kind="unhealthy")
    assert "probe failed (status 503) 3 times" in run.end("service_lost")
    assert run.attempt.read("readiness.json")["state"] == "failed"


def test_secret_values_are_in_no_process_list_and_no_file(start_slurm: StartSlurm) -> None:
    run = start_slurm(scenario(client=client(-3), env={"HF_TOKEN": "hush-4711"}, client_env={"KEY": "hush-4712"}))
    run.attempt.wait_ready()
    shown = b""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                shown += (folder / "cmdline").read_bytes()
            except OSError:
                continue
    assert b"hush-471" not in shown
    environment = Path(f"/proc/{run.attempt.pid('llama-replica-4')}/environ").read_bytes().split(b"\0")
    assert b"HF_TOKEN=hush-4711" in environment
    assert not [one for one in environment if b"hush-4712" in one], "another step's value"
    run.kill_step("client", signal.SIGTERM)
    run.end("succeeded")
    for path in run.run_dir.rglob("*"):
        assert not path.is_file() or b"hush-471" not in path.read_bytes(), path
