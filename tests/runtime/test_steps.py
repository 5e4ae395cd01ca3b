"""The argument vectors of the steps: who gets a GPU, who shares, and that no value is in any of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from runtime.layout import AttemptDir
from runtime.placement import place
from runtime.plan import Plan, detach_env
from runtime.planfile import load_plan
from runtime.services import Endpoint, Node, Replica, Services
from runtime.steps import (
    Role,
    StepSpec,
    client_step,
    endpoint_step,
    launcher_environment,
    local_arguments,
    local_gpu_environment,
    missing_env,
    monitor_step,
    preflight_step,
    replica_step,
    srun_arguments,
)
from tests.runtime.lifecycle import Scenario

OWN = ("/venv/bin/dd-proxy",)
NODES = ("node1", "node2", "node3")
SECRET = "hush-4711"


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """A plan with GPUs, secrets, and a client that names its endpoint."""
    command = ["engine", "--host", "{host}", "--port", "{port}", "--json", '{"a": {"b": 1}}', "--n={index}"]
    asking = ["ask", "{endpoint.llama}/v1", "{attempt_dir}/out", "{{port}}"]
    scenario = Scenario(
        nodes=3, gpus_per_node=2, gpus_per_replica=1, replicas=5, replica=command, client=asking, base_port=18000,
        env={"HF_TOKEN": SECRET}, client_env={"KEY": {"from_env": "THE_KEY"}},
        endpoint={"listen_port": 8000, "max_waiting_requests": 12, "flush_head": True},
    )  # fmt: skip
    return load_plan(scenario.write(tmp_path))


@pytest.fixture
def services(plan: Plan) -> Services:
    """The plan's replicas on three nodes, and one endpoint that listens."""
    nodes = tuple(Node(name, f"10.0.0.{number}") for number, name in enumerate(NODES, 1))
    replicas = tuple(
        Replica(f"llama-replica-{one.index}", "llama", nodes[one.node].name, nodes[one.node].address, one.port)
        for one in place(plan)
    )
    return Services(nodes, replicas, (Endpoint("llama-endpoint", "llama", "http://127.0.0.1:8000", "127.0.0.1:9000"),))


@pytest.fixture
def attempt() -> AttemptDir:
    """An attempt directory that need not exist."""
    return AttemptDir(Path("/runs/gen-1/attempt-1"))


def every_step(plan: Plan, services: Services, attempt: AttemptDir) -> list[StepSpec]:
    """Describe all steps of the plan."""
    replicas = [
        replica_step(plan, replica, placed.gpus, attempt)
        for placed, replica in zip(place(plan), services.replicas, strict=True)
    ]
    endpoint = endpoint_step(plan, plan.deployments[0], services, attempt, OWN)
    others = [
        monitor_step(services, attempt, OWN),
        client_step(plan, services, attempt),
        preflight_step(plan, attempt, OWN),
    ]
    return [*replicas, endpoint, *others]


def srun(spec: StepSpec, attempt: AttemptDir) -> list[str]:
    """Write the srun command of a step."""
    return srun_arguments(spec, NODES, attempt.step_json(spec.name), OWN)


def test_a_replica_asks_for_its_own_gpu_and_shares_nothing(plan: Plan, services: Services, attempt: AttemptDir) -> None:
    words = srun(replica_step(plan, services.replicas[3], (1,), attempt), attempt)
    assert words[:10] == [
        "srun", "--job-name=llama-replica-3", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1",
        f"--nodelist={services.replicas[3].node}", "--cpus-per-task=1", "--mem=64M", "--export=ALL", "--input=none",
    ]  # fmt: skip
    assert "--exact" in words and "--gres=gpu:1" in words and "--overlap" not in words
    assert words[words.index("--") + 1 :] == [
        "engine", "--host", services.replicas[3].host, "--port", "18003", "--json", '{"a": {"b": 1}}', "--n=3",
    ]  # fmt: skip
    assert words[words.index("exec") : words.index("--")] == [
        "exec", "--identity", "/runs/gen-1/attempt-1/steps/llama-replica-3.json",
    ]  # fmt: skip


def test_no_cpu_step_ever_asks_for_a_gpu(plan: Plan, services: Services, attempt: AttemptDir) -> None:
    for spec in every_step(plan, services, attempt):
        words = srun(spec, attempt)
        if spec.role is Role.REPLICA:
            continue
        assert "--gres=none" in words and "--overlap" in words and "--exact" not in words, spec.name
        assert not [word for word in words if word.startswith(("--gres=gpu", "--gpus"))], spec.name
        assert words[words.index("env") + 1] == "CUDA_VISIBLE_DEVICES="
        wanted = "--mem=64M" if spec.role is Role.CLIENT else "--mem=0"  # a share of its own would have to fit
        assert wanted in words, spec.name


def test_the_preflight_runs_once_on_every_node(plan: Plan, attempt: AttemptDir) -> None:
    words = srun(preflight_step(plan, attempt, OWN), attempt)
    assert "--nodes=3" in words and "--ntasks=3" in words and "--nodelist=node1,node2,node3" in words
    assert words[-4:] == ["run", "--preflight", "--attempt-dir", "/runs/gen-1/attempt-1"]


def test_the_endpoint_gets_its_options_its_backends_and_its_stats_file(
    plan: Plan, services: Services, attempt: AttemptDir
) -> None:
    spec = endpoint_step(plan, plan.deployments[0], services, attempt, OWN)
    words = list(spec.command)
    assert words[:2] == ["/venv/bin/dd-proxy", "serve"]
    assert words[words.index("--listen-port") + 1] == "8000"
    assert words[words.index("--max-waiting-requests") + 1] == "12"
    assert words[words.index("--drain-timeout") + 1] == "4"
    assert words[words.index("--stats-file") + 1] == "/runs/gen-1/attempt-1/stats-llama-endpoint.json"
    assert "--flush-head" in words
    backends = [words[number + 1] for number, word in enumerate(words) if word == "--backend"]
    assert backends == [f"http://{one.host}:{one.port}" for one in services.replicas]
    assert spec.node == "node1"


def test_the_client_reaches_its_endpoint_and_literal_braces_stay(
    plan: Plan, services: Services, attempt: AttemptDir
) -> None:
    assert client_step(plan, services, attempt).command == (
        "ask", "http://127.0.0.1:8000/v1", "/runs/gen-1/attempt-1/out", "{port}",
    )  # fmt: skip


def test_values_are_in_no_argument_vector(plan: Plan, services: Services, attempt: AttemptDir) -> None:
    for spec in every_step(plan, services, attempt):
        for words in (srun(spec, attempt), local_arguments(spec, Path("x"), OWN, 1)):
            assert not [word for word in words if SECRET in word]
            assert not [word for word in words if word.startswith("--export=") and word != "--export=ALL"]


def test_a_step_gets_its_own_values_and_none_of_another_or_of_the_jobs_requests(
    plan: Plan, services: Services, attempt: AttemptDir
) -> None:
    environ = {
        "PATH": "/bin", "THE_KEY": "k", "DD_PROXY_PLAN_ENV_0_HF_TOKEN": SECRET, "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_JOB_ID": "5", "SLURM_GPUS_PER_NODE": "4", "SLURM_MEM_PER_CPU": "100", "SLURM_NTASKS_PER_NODE": "1",
        "SLURM_CPUS_PER_TASK": "4", "SLURM_EXPORT_ENV": "NONE",
    }  # fmt: skip
    kept = {"PATH": "/bin", "THE_KEY": "k", "SLURM_CONF": "/etc/slurm.conf", "SLURM_JOB_ID": "5"}
    replica = replica_step(plan, services.replicas[0], (0,), attempt)
    assert launcher_environment(environ, replica) == {**kept, "HF_TOKEN": SECRET}
    assert launcher_environment(environ, client_step(plan, services, attempt)) == {**kept, "KEY": "k"}
    del environ["THE_KEY"]
    with pytest.raises(KeyError, match="THE_KEY"):
        launcher_environment(environ, client_step(plan, services, attempt))
    assert missing_env([*plan.deployments, plan.client], environ) == ["THE_KEY"]


def test_local_replicas_get_gpus_of_those_that_are_visible() -> None:
    spec = StepSpec("llama-replica-0", Role.REPLICA, ("x",), "node", gpus=(1, 2))
    assert local_gpu_environment({}, spec) == {"CUDA_VISIBLE_DEVICES": "1,2"}
    assert local_gpu_environment({"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b,GPU-c"}, spec) == {
        "CUDA_VISIBLE_DEVICES": "GPU-b,GPU-c"
    }
    cpu = StepSpec("client", Role.CLIENT, ("x",), "node")
    assert local_gpu_environment({"CUDA_VISIBLE_DEVICES": "0,1"}, cpu) == {"CUDA_VISIBLE_DEVICES": ""}


def test_a_replica_without_a_gpu_asks_for_none() -> None:
    spec = StepSpec("llama-replica-0", Role.REPLICA, ("x",), "node1")
    words = srun_arguments(spec, NODES, Path("x"), OWN)
    assert "--gres=none" in words and "--mem=0" in words and "--exact" in words


def test_the_preflight_knows_the_path_of_every_step_and_no_other_value(plan: Plan, attempt: AttemptDir) -> None:
    mine = replace(plan.deployments[0], env={"PATH": "/opt/engine/bin", "HF_TOKEN": SECRET})
    detached, values = detach_env(replace(plan, deployments=(mine,)))
    environment = launcher_environment({"PATH": "/bin", **values}, preflight_step(detached, attempt, OWN))
    assert sorted(environment.values()) == ["/bin", "/opt/engine/bin"]
