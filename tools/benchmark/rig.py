"""The load on a proxy, every answer checked: replicas, wrk, the load generator, uploads, and clients that do nothing.

Owns the replicas' process and what one measurement is: its values, and its faults in words. Everything here runs on the
load's CPU, the proxy alone on the other one.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.benchmark.contestants import HERE, Running, need
from tools.benchmark.host import MIB, Cpus, Meter, memory
from tools.launch import ROOT, Child, ask

BACKENDS = 8
MOST_BACKENDS = 256
CONNECTIONS = 64
UPLOADS = 4  # at once
UPLOAD_MIB = 50
PATH = "/v1/chat/completions"
SMALL = b'{"model":"m","max_tokens":1,"messages":[]}'
REQUEST = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Fleet:
    """The backends that a workload needs: some that serve, and some that answer each request with a 429."""

    serving: int
    refusing: int = 0


EIGHT = Fleet(BACKENDS)


@dataclass(slots=True)
class Measured:
    """What one workload gave on one proxy in one round."""

    values: dict[str, float]
    faults: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Size:
    """How long and how much; `idle_clients` depends on the limit of open files."""

    seconds: int
    events: int  # of a stream
    uploads: int  # of each client that uploads
    idle_clients: int
    rest_s: float


class Rig:
    """The replicas and the load."""

    def __init__(self, cpus: Cpus, size: Size, folder: Path) -> None:
        self.cpus = cpus
        self.size = size
        self.wrk = need("wrk", "wrk")
        argv = [sys.executable, str(HERE / "replica.py"), *["0"] * MOST_BACKENDS, "--refusing", "0"]
        self.replicas = Child(cpus.pinned(argv, cpus.load), folder / "replicas.log")
        self._serving: list[int] = self.replicas.line["ports"]
        self._refusing: list[int] = self.replicas.line["refusing"]

    def close(self) -> None:
        """End the replicas."""
        self.replicas.kill()

    def ports(self, fleet: Fleet) -> list[int]:
        """Give the ports of a fleet."""
        return self._refusing[: fleet.refusing] + self._serving[: fleet.serving]

    def seen(self) -> dict[str, int]:
        """Ask what the replicas have seen."""
        found: dict[str, int] = json.loads(ask(self._serving[0], "GET", "/debug/count")[1])
        return found

    def metered(self, proxy: Running, load: Callable[[], Any]) -> tuple[Any, Meter, dict[str, int]]:
        """Run a load; returns its result, what the proxy used, and what the replicas saw."""
        before = self.seen()
        with Meter(proxy.process.pid, self.cpus.proxy) as meter:
            result = load()
        after = self.seen()
        proxy.check()
        return result, meter, {key: after[key] - before[key] for key in after}

    # ------------------------------------------------------------------ workloads

    def rest(self, proxy: Running) -> Measured:
        """Nothing but the proxy's own probes and samples."""
        _, meter, _ = self.metered(proxy, lambda: time.sleep(self.size.rest_s))
        rss = memory(proxy.process.pid, "VmRSS")
        return Measured({"rss_mib": rss, "percent": meter.cpu_s / meter.wall_s * 100, "others": meter.others})

    def unary(self, proxy: Running) -> Measured:
        """Requests as fast as they go over 64 connections."""
        return self._requests(proxy, "same.lua")[0]

    def varying(self, proxy: Running) -> Measured:
        """The same with heads that differ from request to request."""
        return self._requests(proxy, "vary.lua")[0]

    def retry(self, proxy: Running) -> Measured:
        """The same as unary, where the backend with the fewest requests refuses all of them."""
        measured, seen = self._requests(proxy, "same.lua")
        measured.values["retries"] = seen["refused"] / max(seen["requests"], 1)
        return measured

    def _requests(self, proxy: Running, script: str) -> tuple[Measured, dict[str, int]]:
        self._wrk(proxy.port, 1, script)  # fills the pools
        result, meter, seen = self.metered(proxy, lambda: self._wrk(proxy.port, self.size.seconds, script))
        values = _usage(meter, result["requests"])
        values["per_s"] = result["requests"] / result["us"] * 1e6
        faults = [f"{result[key]} {text}" for key, text in _WRK_FAULTS.items() if result[key]]
        if not 0 <= seen["requests"] - result["requests"] <= 2 * CONNECTIONS:  # those in flight at the end
            faults.append(f"replicas saw {seen['requests']} of {result['requests']} requests")
        return Measured(values, faults), seen

    def _wrk(self, port: int, seconds: int, script: str) -> dict[str, int]:
        argv = [self.wrk, "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "--timeout", "10s", "-s", str(HERE / script)]
        env = {**os.environ, "BENCH_SAME_LUA": str(HERE / "same.lua")}
        argv = self.cpus.pinned([*argv, f"http://127.0.0.1:{port}{PATH}"], self.cpus.load)
        done = subprocess.run(argv, capture_output=True, text=True, timeout=seconds + 60, env=env)
        for line in done.stdout.splitlines():
            if line.startswith("WRK "):
                found: dict[str, int] = json.loads(line[4:])
                return found
        raise RuntimeError(f"wrk: {(done.stdout + done.stderr)[-300:]}")

    def streams(self, proxy: Running, number: int) -> Measured:
        """Streams of 50 events/s each."""
        self._loadgen(proxy.port, number, 5)  # fills the pools
        result, meter, seen = self.metered(proxy, lambda: self._loadgen(proxy.port, number, self.size.events))
        values = _usage(meter, seen["events"])
        values["merged"] = seen["events"] / max(seen["writes"], 1)
        if "median_ttft_ms" in result:
            values["ttft_us"] = result["median_ttft_ms"] * 1000
        faults = [f"{count} streams {outcome}" for outcome, count in result["outcomes"].items() if outcome != "ok"]
        if result["completed"] != number or seen["requests"] != number:
            faults.append(f"{result['completed']} of {number} streams were whole, replicas saw {seen['requests']}")
        return Measured(values, faults)

    def _loadgen(self, port: int, streams: int, events: int) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder, "figures.json")
            argv = [sys.executable, str(ROOT / "tools" / "loadgen.py"), "--url", f"http://127.0.0.1:{port}"]
            argv += ["--users", str(streams), "--requests", str(streams), "--ramp-up", "0.5", "--stream"]
            argv += ["--input-tokens", "64", "--output-tokens", str(events), "--expect-tokens"]
            argv += ["--quiet", "--json", str(out)]
            argv = self.cpus.pinned(argv, self.cpus.load)
            done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
            if not out.exists():
                raise RuntimeError(f"loadgen: {(done.stdout + done.stderr)[-300:]}")
            found: dict[str, Any] = json.loads(out.read_bytes())
            return found

    def uploads(self, proxy: Running) -> Measured:
        """Four clients, each uploading large bodies one after the other."""

        def load() -> list[str]:
            with ThreadPoolExecutor(UPLOADS) as pool:
                ending = [pool.submit(_upload, proxy.port, self.size.uploads) for _ in range(UPLOADS)]
                return [fault for future in ending for fault in future.result()]

        faults, meter, seen = self.metered(proxy, load)
        mib = UPLOADS * self.size.uploads * UPLOAD_MIB
        if seen["body_bytes"] != mib * MIB:
            faults.append(f"replicas got {seen['body_bytes']} of {mib * MIB} bytes")
        return Measured(_usage(meter, mib), faults)

    def crowd(self, proxy: Running) -> Measured:
        """Many clients that had an answer and keep their connection, and requests as fast as they go among them."""
        number, before = self.size.idle_clients, memory(proxy.process.pid, "VmRSS")
        clients: list[socket.socket] = []
        try:
            while len(clients) < number:
                clients += open_clients(proxy.port, min(100, number - len(clients)))
            grown = memory(proxy.process.pid, "VmRSS") - before
            measured = self.unary(proxy)
            gone = sum(not _is_open(client) for client in clients)
        finally:
            for client in clients:
                client.close()
        if gone:
            measured.faults.append(f"{gone} of {number} idle clients were cut off")
        measured.values["kib_each"] = grown * 1024 / number
        return measured


_WRK_FAULTS = {"bad": "answers were no 200", "lost": "requests were lost"}


def _usage(meter: Meter, work: int) -> dict[str, float]:
    return {"cpu_us": meter.cpu_s / max(work, 1) * 1e6, "peak_mib": meter.peak_mib, "others": meter.others}


def _upload(port: int, number: int) -> list[str]:
    body = bytes(UPLOAD_MIB * MIB)
    with socket.create_connection(("127.0.0.1", port), 60) as client:
        for _ in range(number):
            client.sendall(REQUEST % (PATH.encode(), len(body)))
            client.sendall(body)
            answer = read_answer(client)
            if not answer.startswith(b"HTTP/1.1 200 "):
                return [f"an upload was answered {answer[:40]!r}"]
    return []


def read_answer(client: socket.socket) -> bytes:
    """Read one answer that has a Content-Length. Raises OSError when it does not come whole."""
    data = b""
    while True:
        end = data.find(b"\r\n\r\n") + 4
        if end >= 4:
            length = data[:end].lower().partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]
            if len(data) >= end + int(length or b"0"):
                return data
        more = client.recv(65536)
        if not more:
            raise OSError(f"a connection was closed after {data[:40]!r}")
        data += more


def open_clients(port: int, number: int) -> list[socket.socket]:
    """Open client connections and let each have one answer. Raises OSError."""
    clients = [socket.create_connection(("127.0.0.1", port), 30) for _ in range(number)]
    for client in clients:
        client.sendall(REQUEST % (PATH.encode(), len(SMALL)) + SMALL)
    for client in clients:
        answer = read_answer(client)
        if not answer.startswith(b"HTTP/1.1 200 "):
            raise OSError(f"a request was answered {answer[:40]!r}")
    return clients


def _is_open(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return bool(client.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return True
    except OSError:
        return False
