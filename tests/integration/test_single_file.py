"""The ways to get dd-proxy onto a machine: an environment of its own, and one file that needs only Python."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import venv
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

import proxy
from tests.integration.support import contacts, free_ports, one_by_one, statuses
from tools.launch import FAKE_BACKEND, ROOT, DdProxy, Fake, ask
from tools.pyz import PREAMBLE

BARE_PYTHON = str(Path(sys.base_prefix) / "bin" / "python{}.{}".format(*sys.version_info[:2]))


PLAN = """
[job]
name = "single-file"
nodes = 1
cpus_per_node = 8
time = "00:10:00"

[[deployment]]
name = "model"
replicas = 3
command = {fake}
base_port = {port}
startup_timeout = "1m"
stop_timeout = "10s"

[client]
command = ["sh", "-c", "curl -sSf {{endpoint.model}}/v1/models > {{attempt_dir}}/out.json"]
[[client.output]]
path = "out.json"
"""


def bare_env(shiv_root: Path) -> dict[str, str]:
    """Return an environment in which nothing of this one's packages can be seen."""
    return {"PATH": os.environ["PATH"], "HOME": str(shiv_root), "SHIV_ROOT": str(shiv_root), "LC_ALL": "C.UTF-8"}


@pytest.mark.slow
def test_one_file_serves_traffic_from_several_processes_that_start_at_once(
    pyz: Path, tmp_path: Path, replicas: list[Fake]
) -> None:
    root = tmp_path / "unpacked"
    urls = [url for replica in replicas for url in replica.urls]

    def start(number: int) -> DdProxy:
        command = (BARE_PYTHON, "-I", str(pyz))
        return DdProxy(tmp_path / f"{number}.log", urls, command=command, env=bare_env(root))

    with ExitStack() as stack, ThreadPoolExecutor(6) as pool:
        proxies = [stack.enter_context(made) for made in pool.map(start, range(6))]
        assert len({proxy.port for proxy in proxies}) == 6
        for started in proxies:
            assert started.stop() == 0
    unpacked = [entry.name for entry in root.iterdir() if not entry.name.startswith(".")]
    assert len(unpacked) == 1  # unpacked once, and no half of it left behind


@pytest.mark.slow
async def test_one_file_answers_requests(pyz: Path, tmp_path: Path, replicas: list[Fake]) -> None:
    command = (BARE_PYTHON, "-I", str(pyz))
    urls = [url for replica in replicas for url in replica.urls]
    with DdProxy(tmp_path / "log", urls, command=command, env=bare_env(tmp_path / "unpacked")) as started:
        assert statuses(await one_by_one(started, 16)) == {200: 16}
        assert contacts(replicas) == [2] * 8
        assert not any("uvloop" in json.dumps(event) for event in started.events())  # it came with the file


@pytest.mark.slow
def test_one_file_runs_a_whole_plan_and_every_step_of_it(pyz: Path, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    fake = [*FAKE_BACKEND, "--host", "{host}", "--port", "{port}"]
    (tmp_path / "plan.toml").write_text(PLAN.format(fake=json.dumps(fake), port=free_ports(3)))
    argv = [BARE_PYTHON, "-I", str(pyz), "run", "plan.toml", "--local"]
    env = bare_env(tmp_path / "unpacked")
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    attempt = Path(json.loads(done.stdout.splitlines()[0])["attempt_dir"])
    assert json.loads((attempt / "attempt.json").read_text())["classification"] == "succeeded"
    assert json.loads((attempt / "out.json").read_text())["object"] == "list"


def test_one_file_says_in_one_line_that_it_does_not_fit_the_machine() -> None:
    fits = PREAMBLE.format(fits=[(sys.platform, platform.machine(), "{}.{}".format(*sys.version_info[:2]))])
    other = PREAMBLE.format(fits=[(sys.platform, "pdp11", "3.11"), (sys.platform, "pdp11", "3.12")])
    assert subprocess.run([sys.executable, "-c", fits]).returncode == 0
    done = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert f"built for 3.11, 3.12 on {sys.platform} pdp11" in done.stderr


@pytest.mark.slow
def test_pip_install_into_a_fresh_environment_gives_a_working_command(tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    pip = [str(tmp_path / "env" / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", str(ROOT)], check=True, cwd=tmp_path)
    command = str(tmp_path / "env" / "bin" / "dd-proxy")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.split() == ["dd-proxy", proxy.__version__]
    with Fake(tmp_path / "fake.log", "--port", "0") as fake:
        with DdProxy(tmp_path / "proxy.log", fake.urls, command=(command,)) as started:
            page = ask(started.side_port, "GET", "/")[1].decode()
            assert "<html" in page.lower()  # the page's files were installed too
            assert started.stop() == 0
