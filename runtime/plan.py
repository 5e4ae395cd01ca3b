"""The plan as frozen records, and their JSON form (the resolved plan of an attempt).

Owns the shape. Refuses to know TOML, files and what makes a plan valid (planfile does), and never holds a value that
`from_env` refers to: such a value is looked up only when a step starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

PLAN_SCHEMA_VERSION = 1
_DETACHED_PREFIX = "DD_PROXY_PLAN_ENV_"


@dataclass(frozen=True, slots=True)
class FromEnv:
    """A value that is read from the attempt's own environment when it starts, and stored nowhere."""

    name: str


EnvValue = str | FromEnv
OptionValue = str | int | float | bool | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Job:
    """What Slurm is asked for. Sizes are per node; `mem_per_node_bytes` None leaves the site's default."""

    name: str
    nodes: int
    gpus_per_node: int
    cpus_per_node: int
    mem_per_node_bytes: int | None
    time_s: float
    partition: str | None
    account: str | None
    qos: str | None
    constraint: str | None
    sbatch: tuple[str, ...]
    state_dir: Path


@dataclass(frozen=True, slots=True)
class Deployment:
    """N equal replicas of one model behind one endpoint. Replica i listens on `base_port + i`.

    `endpoint` holds `serve` options by their TOML names, `engine` and `health_path` included.
    """

    name: str
    replicas: int
    gpus_per_replica: int
    cpus_per_replica: int
    mem_per_replica_bytes: int | None
    command: tuple[str, ...]
    base_port: int
    engine: str
    health_path: str
    startup_timeout_s: float
    stop_timeout_s: float
    env: Mapping[str, EnvValue]
    endpoint: Mapping[str, OptionValue]

    def replica_name(self, index: int) -> str:
        """Name the step of replica `index`."""
        return f"{self.name}-replica-{index}"

    def endpoint_name(self) -> str:
        """Name the step of this deployment's endpoint."""
        return f"{self.name}-endpoint"

    def port(self, index: int) -> int:
        """Tell the port of replica `index`."""
        return self.base_port + index


@dataclass(frozen=True, slots=True)
class Output:
    """One file that a successful client leaves. `records` is its exact number of lines; None: only not empty."""

    path: str
    records: int | None


@dataclass(frozen=True, slots=True)
class Client:
    """The command that uses the endpoints, and what it must leave behind."""

    command: tuple[str, ...]
    cpus: int
    mem_bytes: int | None
    env: Mapping[str, EnvValue]
    outputs: tuple[Output, ...]


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """How the lifecycle itself behaves. Times in seconds."""

    drain_timeout_s: float
    monitor_interval_s: float
    monitor_failures: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A valid plan. `path` is the file it came from, None when it came from elsewhere."""

    job: Job
    deployments: tuple[Deployment, ...]
    client: Client
    runtime: RuntimeOptions
    path: Path | None


def serve_arguments(options: Mapping[str, OptionValue]) -> list[str]:
    """Write `serve` options as command-line arguments, in the order given; a false switch is left out."""
    arguments: list[str] = []
    for key, value in options.items():
        flag = "--" + key.replace("_", "-")
        if isinstance(value, bool):
            arguments += [flag] if value else []
        elif isinstance(value, tuple):
            arguments += [part for item in value for part in (flag, item)]
        else:
            arguments += [flag, str(value)]
    return arguments


def detach_env(plan: Plan) -> tuple[Plan, dict[str, str]]:
    """Replace every literal `env` value by a reference, so that the plan can be stored without any value.

    Returns that plan and the values by the names it refers to; the attempt's environment must carry them.
    """
    values: dict[str, str] = {}

    def detached(owner: str, env: Mapping[str, EnvValue]) -> dict[str, EnvValue]:
        result: dict[str, EnvValue] = {}
        for key, value in env.items():
            if isinstance(value, str):
                name = f"{_DETACHED_PREFIX}{owner}_{key}"
                values[name] = value
                value = FromEnv(name)
            result[key] = value
        return result

    deployments = tuple(
        replace(deployment, env=detached(str(number), deployment.env))
        for number, deployment in enumerate(plan.deployments)
    )
    client = replace(plan.client, env=detached("client", plan.client.env))
    return replace(plan, deployments=deployments, client=client), values


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """Give the resolved plan as JSON values; a `from_env` value stays a reference."""
    data = asdict(plan)
    data["schema_version"] = PLAN_SCHEMA_VERSION
    data["path"] = None if plan.path is None else str(plan.path)
    data["job"]["state_dir"] = str(plan.job.state_dir)
    for deployment, table in zip(plan.deployments, data["deployments"], strict=True):
        table["env"] = _env_to_json(deployment.env)
    data["client"]["env"] = _env_to_json(plan.client.env)
    return data


def plan_from_json(data: Mapping[str, Any]) -> Plan:
    """Rebuild the plan that `plan_to_json` wrote. Raises ValueError for another schema or a broken shape."""
    if data.get("schema_version") != PLAN_SCHEMA_VERSION:
        raise ValueError(f"plan schema {data.get('schema_version')!r} is not {PLAN_SCHEMA_VERSION}")
    try:
        job = dict(data["job"])
        job["sbatch"] = tuple(job["sbatch"])
        job["state_dir"] = Path(job["state_dir"])
        client = _with_env(data["client"])
        client["outputs"] = tuple(Output(**output) for output in client["outputs"])
        return Plan(
            job=Job(**job),
            deployments=tuple(_deployment_from_json(item) for item in data["deployments"]),
            client=Client(**client),
            runtime=RuntimeOptions(**data["runtime"]),
            path=None if data["path"] is None else Path(data["path"]),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a resolved plan: {error}") from None


def _deployment_from_json(item: Mapping[str, Any]) -> Deployment:
    table = _with_env(item)
    table["endpoint"] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in table["endpoint"].items()
    }
    return Deployment(**table)


def _with_env(item: Mapping[str, Any]) -> dict[str, Any]:
    table = dict(item)
    table["command"] = tuple(table["command"])
    table["env"] = {key: _env_from_json(value) for key, value in table["env"].items()}
    return table


def _env_to_json(env: Mapping[str, EnvValue]) -> dict[str, str | dict[str, str]]:
    return {key: {"from_env": value.name} if isinstance(value, FromEnv) else value for key, value in env.items()}


def _env_from_json(value: str | Mapping[str, str]) -> EnvValue:
    return value if isinstance(value, str) else FromEnv(value["from_env"])
