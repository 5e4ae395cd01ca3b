"""What the preflight can tell of one node: ports, addresses, commands."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from runtime.layout import AttemptDir
from runtime.nodecheck import check_command, check_port, main_preflight
from runtime.plan import detach_env, plan_to_json
from runtime.planfile import load_plan
from runtime.services import Node, Replica, Services, services_path
from runtime.state import write_json
from tests.runtime.lifecycle import Scenario, free_ports


def test_a_port_is_free_taken_or_of_another_machine() -> None:
    port = free_ports(1)
    assert check_port("llama-replica-0", "127.0.0.1", port) == []
    with socket.create_server(("0.0.0.0", port)):
        told = check_port("llama-replica-0", "127.0.0.1", port)
    assert told == [f"port {port} (127.0.0.1:{port}) of llama-replica-0 is taken by another process"]
    foreign = check_port("llama-replica-0", "192.0.2.1", port)
    assert foreign == [
        f"port {port} (192.0.2.1:{port}) of llama-replica-0 cannot be bound: this node does not have that address"
    ]


def test_a_port_that_was_just_used_is_free_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            accepted, _ = server.accept()
            accepted.close()  # this side waits out its TIME_WAIT
    assert check_port("llama-replica-0", "127.0.0.1", port) == []


def test_a_command_is_looked_up_as_the_step_will_find_it(tmp_path: Path) -> None:
    program = tmp_path / "engine"
    program.write_text("#!/bin/sh\n")
    assert "was not found in PATH" in check_command("llama", "engine", {"PATH": str(tmp_path)}, os.environ)[0]
    assert "is not an executable file here" in check_command("llama", str(program), {}, os.environ)[0]
    program.chmod(0o755)
    assert check_command("llama", "engine", {"PATH": str(tmp_path)}, os.environ) == []
    assert check_command("llama", str(program), {}, os.environ) == []
    assert check_command("llama", "engine", {}, {"PATH": str(tmp_path)}) == []
    assert check_command("llama", "sh", {}, os.environ) == []


def test_a_node_says_one_line_about_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, _ = detach_env(load_plan(Scenario(replica=["no-such-engine"], nodes=2).write(tmp_path)))
    attempt = AttemptDir(tmp_path / "attempt-1")
    attempt.create()
    attempt.plan_json.write_text(json.dumps(plan_to_json(plan)))
    nodes = (Node("node1", "127.0.0.1"), Node("node2", "127.0.0.12"))
    replicas = tuple(
        Replica(f"llama-replica-{index}", "llama", node.name, node.address, plan.deployments[0].port(index))
        for index, node in enumerate(nodes)
    )
    write_json(services_path(attempt), Services(nodes, replicas))
    for name, problems in (("node1", 1), ("node2", 1)):
        monkeypatch.setenv("SLURMD_NODENAME", name)
        assert main_preflight(attempt.path) == 0
        said = json.loads(capsys.readouterr().out)
        assert (said["node"], len(said["problems"])) == (name, problems)
        assert said["problems"][0] == f"{name}: command no-such-engine of llama was not found in PATH"
    monkeypatch.setenv("SLURMD_NODENAME", "node9")
    assert main_preflight(attempt.path) == 1
    assert "node9" in capsys.readouterr().err


def test_what_cannot_be_checked_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main_preflight(tmp_path) == 1
    told = capsys.readouterr().err
    assert told.startswith("dd-proxy preflight: ") and "services.json" in told and told.count("\n") == 1
