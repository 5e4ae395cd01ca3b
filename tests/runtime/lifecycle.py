"""What the lifecycle tests share: small plans, running attempts, and the proof that nothing is left behind.

Owns plan files and processes of `dd-proxy`. Refuses to import the controller: it is tested from outside.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runtime.own import own_command
from tests.runtime.minislurm import wait_until

ROOT = Path(__file__).resolve().parents[2]
MARK = "DD_PROXY_TEST_MARK"
FAKE = (sys.executable, str(ROOT / "tools" / "fake_backend.py"), "--host", "{host}", "--port", "{port}")
GRACEFUL = (sys.executable, str(ROOT / "tests" / "runtime" / "replica.py"), "--host", "{host}", "--port", "{port}")
DEADLINE_S = 60.0

# Writes N records, or runs until TERM; prints what it was told about its GPUs.
CLIENT = """
import os, signal, sys
out, count, code = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
if count < 0:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print("gpus", repr(os.environ.get("CUDA_VISIBLE_DEVICES")), os.environ.get("SLURM_STEP_GPUS"), flush=True)
with open(out, "a") as file:
    for number in range(abs(count)):
        file.write('{"row": %d}\\n' % number)
        file.flush()
if count < 0:
    signal.sigwait([signal.SIGTERM])
sys.exit(code)
"""


def client(records: int = 3, code: int = 0) -> list[str]:
    """Give a client that writes `records` lines and exits with `code`; a negative number makes it stay until TERM."""
    return [sys.executable, "-c", CLIENT, "{attempt_dir}/out.jsonl", str(records), str(code)]


def free_ports(count: int) -> int:
    """Find the first of `count` free ports in a row, below the ephemeral range."""
    for _ in range(200):
        base = random.randrange(12000, 19900)
        if all(_free(base + offset) for offset in range(count)):
            return base
    raise RuntimeError(f"no {count} free ports in a row")


def _free(port: int) -> bool:
    with closing(socket.socket()) as probe:
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True


@dataclass
class Scenario:
    """One plan for a test; every field is a key that some test changes."""

    replica: Sequence[str] = FAKE
    replicas: int = 2
    deployments: Sequence[str] = ("llama",)
    client: Sequence[str] = field(default_factory=client)
    records: int | None = 3
    nodes: int = 1
    gpus_per_node: int = 0
    gpus_per_replica: int = 0
    cpus_per_node: int = 4
    time: str = "00:05:00"
    startup_timeout: str = "20s"
    stop_timeout: str = "2s"
    drain_timeout: str = "4s"
    monitor_interval: str = "300ms"
    sbatch: Sequence[str] = ()
    partition: str = ""
    env: Mapping[str, Any] = field(default_factory=dict)
    client_env: Mapping[str, Any] = field(default_factory=dict)
    endpoint: Mapping[str, Any] = field(default_factory=dict)
    base_port: int = 0

    def write(self, folder: Path) -> Path:
        """Write the plan file into `folder`."""
        base = self.base_port or free_ports(self.replicas * len(self.deployments))
        lines = ["[job]", 'name = "gen"', f"nodes = {self.nodes}", f"gpus_per_node = {self.gpus_per_node}"]
        lines += [
            f"cpus_per_node = {self.cpus_per_node}",
            f'time = "{self.time}"',
            'state_dir = "runs"',
            f"sbatch = {_toml(self.sbatch)}",
        ]
        lines += [f"partition = {_toml(self.partition)}"] if self.partition else []
        for number, name in enumerate(self.deployments):
            lines += [f"[[deployment]]\nname = {_toml(name)}", f"replicas = {self.replicas}", "cpus_per_replica = 1"]
            lines += [f"gpus_per_replica = {self.gpus_per_replica}", 'mem_per_replica = "64MiB"', 'engine = "vllm"']
            lines += [f"command = {_toml(self.replica)}", f"base_port = {base + number * self.replicas}"]
            lines += ['health_path = "/health"', f'startup_timeout = "{self.startup_timeout}"']
            lines += [f'stop_timeout = "{self.stop_timeout}"', f"env = {_toml(self.env)}", "[deployment.endpoint]"]
            lines += [f"{key} = {_toml(value)}" for key, value in {"listen_port": 0, **self.endpoint}.items()]
        lines += ["[client]", f"command = {_toml(self.client)}", "cpus = 1", 'mem = "64MiB"']
        lines += [f"env = {_toml(self.client_env)}", "[[client.output]]", 'path = "out.jsonl"']
        lines += [] if self.records is None else [f"records = {self.records}"]
        lines += ["[runtime]", f'drain_timeout = "{self.drain_timeout}"', "monitor_failures = 3"]
        lines += [f'monitor_interval = "{self.monitor_interval}"']
        path = folder / "plan.toml"
        path.write_text("\n".join(lines) + "\n")
        return path


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return json.dumps(value)


class Attempt:
    """One attempt directory, read from outside."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, name: str) -> dict[str, Any]:
        """Read one state file whole."""
        data: dict[str, Any] = json.loads((self.path / name).read_bytes())
        return data

    def events(self, event: str = "", **fields: Any) -> list[dict[str, Any]]:
        """List the events of a kind whose fields are as given."""
        path = self.path / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        found = [json.loads(line) for line in lines]
        wanted = {**({"event": event} if event else {}), **fields}
        return [one for one in found if all(one.get(key) == value for key, value in wanted.items())]

    def wait_event(self, event: str, timeout: float = DEADLINE_S, **fields: Any) -> dict[str, Any]:
        """Wait for an event and return it."""
        wait_until(lambda: bool(self.events(event, **fields)), timeout, lambda: f"{event} {fields} in {self.story()}")
        return self.events(event, **fields)[0]

    def wait_state(self, *states: str, timeout: float = DEADLINE_S) -> dict[str, Any]:
        """Wait until attempt.json is in one of `states` and return it."""
        wait_until(lambda: self.read("attempt.json")["state"] in states, timeout, self.story)
        return self.read("attempt.json")

    def wait_ready(self) -> None:
        """Wait until the client was started and has written its records."""
        self.wait_event("step_started", step="client")
        wait_until((self.path / "out.jsonl").exists, DEADLINE_S, self.story)

    def pid(self, step: str) -> int:
        """Give the recorded process of a step."""
        return int(self.read(f"steps/{step}.json")["pid"])

    def endpoint(self, name: str = "llama") -> str:
        """Give the host:port of an endpoint."""
        found = next(one for one in self.read("readiness.json")["deployments"] if one["name"] == name)
        return str(found["endpoint"]).removeprefix("http://")

    def replica(self, index: int, name: str = "llama") -> str:
        """Give the host:port of a replica."""
        step = f"{name}-replica-{index}"
        found = next(one for one in self.read("services.json")["replicas"] if one["name"] == step)
        return f"{found['host']}:{found['port']}"

    def active_at_drain(self, name: str = "llama") -> int:
        """Give the responses that were active when the endpoint began to drain."""
        lines = (self.path / "logs" / f"{name}-endpoint.err").read_text().splitlines()
        found = [json.loads(line) for line in lines if '"event":"draining"' in line]
        assert found, self.story()
        return int(found[0]["active"])

    def story(self) -> str:
        """Tell what happened so far, for a failing test."""
        errors = [f"{path.name}: {path.read_text(errors='replace')[-400:]}" for path in self.path.glob("logs/*.err")]
        state = (self.path / "attempt.json").read_text() if (self.path / "attempt.json").exists() else "no attempt.json"
        return "\n".join([state, *(json.dumps(event) for event in self.events()), *errors])


class LocalRun:
    """`dd-proxy run PLAN --local` as a process of its own."""

    def __init__(self, plan: Path, **env: str) -> None:
        self.mark = uuid.uuid4().hex
        self.process = subprocess.Popen(
            [*own_command(), "run", str(plan), "--local"],
            cwd=plan.parent,
            env={**os.environ, MARK: self.mark, **env},
            stdout=subprocess.PIPE,
            stderr=(plan.parent / "run.err").open("w"),
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"no JSON line; stderr: {(plan.parent / 'run.err').read_text()}"
        self.said = json.loads(line)
        self.attempt = Attempt(Path(self.said["attempt_dir"]))

    def wait(self, timeout: float = DEADLINE_S) -> int:
        """Wait for its end and return its exit code; nothing it started may be left then."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(self.attempt.story()) from None
        self.assert_nothing_left()
        return code

    def assert_nothing_left(self, timeout: float = 5) -> None:
        """Prove that no process of this run lives any more."""
        wait_until(lambda: not self.left(), timeout, lambda: f"left behind: {self.left()}\n{self.attempt.story()}")

    def left(self) -> list[str]:
        """List the living processes that inherited this run's mark."""
        return marked_processes(self.mark)

    def close(self) -> None:
        """End it and whatever it left, so that a failing test disturbs no other."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        with suppress(TimeoutError):
            wait_until(lambda: not self.left(), 3)
        for entry in self.left():
            with suppress(ProcessLookupError):
                os.kill(int(entry.split()[0]), signal.SIGKILL)


def marked_processes(mark: str) -> list[str]:
    """List processes, but for zombies and this one, whose environment holds `mark`."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        with suppress(OSError):
            if mark.encode() in (folder / "environ").read_bytes():
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if command:
                    found.append(f"{folder.name} {command[:200]}")
    return found


def fault(authority: str, **description: Any) -> None:
    """Switch a fault of a fake replica."""
    request("POST", authority, "/debug/fault", json.dumps(description).encode())


def request(method: str, authority: str, path: str, body: bytes = b"") -> bytes:
    """Send one request on a connection of its own and return the whole response."""
    with open_stream(method, authority, path, body) as sock:
        return read_to_end(sock)


def open_stream(method: str, authority: str, path: str, body: bytes = b"") -> socket.socket:
    """Send one request and leave the response on the socket."""
    host, _, port = authority.rpartition(":")
    sock = socket.create_connection((host, int(port)), timeout=30)
    head = f"{method} {path} HTTP/1.1\r\nHost: {authority}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    sock.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return sock


def read_to_end(sock: socket.socket) -> bytes:
    """Read until the peer closes; a reset ends it as well."""
    received = bytearray()
    with suppress(ConnectionResetError):
        while piece := sock.recv(65536):
            received += piece
    return bytes(received)


class LiveStream:
    """One streamed completion through an endpoint, begun and still running."""

    def __init__(self, authority: str, tokens: int = 40) -> None:
        body = json.dumps({"model": "m", "prompt": "x", "stream": True, "max_tokens": tokens}).encode()
        self._sock = open_stream("POST", authority, "/v1/completions", body)
        self._received = b""
        while b"data:" not in self._received:
            piece = self._sock.recv(65536)
            assert piece, f"the stream ended before its first event: {self._received!r}"
            self._received += piece

    def finish(self) -> bytes:
        """Read it to its end."""
        self._received += read_to_end(self._sock)
        self._sock.close()
        return self._received

    def complete(self) -> bool:
        """Read to the end and tell whether all of it came: the last event and the last chunk."""
        received = self.finish()
        return b"data: [DONE]" in received and received.endswith(b"0\r\n\r\n")


StartLocal = Callable[..., LocalRun]
