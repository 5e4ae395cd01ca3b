"""System calls of the proxy's loop thread for one request and for one event, counted by strace on real sockets.

Owns both peers of the proxy: it sends and answers in lockstep, so that nothing depends on time but the rare sweep.
Probes and samples are out of the way; threads other than the loop's (the log's) are not traced.
"""

from __future__ import annotations

import re
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tools.benchmark.drive import END_OF_STREAM, EVENT
from tools.launch import DD_PROXY, DdProxy

UNITS = 200
PATIENCE_S = 20.0
BODY = b'{"model":"m"}'
REQUEST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
_CALL = re.compile(r"([a-z_0-9]+)\(")
_BY_CHANCE = ("futex", "restart_syscall", "munmap", "mmap", "brk", "madvise", "sched_yield")  # threads and memory


class _Peers:
    """A client and a backend of one proxy, in lockstep."""

    def __init__(self, port: int, listener: socket.socket) -> None:
        self.port = port
        self.listener = listener
        self.client = self.connect()
        self.backend: socket.socket | None = None

    def connect(self) -> socket.socket:
        """Open a client connection."""
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE_S)

    def close(self) -> None:
        """Close both."""
        self.client.close()
        if self.backend is not None:
            self.backend.close()

    def unary(self, units: int) -> None:
        """Send requests over one client connection, and answer them."""
        for _ in range(units):
            self.client.sendall(REQUEST)
            self._answer(ANSWER)
            _take(self.client, len(ANSWER))

    def short(self, units: int) -> None:
        """Send requests over a client connection of their own each."""
        for _ in range(units):
            with self.connect() as client:
                client.sendall(REQUEST)
                self._answer(ANSWER)
                _take(client, len(ANSWER))

    def events(self, units: int) -> None:
        """Let one stream run."""
        self.client.sendall(REQUEST)
        self._answer(STREAM_HEAD + EVENT)
        _take(self.client, len(STREAM_HEAD + EVENT))
        assert self.backend is not None
        for _ in range(units):
            self.backend.sendall(EVENT)
            _take(self.client, len(EVENT))
        self.backend.sendall(END_OF_STREAM)
        _take(self.client, len(END_OF_STREAM))

    def _answer(self, data: bytes) -> None:
        if self.backend is None:
            self.backend, _ = self.listener.accept()
            self.backend.settimeout(PATIENCE_S)
        received = b""
        while not received.endswith(BODY):
            received += _some(self.backend)
        self.backend.sendall(data)


def _some(sock: socket.socket) -> bytes:
    data = sock.recv(65536)
    if not data:
        raise OSError("the proxy closed a connection in the middle of the measurement")
    return data


def _take(sock: socket.socket, size: int) -> None:
    while size > 0:
        size -= len(_some(sock))


def _answer_probe(listener: socket.socket) -> None:
    """Answer the one health probe that comes at the start."""
    probe, _ = listener.accept()
    with probe:
        probe.settimeout(PATIENCE_S)
        _some(probe)
        probe.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")


def syscalls() -> dict[str, dict[str, float]]:
    """Count them, per unit and by name. Raises OSError or tools.launch.StartError when strace cannot trace here."""
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE_S)
        trace = Path(folder, "trace")
        quiet = ("--queue-metrics", "off", "--health-interval", "3600")
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        # -D: the proxy is our child, strace is not between us
        command = ("strace", "-D", "-o", str(trace), sys.executable, *DD_PROXY)
        with DdProxy(Path(folder, "log"), [url], *quiet, command=command) as proxy:
            _answer_probe(listener)
            peers = _Peers(proxy.port, listener)
            peers.unary(20)
            scenarios: dict[str, Callable[[int], None]] = {
                "unary request": peers.unary,
                "request on a connection of its own": peers.short,
                "streamed event": peers.events,
            }
            try:
                found = {name: _counted(trace, run) for name, run in scenarios.items()}
            finally:
                peers.close()
            proxy.stop()
        return found


def _counted(trace: Path, run: Callable[[int], None]) -> dict[str, float]:
    before = _written(trace)
    run(UNITS)
    text = trace.read_text(errors="replace")[before : _written(trace)]
    found = Counter(match[1] for line in text.splitlines() if (match := _CALL.match(line)))
    rare = UNITS // 20  # the sweep, the collector
    return {
        name: round(number / UNITS, 2)
        for name, number in sorted(found.items())
        if number > rare and name not in _BY_CHANCE
    }


def _written(trace: Path) -> int:
    """Wait until the trace stands still, and return its length: the proxy is at rest."""
    size = -1
    while size != (size := trace.stat().st_size):
        time.sleep(0.05)
    return size
