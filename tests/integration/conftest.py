"""Real processes for the integration tests, and the check that none of them leaves anything behind."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.integration.support import StartProxy, StartReplicas
from tools.launch import DD_PROXY, ROOT, DdProxy, Fake, start_fakes, wait_until

PLAIN_ASYNCIO = (sys.executable, str(ROOT / "tools" / "plain_asyncio.py"))


@pytest.fixture(scope="session")
def eight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Fake]]:
    """Run eight replicas for the whole session; tests get them clean through `replicas`."""
    with ExitStack() as stack:
        yield start_fakes(stack, tmp_path_factory.mktemp("eight"), 8, "--token-interval", "0.002")


@pytest.fixture
def replicas(eight: list[Fake]) -> list[Fake]:
    """Give eight replicas without faults and with counts at zero."""
    for replica in eight:
        replica.clear()
        wait_until(partial(_idle, replica), what="an idle replica")
        replica.reset()
    return eight


@pytest.fixture
def start_replicas(tmp_path: Path) -> Iterator[StartReplicas]:
    """Start replicas of the test's own, which it may kill."""
    with ExitStack() as stack:
        yield lambda number, *args: start_fakes(stack, tmp_path, number, *args)


@pytest.fixture
def start_proxy(tmp_path: Path) -> Iterator[StartProxy]:
    """Start proxies; when the test is over, each must be at rest, stop in order and have logged no traceback."""
    with ExitStack() as stack:
        started: list[DdProxy] = []
        numbers = itertools.count()

        def start(replicas: list[Fake], *args: str, command: tuple[str, ...] = ()) -> DdProxy:
            urls = [url for replica in replicas for url in replica.urls]
            proxy = DdProxy(tmp_path / f"proxy-{next(numbers)}.log", urls, *args, command=command)
            started.append(stack.enter_context(proxy))
            return proxy

        yield start
        for proxy in started:
            if proxy.process.poll() is None:
                _assert_at_rest(proxy)
                assert proxy.stop() == 0
            assert "Traceback" not in proxy.log.read_text()


@pytest.fixture(params=["uvloop", "asyncio"])
def loop_command(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Give the command of the proxy on uvloop, and on plain asyncio."""
    return tuple(DD_PROXY) if request.param == "uvloop" else PLAIN_ASYNCIO


@pytest.fixture(scope="session")
def pyz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the single-file program once."""
    path = tmp_path_factory.mktemp("pyz") / "dd-proxy.pyz"
    done = subprocess.run([sys.executable, str(ROOT / "tools" / "pyz.py"), str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return path


def _idle(replica: Fake) -> bool:
    return bool(replica.routing()["active"] == 0)


def _assert_at_rest(proxy: DdProxy) -> None:
    """Fail when a request or a lease was left behind."""

    def at_rest() -> bool:
        metrics = proxy.metrics()
        left = metrics.total("active_requests") + metrics.total("upstream_connections", state="active")
        return left == 0

    wait_until(at_rest, what="an end of all requests and leases")
