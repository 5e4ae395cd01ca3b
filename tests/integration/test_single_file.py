"""The ways to get dd-proxy onto a machine: an environment of its own, and one file that needs only Python."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

import proxy
from tests.integration.support import contacts, one_by_one, statuses
from tools.launch import ROOT, DdProxy, Fake, ask

BARE_PYTHON = str(Path(sys.base_prefix) / "bin" / "python{}.{}".format(*sys.version_info[:2]))


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
def test_one_file_says_in_one_line_that_a_python_is_too_old(pyz: Path, tmp_path: Path) -> None:
    old = next(filter(None, map(shutil.which, ("python3.10", "python3.9", "python3.8"))), None)
    if old is None or subprocess.run([old, "-V"], capture_output=True).returncode:
        pytest.skip("no Python older than 3.11 is installed")
    done = subprocess.run([old, str(pyz), "--version"], env=bare_env(tmp_path), capture_output=True, text=True)
    assert done.returncode != 0
    assert len(done.stderr.splitlines()) == 1
    assert "built for" in done.stderr


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
