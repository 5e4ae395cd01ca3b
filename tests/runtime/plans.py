"""Plans for the tests of the lifecycle's pure parts."""

from __future__ import annotations

import tomllib
from pathlib import Path

from runtime.plan import Plan
from runtime.planfile import PlanErrors, parse_plan

FULL = """
[job]
name = "gen"
nodes = 2
gpus_per_node = 4
cpus_per_node = 32
mem_per_node = "500GiB"
time = "02:00:00"
partition = "batch"
sbatch = ["--exclusive"]

[[deployment]]
name = "llama"
replicas = 8
gpus_per_replica = 1
cpus_per_replica = 4
mem_per_replica = "40GiB"
command = ["vllm", "serve", "meta-llama/X", "--host", "{host}", "--port", "{port}"]
base_port = 18000
engine = "vllm"
health_path = "/health"
startup_timeout = "15m"
stop_timeout = "30s"
env = { HF_HUB_OFFLINE = "1", HF_TOKEN = { from_env = "HF_TOKEN" } }
[deployment.endpoint]
listen_port = 8000
max_waiting_requests = 128

[client]
command = ["python", "generate.py", "--base-url", "{endpoint.llama}/v1", "--out", "{attempt_dir}/out.jsonl"]
cpus = 4
mem = "4GiB"
env = {}
[[client.output]]
path = "out.jsonl"
records = 1000

[runtime]
drain_timeout = "10s"
monitor_interval = "1s"
monitor_failures = 3
"""

SMALL = """
[job]
name = "small"
cpus_per_node = 4
time = "00:10:00"
[[deployment]]
name = "m"
command = ["serve"]
base_port = 18000
[client]
command = ["work"]
"""


def parse(text: str, path: Path = Path("/plans/plan.toml")) -> Plan:
    """Parse a plan's text as if it came from `path`."""
    return parse_plan(tomllib.loads(text), path)


def errors_of(text: str) -> dict[str, str]:
    """Give the errors of a plan by key; empty for a valid plan."""
    try:
        parse(text)
    except PlanErrors as found:
        return {error.key: error.reason for error in found.errors}
    return {}


def changed(text: str, *changes: tuple[str, str]) -> str:
    """Replace parts of a plan's text: (old, new) pairs."""
    for old, new in changes:
        assert old in text, f"{old!r} is not in the plan"
        text = text.replace(old, new)
    return text
