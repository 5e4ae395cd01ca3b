"""What the README says is so: its options, its links, and its batch script."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.support import free_ports
from tests.runtime.minislurm import INSTALL, MiniSlurm, Shape, missing_programs
from tools.launch import DD_PROXY, FAKE_BACKEND, ROOT
from tools.readme import outdated

GENERATE = """
import json, sys, urllib.request
url = sys.argv[sys.argv.index("--base-url") + 1] + "/chat/completions"
body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}).encode()
for _ in range(40):
    with urllib.request.urlopen(urllib.request.Request(url, body)) as answer:
        assert json.load(answer)["usage"]["completion_tokens"] == 3
open("out.txt", "w").write("40 answers")
"""


def test_generated_parts_are_up_to_date() -> None:
    assert not outdated(), "run python tools/readme.py"


def test_every_option_that_help_shows_is_in_the_readme() -> None:
    shown = subprocess.run([*DD_PROXY, "serve", "--help"], capture_output=True, text=True, check=True).stdout
    options = set(re.findall(r"^  (--[a-z-]+)", shown, re.MULTILINE)) - {"--config"}
    assert len(options) > 40
    readme = (ROOT / "README.md").read_text()
    assert options <= set(re.findall(r"^\| `(--[a-z-]+)", readme, re.MULTILINE))


def test_the_plan_and_the_options_file_in_the_readme_are_good(tmp_path: Path) -> None:
    files = re.findall(r"```toml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(files) == 2
    for file in files:
        (tmp_path / "file.toml").write_text(file)
        done = subprocess.run([*DD_PROXY, "check", str(tmp_path / "file.toml")], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("page", sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/*.md")))
def test_links_lead_somewhere(page: str) -> None:
    for path in (ROOT / "README.md", ROOT / page):
        for link in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
            assert (path.parent / link).exists(), f"{path.name} links to {link}"


@dataclass(frozen=True, slots=True)
class Job:
    """The README's batch script in a folder of its own, with stand-ins for vLLM and for the client."""

    folder: Path
    env: dict[str, str]
    ports: range

    def assert_done(self, job_id: str) -> None:
        """Fail unless the client had its answers, the proxy stopped in order, and nothing was left behind."""
        log = (self.folder / "proxy.log").read_text()
        assert (self.folder / "out.txt").read_text() == "40 answers", log
        assert '"event":"stopped","code":0' in log
        assert not (self.folder / f"dd-proxy-{job_id}").exists()
        for port in self.ports:
            with socket.socket() as sock:
                assert sock.connect_ex(("127.0.0.1", port)) != 0, f"something still listens on {port}"


@pytest.fixture
def job(pyz: Path, tmp_path: Path) -> Job:
    """Lay out the script and what it calls, on ports that are free here."""
    first = free_ports(5)
    script = (ROOT / "examples" / "single-file.sbatch").read_text()
    assert script.count("18000") == 1
    assert "--listen-port 8000" in script
    (tmp_path / "job.sbatch").write_text(script.replace("18000", str(first)).replace("8000", str(first + 4)))
    (tmp_path / "generate.py").write_text(GENERATE)
    (tmp_path / "dd-proxy.pyz").symlink_to(pyz)
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "vllm").write_text(f'#!/bin/sh\nexec {" ".join(FAKE_BACKEND)} "$3" "$4" --startup-delay-s 1\n')
    (tools / "vllm").chmod(0o755)
    for name in ("python", "python3"):
        (tools / name).symlink_to(sys.executable)
    env = {"PATH": f"{tools}:{os.environ['PATH']}", "HOME": str(tmp_path), "TMPDIR": str(tmp_path), "MODEL": "m"}
    return Job(tmp_path, env, range(first, first + 5))


@pytest.mark.slow
def test_the_batch_script_starts_everything_runs_the_client_and_leaves_nothing(job: Job) -> None:
    env = {**job.env, "SLURM_JOB_ID": "7"}
    done = subprocess.run(["bash", "job.sbatch"], cwd=job.folder, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    job.assert_done("7")


@pytest.mark.slow
@pytest.mark.slurm
def test_the_batch_script_is_one_that_slurm_takes_and_runs(job: Job) -> None:
    if missing_programs():
        pytest.skip(f"this test needs a real Slurm ({', '.join(missing_programs())} not found): {INSTALL}")
    with MiniSlurm(Shape(nodes=1, gpus=4)) as slurm:
        env = slurm.environment(**{**job.env, "PATH": f"{job.env['PATH']}:/usr/sbin:/sbin"})
        submit = ["sbatch", "--parsable", "job.sbatch"]
        sent = subprocess.run(submit, cwd=job.folder, env=env, capture_output=True, text=True, check=True)
        job_id = sent.stdout.strip()
        slurm.wait_job(job_id, "COMPLETED", timeout=120)
    job.assert_done(job_id)
