"""A plan is read whole, or every error is told at once with file, key and reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runtime.plan import FromEnv, OptionValue, Output, detach_env, plan_from_json, plan_to_json, serve_arguments
from runtime.planfile import PlanErrors, load_plan
from tests.runtime.plans import FULL, SMALL, changed, errors_of, parse

_COMMAND = '["vllm", "serve", "meta-llama/X", "--host", "{host}", "--port", "{port}"]'


def test_every_key_of_the_plan_reaches_its_record() -> None:
    plan = parse(FULL)
    job, deployment, client = plan.job, plan.deployments[0], plan.client
    assert (job.name, job.nodes, job.gpus_per_node, job.cpus_per_node) == ("gen", 2, 4, 32)
    assert (job.mem_per_node_bytes, job.time_s, job.partition, job.account) == (500 * 2**30, 7200.0, "batch", None)
    assert (job.sbatch, job.state_dir) == (("--exclusive",), Path("/plans/runs"))
    assert (deployment.name, deployment.replicas, deployment.gpus_per_replica) == ("llama", 8, 1)
    assert (deployment.cpus_per_replica, deployment.mem_per_replica_bytes) == (4, 40 * 2**30)
    assert (deployment.startup_timeout_s, deployment.stop_timeout_s) == (900.0, 30.0)
    assert deployment.env == {"HF_HUB_OFFLINE": "1", "HF_TOKEN": FromEnv("HF_TOKEN")}
    assert deployment.endpoint == {
        "engine": "vllm",
        "health_path": "/health",
        "listen_port": 8000,
        "max_waiting_requests": 128,
    }
    assert (client.cpus, client.mem_bytes, client.outputs) == (4, 4 * 2**30, (Output("out.jsonl", 1000),))
    assert (plan.runtime.drain_timeout_s, plan.runtime.monitor_interval_s, plan.runtime.monitor_failures) == (10, 1, 3)


def test_what_a_plan_leaves_out_has_a_default() -> None:
    plan = parse(SMALL)
    assert (plan.job.nodes, plan.job.gpus_per_node, plan.job.mem_per_node_bytes) == (1, 0, None)
    assert (plan.deployments[0].replicas, plan.deployments[0].mem_per_replica_bytes) == (1, None)
    assert plan.deployments[0].endpoint["listen_port"] == 0
    assert plan.client.outputs == ()
    assert plan.runtime.drain_timeout_s == 10


def test_state_dir_is_relative_to_the_plan_file_and_absolute_when_it_says_so() -> None:
    assert parse(changed(SMALL, ('"00:10:00"', '"00:10:00"\nstate_dir = "a/b"'))).job.state_dir == Path("/plans/a/b")
    assert parse(changed(SMALL, ('"00:10:00"', '"00:10:00"\nstate_dir = "/x"'))).job.state_dir == Path("/x")


def test_an_endpoint_option_wins_over_the_deployment_for_its_endpoint() -> None:
    plan = parse(SMALL.replace("base_port = 18000", 'base_port = 18000\nendpoint = { health_path = "/ready" }'))
    assert plan.deployments[0].endpoint["health_path"] == "/ready"
    assert plan.deployments[0].health_path == "/health"


def test_all_errors_are_told_at_once() -> None:
    errors = errors_of(
        changed(
            FULL,
            ('name = "gen"', 'name = "Gen 1"'),
            ("nodes = 2\n", 'nodes = "two"\n'),
            ('partition = "batch"', 'partiton = "batch"'),
            ('"500GiB"', '"500 elephants"'),
            ('"15m"', '"soon"'),
            ("monitor_failures = 3", "monitor_failures = 0"),
            ('"--port", "{port}"', '"--port", "{prt}"'),
            ("max_waiting_requests = 128", "max_wating_requests = 128"),
            ("records = 1000", "records = -1"),
            ("{endpoint.llama}", "{endpoint.lama}"),
            ("[runtime]", "[runtine]"),
        )
    )
    assert set(errors) == {
        "job.name",
        "job.nodes",
        "job.partiton",
        "job.mem_per_node",
        "deployment[llama].startup_timeout",
        "deployment[llama].command",
        "deployment[llama].endpoint.max_wating_requests",
        "client.command",
        "client.output[0].records",
        "runtine",
    }
    assert "partition" in errors["job.partiton"]
    assert "max_waiting_requests" in errors["deployment[llama].endpoint.max_wating_requests"]
    assert "{port}" in errors["deployment[llama].command"]
    assert "{endpoint.llama}" in errors["client.command"]
    assert "runtime" in errors["runtine"]


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("replicas = 8", "replicas = 0", "deployment[llama].replicas"),
        ("replicas = 8", "replicas = true", "deployment[llama].replicas"),
        ("replicas = 8", "replicas = 8.0", "deployment[llama].replicas"),
        ("replicas = 8", "replicas = 9", "deployment[llama].replicas"),
        ("gpus_per_replica = 1", "gpus_per_replica = 5", "deployment[llama].gpus_per_replica"),
        ("cpus_per_replica = 4", "cpus_per_replica = 33", "deployment[llama].cpus_per_replica"),
        ("cpus_per_replica = 4", "cpus_per_replica = 8", "deployment[llama].replicas"),
        ('"40GiB"', '"501GiB"', "deployment[llama].mem_per_replica"),
        ('"40GiB"', '"125GiB"', "deployment[llama].replicas"),
        ('"4GiB"', '"501GiB"', "client.mem"),
        ("\ncpus = 4", "\ncpus = 33", "client.cpus"),
        ("base_port = 18000", "base_port = 65530", "deployment[llama].base_port"),
        ("base_port = 18000", "base_port = 7995", "deployment[llama].base_port"),
        ("base_port = 18000", "base_port = 0", "deployment[llama].base_port"),
        ('engine = "vllm"', 'engine = "tgi"', "deployment[llama].engine"),
        ('health_path = "/health"', 'health_path = "health"', "deployment[llama].health_path"),
        ('time = "02:00:00"', 'time = "00:00:47"', "job.time"),
        ('time = "02:00:00"', 'time = "90:00"', "job.time"),
        ('time = "02:00:00"', "time = 7200", "job.time"),
        ('"10s"', "10", "runtime.drain_timeout"),
        ('"1s"', '"0s"', "runtime.monitor_interval"),
        ('"10s"', '"1d"', "runtime.drain_timeout"),
        ('HF_HUB_OFFLINE = "1"', "HF_HUB_OFFLINE = 1", "deployment[llama].env"),
        ('"HF_TOKEN" }', '"HF TOKEN" }', "deployment[llama].env"),
        ('from_env = "HF_TOKEN"', 'from = "HF_TOKEN"', "deployment[llama].env"),
        ('"out.jsonl"\nrecords', '"../out.jsonl"\nrecords', "client.output[0].path"),
        ('"out.jsonl"\nrecords', '"/out.jsonl"\nrecords', "client.output[0].path"),
        ('["--exclusive"]', '["--signal=TERM@10"]', "job.sbatch"),
        ('["--exclusive"]', '["-N2"]', "job.sbatch"),
        ('["--exclusive"]', '["--export=NONE"]', "job.sbatch"),
        ('["--exclusive"]', '["--comment", "two words"]', "job.sbatch"),
        ('["--exclusive"]', '["exclusive"]', "job.sbatch"),
        ('["--exclusive"]', '"--exclusive"', "job.sbatch"),
        ("max_waiting_requests = 128", 'drain_timeout = "3s"', "deployment[llama].endpoint.drain_timeout"),
        ("max_waiting_requests = 128", 'backend = ["http://a:1"]', "deployment[llama].endpoint.backend"),
        ("max_waiting_requests = 128", 'config = "x.toml"', "deployment[llama].endpoint.config"),
        ("max_waiting_requests = 128", "max_waiting_requests = -1", "deployment[llama].endpoint.max_waiting_requests"),
        ('"{endpoint.llama}/v1"', '"{port}"', "client.command"),
        ('"--port", "{port}"', '"{endpoint.llama}"', "deployment[llama].command"),
        (_COMMAND, "[]", "deployment[llama].command"),
        (_COMMAND, '"vllm"', "deployment[llama].command"),
    ],
)  # fmt: skip
def test_one_wrong_value_is_one_error_under_its_key(old: str, new: str, key: str) -> None:
    assert list(errors_of(changed(FULL, (old, new)))) == [key]


@pytest.mark.parametrize("table", ["[job]", "[client]", "[[deployment]]"])
def test_a_missing_table_is_named(table: str) -> None:
    text = SMALL.replace(table, "[other]", 1)
    assert table.strip("[]") in errors_of(text)


def test_a_required_key_is_named() -> None:
    text = SMALL.replace('command = ["serve"]\n', "").replace("cpus_per_node = 4\n", "")
    assert errors_of(text) == {"job.cpus_per_node": "is required", "deployment[m].command": "is required"}


def test_a_broken_key_does_not_hide_what_its_neighbours_do_together() -> None:
    second = '[[deployment]]\nname = "b"\nbase_port = 18000\ncommand = ["{what}"]\nstartup_timeout = "x"\n[client]'
    errors = errors_of(changed(SMALL, ("[client]", second), ("cpus_per_node = 4", "cpus_per_node = 2")))
    assert set(errors) == {
        "deployment[b].startup_timeout",
        "deployment[b].command",
        "deployment[b].base_port",
        "deployment[b].replicas",
    }


def test_two_deployments_cannot_share_name_or_endpoint_port() -> None:
    second = '[[deployment]]\nname = "m"\ncommand = ["x"]\nbase_port = 19000\nendpoint.listen_port = 8000\n[client]'
    text = changed(SMALL, ("base_port = 18000", "base_port = 18000\nendpoint.listen_port = 8000"), ("[client]", second))
    assert set(errors_of(text)) == {"deployment[m].name", "deployment[m].endpoint.listen_port"}


def test_a_bad_value_of_env_is_never_shown() -> None:
    errors = errors_of(changed(FULL, ('HF_HUB_OFFLINE = "1"', "HF_HUB_OFFLINE = 7347")))
    assert "7347" not in str(errors)


def test_an_error_line_names_file_key_and_reason(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(SMALL.replace("cpus_per_node = 4", 'cpus_per_node = "four"'))
    with pytest.raises(PlanErrors) as caught:
        load_plan(file)
    assert str(caught.value).splitlines() == [
        f"{file}: job.cpus_per_node: 'four' is not a whole number, 1 or more",
    ]


@pytest.mark.parametrize("content", [b"[job", b"\xff", b'[job]\nname = "a"\nname = "b"'])
def test_bad_toml_is_one_line(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "bad.toml"
    file.write_bytes(content)
    with pytest.raises(PlanErrors) as caught:
        load_plan(file)
    assert len(str(caught.value).splitlines()) == 1
    assert str(file) in str(caught.value)


def test_a_missing_plan_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(PlanErrors, match="No such file"):
        load_plan(tmp_path / "none.toml")


def test_the_resolved_plan_comes_back_as_it_was() -> None:
    for text in (FULL, SMALL):
        plan = parse(text)
        assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan


@pytest.mark.parametrize("data", [{}, {"schema_version": 2}, {"schema_version": 1}, {"schema_version": 1, "job": {}}])
def test_a_broken_resolved_plan_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="plan"):
        plan_from_json(data)


def test_a_detached_plan_holds_no_value_of_env() -> None:
    text = changed(FULL, ('"1", HF_TOKEN', '"s3cret-a", HF_TOKEN'), ("env = {}", 'env = { KEY = "s3cret-b" }'))
    plan, values = detach_env(parse(text))
    assert "s3cret" not in json.dumps(plan_to_json(plan))
    assert sorted(values.values()) == ["s3cret-a", "s3cret-b"]
    reference = plan.client.env["KEY"]
    assert isinstance(reference, FromEnv)
    assert values[reference.name] == "s3cret-b"
    assert plan.deployments[0].env["HF_TOKEN"] == FromEnv("HF_TOKEN")


def test_serve_options_become_arguments() -> None:
    options: dict[str, OptionValue] = {"listen_port": 0, "flush_head": True, "no_retry_post": False}
    options |= {"allowed_host": ("a", "b"), "max_head": "1KiB"}
    assert serve_arguments(options) == [
        *("--listen-port", "0", "--flush-head"),
        *("--allowed-host", "a", "--allowed-host", "b", "--max-head", "1KiB"),
    ]
