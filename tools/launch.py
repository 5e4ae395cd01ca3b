"""Starts fake replicas and dd-proxy as real processes, and asks them what they did.

Owns child processes that print one JSON line when they are ready. Used by the demo and by tests; knows nothing of what
is sent through them.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).resolve().parents[1]
FAKE_BACKEND = [sys.executable, str(ROOT / "tools" / "fake_backend.py")]
DD_PROXY = [str(Path(sys.executable).with_name("dd-proxy"))]
START_TIMEOUT_S = 30.0


class StartError(Exception):
    """A process did not come up; the text holds what it said."""


class Child:
    """A process that printed its ready line; leaving the context ends it, whatever happens."""

    def __init__(self, argv: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self.argv = list(argv)
        self.log = log
        with log.open("ab") as stderr:
            self.process: subprocess.Popen[bytes] = subprocess.Popen(
                self.argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, env=env
            )
        try:
            self.line: dict[str, Any] = self._ready_line()
        except BaseException:
            self.kill()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self.process.pid

    def stop(self, timeout_s: float = 30.0) -> int:
        """Send SIGTERM and return the exit code. Raises TimeoutExpired."""
        self.process.terminate()
        return self.wait(timeout_s)

    def wait(self, timeout_s: float = 30.0) -> int:
        """Return the exit code. Raises TimeoutExpired."""
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        """End the process at once, if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def pause(self) -> None:
        """Stop the process where it is: its sockets stay open and silent."""
        self.process.send_signal(signal.SIGSTOP)

    def events(self) -> list[dict[str, Any]]:
        """Return the JSON lines that the process has logged so far."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def cpu_s(self) -> float:
        """Return the CPU seconds used so far, user and system."""
        stat = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    def peak_rss_bytes(self) -> int:
        """Return the largest resident size so far."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return 0

    def _ready_line(self) -> dict[str, Any]:
        stdout = self.process.stdout
        assert stdout is not None
        line = _read_line(stdout, START_TIMEOUT_S)
        try:
            ready = json.loads(line)
        except ValueError:
            said = self.log.read_text(errors="replace")[-2000:]
            raise StartError(f"{' '.join(self.argv[:3])} … did not start: {line!r} {said}") from None
        assert isinstance(ready, dict)
        return ready


class Fake(Child):
    """A process of fake replicas."""

    def __init__(self, log: Path, *args: str) -> None:
        super().__init__([*FAKE_BACKEND, *args], log)
        self.ports: list[int] = self.line["ports"]
        self.control: int = self.line["control"]

    @property
    def port(self) -> int:
        """Return the port of the first replica."""
        return self.ports[0]

    @property
    def urls(self) -> list[str]:
        """Return the base URL of each replica."""
        return [f"http://127.0.0.1:{port}" for port in self.ports]

    def fault(self, kind: str, *, port: int | str = "all", **fields: Any) -> None:
        """Begin a fault on one replica or all. Raises RuntimeError when the replica does not know it."""
        self._ask("POST", f"/debug/fault?port={port}", {"kind": kind, **fields})

    def clear(self, *, port: int | str = "all") -> None:
        """End all faults."""
        self._ask("POST", f"/debug/fault?port={port}", {"kind": "clear"})

    def reset(self) -> None:
        """Begin to count anew."""
        self._ask("POST", "/debug/reset?port=all")

    def routing(self, port: int | None = None) -> dict[str, Any]:
        """Return the counts of one replica, by default the first."""
        return self._ask("GET", f"/debug/routing?port={port or self.port}")

    def routings(self) -> list[dict[str, Any]]:
        """Return the counts of every replica, in the order of the ports."""
        replicas: list[dict[str, Any]] = self._ask("GET", "/debug/routing?port=all")["replicas"]
        return replicas

    def _ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        status, answer = ask(self.control, method, path, body)
        if status != 200:
            raise RuntimeError(f"{method} {path}: {status} {answer!r}")
        answered: dict[str, Any] = json.loads(answer)
        return answered


class DdProxy(Child):
    """A running `dd-proxy serve` on ports of its own choice."""

    def __init__(
        self,
        log: Path,
        backends: Sequence[str],
        *args: str,
        command: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        chosen = ["--listen-port", "0"] + [word for url in backends for word in ("--backend", url)]
        super().__init__([*(command or DD_PROXY), "serve", *chosen, *args], log, env)
        self.port = int(self.line["listen"].rpartition(":")[2])
        self.side_port = int(self.line["metrics"].rpartition(":")[2])
        self.url = f"http://127.0.0.1:{self.port}"

    def metrics(self) -> Metrics:
        """Return the current values on the side port."""
        return Metrics(ask(self.side_port, "GET", "/metrics")[1].decode())

    def backends(self) -> dict[str, dict[str, Any]]:
        """Return the entries of `GET /backends` by id."""
        return {entry["id"]: entry for entry in json.loads(ask(self.side_port, "GET", "/backends")[1])}

    def admin(self, method: str, path: str, body: object = None) -> int:
        """Change something through the side port; return the status."""
        return ask(self.side_port, method, path, body)[0]

    def wait_ready(self, timeout_s: float = 30.0) -> None:
        """Wait until every required backend is healthy. Raises TimeoutError."""
        wait_until(lambda: ask(self.side_port, "GET", "/readyz")[0] == 200, timeout_s, "readiness")


class Metrics:
    """Prometheus samples, asked by name and labels."""

    def __init__(self, text: str) -> None:
        self._samples: dict[str, list[tuple[dict[str, str], float]]] = defaultdict(list)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self._samples[sample.name].append((sample.labels, sample.value))

    def total(self, name: str, **labels: str) -> float:
        """Return the sum over all series of `dd_proxy_NAME` with these labels; 0 when there is none."""
        wanted = labels.items()
        return sum(value for has, value in self._samples["dd_proxy_" + name] if wanted <= has.items())

    def by(self, name: str, label: str) -> dict[str, float]:
        """Return the values that are not zero by one label, summed over the others."""
        out: dict[str, float] = defaultdict(float)
        for has, value in self._samples["dd_proxy_" + name]:
            out[has[label]] += value
        return {key: value for key, value in out.items() if value}


def ask(port: int, method: str, path: str, body: object = None, timeout_s: float = 10.0) -> tuple[int, bytes]:
    """Return status and body of one request to this machine. Raises OSError."""
    connection = HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    with contextlib.closing(connection):
        connection.request(method, path, None if body is None else json.dumps(body))
        response = connection.getresponse()
        return response.status, response.read()


def wait_until(holds: Callable[[], bool], timeout_s: float = 30.0, what: str = "the condition") -> None:
    """Wait until something that another process does has happened. Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come about in {timeout_s:g} s")
        time.sleep(0.02)


def start_fakes(stack: contextlib.ExitStack, directory: Path, number: int, *args: str) -> list[Fake]:
    """Start a number of fake replicas side by side, each a process of its own; the stack ends them."""

    def start(index: int) -> Fake:
        return Fake(directory / f"replica-{index}.log", "--port", "0", *args)

    with ThreadPoolExecutor(number) as pool:
        starting = [pool.submit(start, index) for index in range(number)]
    for future in starting:
        if future.exception() is None:
            stack.enter_context(future.result())
    return [future.result() for future in starting]


def _read_line(stream: IO[bytes], timeout_s: float) -> bytes:
    deadline = time.monotonic() + timeout_s
    line = b""
    while not line.endswith(b"\n"):
        readable, _, _ = select.select([stream], [], [], max(0.0, deadline - time.monotonic()))
        piece = os.read(stream.fileno(), 65536) if readable else b""
        if not piece:
            break
        line += piece
    return line
