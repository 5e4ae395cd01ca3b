"""The argument vector of every step, on Slurm and on one machine.

Pure: a plan and its addresses in, argument vectors out, never a shell string. Values of `env` are in no argument vector
(`ps` shows those to everybody): they travel in the environment of the step's launcher. Refuses to start anything.

CPU steps (endpoint, monitor, client, preflight) share the CPUs of the replicas and get no GPU at all: `--gres=none`,
and CUDA_VISIBLE_DEVICES emptied for sites without device cgroups, where an unset variable means every GPU. Replicas
never overlap, so that Slurm gives those of one node disjoint GPUs.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runtime.layout import AttemptDir
from runtime.placeholders import substitute
from runtime.plan import Client, Deployment, EnvValue, FromEnv, Plan, serve_arguments
from runtime.services import Endpoint, Replica, Services
from runtime.units import slurm_mebibytes

MONITOR = "monitor"
CLIENT = "client"
PREFLIGHT = "preflight"
# A plan's literal values travel under these names to the batch job; no step needs another one's.
DETACHED_ENV = "DD_PROXY_PLAN_ENV_"
# What sbatch was asked for comes back to srun as defaults; a step asks for its own share, and some exclude each other.
_INHERITED_REQUESTS = (
    "SLURM_CPUS_PER_", "SLURM_GPUS", "SLURM_GRES", "SLURM_MEM_PER_", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_TRES_PER_",
    "SLURM_DISTRIBUTION", "SLURM_EXCLUSIVE", "SLURM_OVERLAP", "SLURM_EXACT", "SLURM_EXPORT_ENV",
    "SLURM_THREADS_PER_CORE", "SLURM_HINT", "SLURM_CPU_BIND", "SLURM_OVERCOMMIT", "SLURM_KILL_BAD_EXIT",
    "SLURM_NO_KILL", "SLURM_STEP_GRES",
)  # fmt: skip


class Role(enum.StrEnum):
    """What a step is in the attempt."""

    REPLICA = "replica"
    ENDPOINT = "endpoint"
    MONITOR = "monitor"
    CLIENT = "client"
    PREFLIGHT = "preflight"


@dataclass(frozen=True, slots=True)
class StepSpec:
    """One step to start. `node` None: on every node. `gpus` are indexes for a local run; Slurm picks its own.

    `memory_bytes` None takes what the job has (`--mem=0`), which an overlapping step shares and never waits for.
    """

    name: str
    role: Role
    command: tuple[str, ...]
    node: str | None
    cpus: int = 1
    memory_bytes: int | None = None
    gpus: tuple[int, ...] = ()
    env: Mapping[str, EnvValue] | None = None
    stop_timeout_s: float = 10.0
    deployment: str | None = None
    backend: str | None = None


def replica_step(plan: Plan, replica: Replica, gpus: tuple[int, ...], attempt: AttemptDir) -> StepSpec:
    """Describe the step of one replica."""
    deployment = deployment_of(plan, replica.deployment)
    index = next(number for number in range(deployment.replicas) if deployment.replica_name(number) == replica.name)
    return StepSpec(
        name=replica.name,
        role=Role.REPLICA,
        command=tuple(substitute(deployment.command, replica_values(replica, index, attempt))),
        node=replica.node,
        cpus=deployment.cpus_per_replica,
        memory_bytes=deployment.mem_per_replica_bytes,
        gpus=gpus,
        env=deployment.env,
        stop_timeout_s=deployment.stop_timeout_s,
        deployment=deployment.name,
        backend=replica.authority,
    )


def replica_values(replica: Replica, index: int, attempt: AttemptDir) -> dict[str, str]:
    """Give what the placeholders of a replica's command stand for."""
    return {
        "host": replica.host,
        "port": str(replica.port),
        "index": str(index),
        "attempt_dir": str(attempt.path),
    }


def endpoint_step(
    plan: Plan, deployment: Deployment, services: Services, attempt: AttemptDir, own: Sequence[str]
) -> StepSpec:
    """Describe the step of a deployment's endpoint: `dd-proxy serve` over its replicas."""
    backends = [part for one in services.of(deployment.name) for part in ("--backend", f"http://{one.authority}")]
    options = {"listen_port": 0, **deployment.endpoint}
    name = deployment.endpoint_name()
    command = (
        *own, "serve", *serve_arguments(options), "--drain-timeout", f"{plan.runtime.drain_timeout_s:g}",
        "--stats-file", str(stats_path(attempt, name)), *backends,
    )  # fmt: skip
    return StepSpec(
        name=name,
        role=Role.ENDPOINT,
        command=command,
        node=services.head.name,
        stop_timeout_s=plan.runtime.drain_timeout_s,
        deployment=deployment.name,
    )


def monitor_step(services: Services, attempt: AttemptDir, own: Sequence[str]) -> StepSpec:
    """Describe the step of the health monitor."""
    return StepSpec(
        name=MONITOR,
        role=Role.MONITOR,
        command=(*own, "monitor", "--attempt-dir", str(attempt.path)),
        node=services.head.name,
    )


def client_step(plan: Plan, services: Services, attempt: AttemptDir) -> StepSpec:
    """Describe the step of the client, next to the endpoints."""
    return StepSpec(
        name=CLIENT,
        role=Role.CLIENT,
        command=tuple(substitute(plan.client.command, client_values(services.endpoints, attempt))),
        node=services.head.name,
        cpus=plan.client.cpus,
        memory_bytes=plan.client.mem_bytes,
        env=plan.client.env,
        stop_timeout_s=max(deployment.stop_timeout_s for deployment in plan.deployments),
    )


def client_values(endpoints: Sequence[Endpoint], attempt: AttemptDir) -> dict[str, str]:
    """Give what the placeholders of the client's command stand for."""
    return {"attempt_dir": str(attempt.path)} | {f"endpoint.{one.deployment}": one.url for one in endpoints}


def preflight_step(plan: Plan, attempt: AttemptDir, own: Sequence[str]) -> StepSpec:
    """Describe the step that looks at every node before a replica starts there. It needs the PATH of every step."""
    parts: list[Deployment | Client] = [*plan.deployments, plan.client]
    paths = [part.env["PATH"] for part in parts if "PATH" in part.env]
    env = {path.name: path for path in paths if isinstance(path, FromEnv)}
    command = (*own, "run", "--preflight", "--attempt-dir", str(attempt.path))
    return StepSpec(name=PREFLIGHT, role=Role.PREFLIGHT, command=command, node=None, env=env)


def srun_arguments(spec: StepSpec, nodes: Sequence[str], identity: Path, own: Sequence[str]) -> list[str]:
    """Write the command that starts a step under Slurm. `nodes` are all nodes of the allocation."""
    where = [spec.node] if spec.node is not None else list(nodes)
    memory = "0" if spec.memory_bytes is None else slurm_mebibytes(spec.memory_bytes)
    arguments = [
        "srun", f"--job-name={spec.name}", f"--nodes={len(where)}", f"--ntasks={len(where)}", "--ntasks-per-node=1",
        f"--nodelist={','.join(where)}", f"--cpus-per-task={spec.cpus}", f"--mem={memory}", "--export=ALL",
        "--input=none", "--kill-on-bad-exit=0",
    ]  # fmt: skip
    if spec.role is Role.REPLICA:
        arguments += ["--exact", f"--gres=gpu:{len(spec.gpus)}" if spec.gpus else "--gres=none"]
        return [*arguments, *_with_identity(spec, identity, own)]
    arguments += ["--overlap", "--gres=none", "env", "CUDA_VISIBLE_DEVICES="]
    if spec.role is Role.PREFLIGHT:
        return [*arguments, *spec.command]
    return [*arguments, *_with_identity(spec, identity, own)]


def local_arguments(spec: StepSpec, identity: Path, own: Sequence[str], parent: int) -> list[str]:
    """Write the command that starts a step on this machine; it dies with the process `parent`."""
    return [*own, "exec", "--identity", str(identity), "--die-with-parent", str(parent), "--", *spec.command]


def _with_identity(spec: StepSpec, identity: Path, own: Sequence[str]) -> list[str]:
    return [*own, "exec", "--identity", str(identity), "--", *spec.command]


def launcher_environment(environ: Mapping[str, str], spec: StepSpec) -> dict[str, str]:
    """Give the environment in which a step is started: the attempt's own, and the step's values.

    Raises KeyError naming a variable that `from_env` refers to and that is not there.
    """
    kept = {
        key: value
        for key, value in environ.items()
        if not key.startswith(DETACHED_ENV) and not key.startswith(_INHERITED_REQUESTS)
    }
    return kept | resolve_env(spec.env or {}, environ)


def local_gpu_environment(environ: Mapping[str, str], spec: StepSpec) -> dict[str, str]:
    """Give the variable that shows a local step its own GPUs, of those that this process may use."""
    visible = [one for one in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one]
    chosen = [visible[gpu] if gpu < len(visible) else str(gpu) for gpu in spec.gpus]
    return {"CUDA_VISIBLE_DEVICES": ",".join(chosen)}


def resolve_env(env: Mapping[str, EnvValue], environ: Mapping[str, str]) -> dict[str, str]:
    """Look up the values of an `env` table. Raises KeyError naming a variable that is not there."""
    return {key: environ[value.name] if isinstance(value, FromEnv) else value for key, value in env.items()}


def missing_env(parts: Sequence[Deployment | Client], environ: Mapping[str, str]) -> list[str]:
    """List the variables that the parts' `from_env` refers to and that are not there."""
    names = [value.name for part in parts for value in part.env.values() if isinstance(value, FromEnv)]
    return [name for name in dict.fromkeys(names) if name not in environ]


def deployment_of(plan: Plan, name: str) -> Deployment:
    """Find a deployment of the plan by its name."""
    return next(deployment for deployment in plan.deployments if deployment.name == name)


def stats_path(attempt: AttemptDir, endpoint: str) -> Path:
    """Locate the file in which an endpoint leaves its final counts."""
    return attempt.path / f"stats-{endpoint}.json"
