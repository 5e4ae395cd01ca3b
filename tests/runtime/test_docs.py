"""The pages about Slurm are true: their plans are valid, every key, classification and error has its place."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from runtime.planfile import CLIENT_KEYS, DEPLOYMENT_KEYS, JOB_KEYS, OUTPUT_KEYS, RUNTIME_KEYS
from runtime.state import Classification
from tests.runtime.plans import SMALL, parse

DOCS = Path(__file__).parents[2] / "docs"
SLURM = (DOCS / "slurm.md").read_text(encoding="utf-8")
TROUBLE = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```toml\n(.*?)```", SLURM, re.DOTALL)


def test_the_whole_plan_is_valid() -> None:
    [plan] = [block for block in BLOCKS if "[job]" in block]
    assert parse(plan).deployments[0].replicas == 8


@pytest.mark.parametrize("command", [block for block in BLOCKS if block.startswith("command")])
def test_each_container_command_fits_into_a_plan(command: str) -> None:
    plan = parse(SMALL.replace('command = ["serve"]', command))
    assert plan.deployments[0].command == tuple(tomllib.loads(command)["command"])


def test_every_key_is_in_the_table_of_keys() -> None:
    table = SLURM[SLURM.index("### Keys") : SLURM.index("Commands are lists")]
    for keys in (JOB_KEYS, DEPLOYMENT_KEYS, CLIENT_KEYS, OUTPUT_KEYS, RUNTIME_KEYS):
        for key in keys:
            assert re.search(rf"`(?:[a-z]+\.)?{key}`", table), key


@pytest.mark.parametrize("classification", list(Classification))
def test_every_classification_has_its_entry(classification: Classification) -> None:
    assert f"### `{classification}`\n" in TROUBLE


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("nodecheck", "is taken by another process"),
        ("nodecheck", "does not have that address"),
        ("nodecheck", "is reserved for root"),
        ("nodecheck", "was not found in PATH"),
        ("nodecheck", "is not an executable file here"),
        ("preflight", "are left of the job's time"),
        ("preflight", "not set in the environment of the attempt"),
        ("preflight", "the plan places replicas on"),
        ("preflight", "preflight: no answer from"),
        ("preflight", "preflight failed on"),
        ("site_slurm", "cannot be resolved on the head node"),
        ("site_slurm", "SLURM_JOB_NODELIST is not set"),
        ("startup", "did not become ready within"),
        ("startup", "did not find every backend healthy within"),
        ("startup", "the monitor saw no good moment within"),
        ("attempt", "before the attempt was ready; see "),
        ("status", "the controller is gone"),
        ("status", "the job ended before its controller had started"),
        ("budget", "an orderly end may take"),
    ],
)
def test_every_error_has_its_entry(module: str, message: str) -> None:
    sources = Path(__file__).parents[2] / "runtime"
    assert message in (sources / f"{module}.py").read_text(encoding="utf-8"), "no message any more"
    assert any(message in line for line in TROUBLE.splitlines() if line.startswith("### "))
