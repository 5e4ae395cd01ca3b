"""The batch script: the same plan gives the same bytes anywhere, and Slurm reads in it what the plan says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.planfile import load_plan
from runtime.render import render
from tests.runtime.minislurm import MiniSlurm
from tests.runtime.plans import FULL, SMALL, changed, parse

GOLDEN = Path(__file__).parent / "golden"
PLANS = ("full", "small")
DD_PROXY = (sys.executable, "-m", "proxy.cli")
CHECKOUT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", PLANS)
def test_the_script_is_the_golden_one(name: str) -> None:
    assert render(load_plan(GOLDEN / f"{name}.toml")) == (GOLDEN / f"{name}.sh").read_text()


@pytest.mark.parametrize("name", PLANS)
def test_the_script_is_sound_shell(name: str) -> None:
    script = str(GOLDEN / f"{name}.sh")
    subprocess.run(["bash", "-n", script], check=True)
    shellcheck = shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed: apt-get install -y shellcheck")
    subprocess.run([shellcheck, script], check=True)


def test_render_prints_the_same_bytes_in_any_directory_locale_and_time_zone(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(changed(SMALL, ('"00:10:00"', '"00:10:00"\nsbatch = ["--comment=grün"]')), encoding="utf-8")
    printed = set()
    for directory, file, locale, zone in (
        (tmp_path, "plan.toml", "C", "UTC"),
        (Path("/"), str(plan), "C.UTF-8", "Asia/Kathmandu"),
        (tmp_path, "./plan.toml", "POSIX", "America/New_York"),
    ):
        environment = {**os.environ, "LC_ALL": locale, "TZ": zone, "PYTHONPATH": str(CHECKOUT), "PYTHONUTF8": "0"}
        command = [*DD_PROXY, "render", file]
        printed.add(subprocess.run(command, cwd=directory, env=environment, check=True, capture_output=True).stdout)
    assert printed == {render(load_plan(plan)).encode()}


def test_no_value_of_env_gets_into_the_script() -> None:
    assert "s3cret" not in render(load_plan(GOLDEN / "full.toml"))


def test_without_gpus_none_are_asked_for() -> None:
    assert "gres" not in render(parse(SMALL))
    assert "#SBATCH --gres=gpu:4\n" in render(parse(FULL))


def test_the_warning_comes_early_enough_for_the_whole_budget() -> None:
    assert "#SBATCH --signal=B:USR1@47\n" in render(parse(FULL))  # 10 + 2 + 30 + 5
    longer = changed(FULL, ('"10s"', '"2m"'), ('"30s"', '"1m"'))
    assert "#SBATCH --signal=B:USR1@187\n" in render(parse(longer))


@pytest.mark.parametrize("option", ["--requeue", "--no-requeue"])
def test_the_plan_decides_about_requeue(option: str) -> None:
    script = render(parse(changed(FULL, ("--exclusive", option))))
    assert script.count("requeue\n") == 1
    assert f"#SBATCH {option}\n" in script


def test_the_script_becomes_the_controller(tmp_path: Path) -> None:
    script = tmp_path / "script.sh"
    script.write_text(render(parse(SMALL)))
    show = ["sh", "-c", 'echo "$$" "$@"', "sh"]
    with subprocess.Popen(["bash", str(script), "/a b", *show], stdout=subprocess.PIPE, text=True) as process:
        out, _ = process.communicate(timeout=10)
    assert out.split("\n")[0] == f"{process.pid} run --attempt-dir /a b"


def test_the_script_without_its_argument_says_how_it_is_used(tmp_path: Path) -> None:
    script = tmp_path / "script.sh"
    script.write_text(render(parse(SMALL)))
    done = subprocess.run(["bash", str(script)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "usage: sbatch script.sh ATTEMPT_DIR [DD_PROXY_COMMAND...]\n")


@pytest.mark.slurm
def test_slurm_reads_what_the_plan_says(slurm: MiniSlurm, tmp_path: Path) -> None:
    text = changed(
        FULL,
        ("gpus_per_node = 4", "gpus_per_node = 2"),
        ("cpus_per_node = 32", "cpus_per_node = 4"),
        ('"500GiB"', '"2GiB"'),
        ("replicas = 8", "replicas = 1"),
        ("cpus_per_replica = 4", "cpus_per_replica = 1"),
        ('"40GiB"', '"1GiB"'),
        ("\ncpus = 4", "\ncpus = 1"),
        ('"4GiB"', '"1GiB"'),
        ('partition = "batch"', 'partition = "main"'),
        ('["--exclusive"]', '["--exclusive", "--comment=it\'s \\"two\\" words # \\\\ and one"]'),
    )
    script = tmp_path / "script.sh"
    script.write_text(render(parse(text)))
    job_id = slurm.run("sbatch", "--parsable", "--hold", "--output=/dev/null", str(script), "/nowhere", "true").strip()
    shown = slurm.run("scontrol", "-o", "show", "job", job_id)
    job = slurm.job(job_id)
    assert (job["JobName"], job["NumNodes"], job["CPUs/Task"], job["MinMemoryNode"]) == ("gen", "2-2", "4", "2G")
    assert (job["TresPerNode"], job["TimeLimit"], job["Partition"]) == ("gres:gpu:2", "02:00:00", "main")
    assert (job["Requeue"], job["OverSubscribe"]) == ("1", "NO")
    assert ' Comment=it\'s "two" words # \\ and one ' in shown
