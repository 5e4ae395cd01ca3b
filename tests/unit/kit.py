"""The data path without sockets: the real endpoint, with clients and backends in memory (see memory.py).

`Rig.close` is the promise behind every test that uses it: afterwards no slot, no probe, no connection, no file and no
exchange is left, and each request has exactly one record.
"""

from __future__ import annotations

import functools
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, cast

import h11
import orjson
import pytest

from proxy.access_log import AccessLog
from proxy.config import Config, parse_options
from proxy.downstream import Downstream
from proxy.endpoint import Endpoint
from proxy.events import RequestEntry
from proxy.upstream import Backend
from tests.unit.memory import Client, Dial, Loop, Replica, Transport


class Departures:
    """Stands for departures.Departures: who is watched for a reset, and the way to report one."""

    def __init__(self) -> None:
        self.watched: dict[object, Callable[[], None]] = {}

    def watch(self, fd: int, owner: object, gone: Callable[[], None], ended: Callable[[], None] | None = None) -> None:
        self.watched[owner] = gone

    def forget_owner(self, owner: object) -> None:
        self.watched.pop(owner, None)

    def close(self) -> None:
        self.watched.clear()


class Probes:
    """Stands for the prober: who was asked to be probed at once."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def start(self, backend: Backend) -> None:
        pass

    def stop(self, backend: Backend) -> None:
        pass

    def probe_now(self, backend: Backend) -> None:
        self.asked.append(backend.id)


@functools.cache
def _real_log() -> AccessLog:
    """Give the one real log of all tests; it writes to nowhere."""
    return AccessLog(os.open(os.devnull, os.O_WRONLY))


@functools.cache
def _spool() -> tempfile.TemporaryDirectory[str]:
    """Give the folder of spooled bodies for tests that have none of their own; it goes with the process."""
    return tempfile.TemporaryDirectory()


class Log:
    """The real log, which also keeps what it was given."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.events: list[tuple[str, dict[str, object]]] = []

    def as_access_log(self) -> AccessLog:
        """Give the log as the type that its users name."""
        return cast(AccessLog, self)

    def __getattr__(self, name: str) -> Any:
        return getattr(_real_log(), name)

    def request(self, entry: RequestEntry) -> bytes:
        return self.requests([entry], [_real_log().clock()])[0]

    def requests(self, entries: Sequence[RequestEntry], times: Sequence[float]) -> list[bytes]:
        lines = _real_log().requests(entries, times)
        self.records += map(orjson.loads, lines)
        return lines

    def event(self, name: str, **fields: object) -> None:
        self.events.append((str(name), fields))


class _Time(ModuleType):
    """The module `time` with another monotonic clock."""

    def __init__(self, loop: Loop) -> None:
        super().__init__("time")
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def monotonic(self) -> float:
        return self._loop.now


def make_config(backends: int, **options: object) -> Config:
    """Make a configuration with backends 10.0.0.1:80, 10.0.0.2:80 and so on; `options` as in a config file."""
    urls = [f"http://10.0.0.{n + 1}:80" for n in range(backends)]
    config, errors = parse_options({"listen_port": 0, "backend": urls} | options, "test")
    assert config is not None, errors
    return config


class Rig:
    """A running endpoint in memory."""

    def __init__(self, loop: Loop, config: Config, log: Log) -> None:
        self.loop = loop
        self.log = log
        self.endpoint = Endpoint(config, log.as_access_log(), loop.as_asyncio())
        self.endpoint.departures.close()
        self.departures = Departures()
        self.endpoint.departures = self.departures  # type: ignore[assignment]
        self.probes = self.endpoint.probes = Probes()
        self.endpoint.start_sweeping()
        self.clients: list[Client] = []
        self.replicas: list[Replica] = []

    @property
    def records(self) -> list[dict[str, Any]]:
        self.endpoint.records.tell()
        return self.log.records

    @property
    def backends(self) -> list[Backend]:
        return list(self.endpoint.fleet)

    def client(self) -> Client:
        """Open a client connection."""
        downstream = Downstream(self.endpoint)
        transport = Transport(self.loop, downstream)
        downstream.connection_made(transport)
        self.clients.append(Client(transport, downstream))
        self.loop.run()
        return self.clients[-1]

    def dial(self) -> Dial:
        """Give the next connection that the proxy wants to open."""
        self.loop.run()
        assert self.loop.dials, "the proxy opens no connection"
        return self.loop.dials.popleft()

    def accept(self, *, early: bytes = b"") -> Replica:
        """Accept the next connection."""
        return self.keep(self.dial().accept(early=early))

    def keep(self, replica: Replica) -> Replica:
        """Take a replica into the books."""
        self.replicas.append(replica)
        return replica

    def no_dial(self) -> bool:
        """Tell whether the proxy wants no connection now."""
        self.loop.run()
        return not any(dial.open for dial in self.loop.dials)

    # ------------------------------------------------------------------ the end

    def close(self) -> None:
        """End everything that still runs, then see that nothing is left of it."""
        for client in self.clients:
            if not client.transport.lost:
                client.reset()
        self.loop.run()
        self.assert_nothing_runs()
        self.endpoint.cut_all()
        self.loop.advance(70.0)
        assert len(self.endpoint.pool) == 0
        assert [r for r in self.replicas if not r.transport.lost] == []
        self.endpoint.stop_sweeping()

    def assert_nothing_runs(self) -> None:
        """See that no exchange is under way and everything it held was given back."""
        endpoint = self.endpoint
        assert not self.loop.errors, self.loop.errors
        assert endpoint.active_requests() == 0
        assert not endpoint.exchanges
        open_dials = [dial.address for dial in self.loop.dials if dial.open]
        assert open_dials == [], "a connection is still being opened for nobody"
        for backend in endpoint.fleet:
            assert backend.active == 0, f"a leaked lease: {backend!r}"
            assert not backend.breaker.probing, f"a leaked probe slot: {backend!r}"
        pooled = [c for backend in endpoint.fleet for c in backend.idle]
        assert len(pooled) == len(set(pooled)) == len(endpoint.pool)
        assert all(c in endpoint.pool for c in pooled)
        open_upstreams = {r.transport for r in self.replicas if not r.transport.closing}
        assert {c.transport for c in pooled} == open_upstreams, "an upstream connection that is in no book"
        open_clients = {c.downstream for c in self.clients if not c.transport.lost}
        assert endpoint.downstreams == open_clients
        assert set(self.departures.watched) <= open_clients
        assert len(self.records) == endpoint.counters.requests, "not exactly one record for each request"
        assert sum(endpoint.counters.responses.values()) == endpoint.counters.requests
        assert spooled_files(endpoint.config.spool_dir) == []


def spooled_files(directory: str) -> list[str]:
    """List this process's open files in a folder, those without a name too, and the names that are in it."""
    found = os.listdir(directory) if os.path.isdir(directory) else []
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if target.startswith((directory.rstrip("/") + "/#", directory.rstrip("/") + "/dd-proxy-")):
            found.append(target)
    return found


@contextmanager
def rig(backends: int = 2, **options: object) -> Iterator[Rig]:
    """Run a test on an endpoint in memory, and hold it to the promise of `Rig.close`."""
    loop = Loop()
    log = Log()
    with pytest.MonkeyPatch.context() as patch:
        clock = _Time(loop)
        for name, module in list(sys.modules.items()):
            if name.startswith("proxy.") and name != "proxy.access_log":
                if getattr(module, "time", None) is time:
                    patch.setattr(module, "time", clock)
                if getattr(module, "monotonic", None) is time.monotonic:
                    patch.setattr(module, "monotonic", clock.monotonic)
        made = Rig(loop, make_config(backends, **({"spool_dir": _spool().name} | options)), log)
        yield made
        made.close()


def request(
    body: bytes = b"", *, method: bytes = b"POST", target: bytes = b"/v1/chat/completions", extra: bytes = b""
) -> bytes:
    """Make a request; `extra`: whole field lines."""
    length = b"Content-Length: %d\r\n" % len(body) if body or method == b"POST" else b""
    return b"%b %b HTTP/1.1\r\nHost: dd\r\n%b%b\r\n%b" % (method, target, length, extra, body)


def response(body: bytes = b"ok", status: int = 200, extra: bytes = b"") -> bytes:
    """Make a response with a Content-Length; `extra`: whole field lines."""
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n%b\r\n%b" % (status, len(body), extra, body)


def chunked(*pieces: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    """Make a chunked body."""
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + end


def complete_responses(data: bytes, *, ended: bool, methods: tuple[bytes, ...] = (b"POST",)) -> list[tuple[int, bytes]]:
    """Read responses as a client does: status and content of each that is complete; `ended`: an end of file follows."""
    connection = h11.Connection(h11.CLIENT)
    connection.receive_data(data)
    if ended:
        connection.receive_data(b"")
    found: list[tuple[int, bytes]] = []
    for method in methods:
        connection.send(h11.Request(method=method, target="/", headers=[("Host", "x")]))
        connection.send(h11.EndOfMessage())
        answer = _next_response(connection)
        if answer is None:
            break
        found.append(answer)
        if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
            break
        connection.start_next_cycle()
    return found


def _next_response(connection: h11.Connection) -> tuple[int, bytes] | None:
    status, content = 0, b""
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError:
            return None
        if isinstance(event, h11.EndOfMessage):
            return status, content
        if isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            content += event.data
        elif not isinstance(event, h11.InformationalResponse):
            return None


def ask(r: Rig, **parts: bytes) -> Client:
    """Open a client connection and send one request."""
    client = r.client()
    client.send(request(b'{"model":"m"}', **parts))
    return client


def attempts(r: Rig) -> list[tuple[str, object]]:
    """Give backend and outcome of each attempt of the last request."""
    return [(a["backend"].removesuffix(":80"), a["outcome"]) for a in r.records[-1]["upstreams"]]


def final(r: Rig) -> tuple[int, int, bool]:
    """Give status, number of attempts and completeness of the last request."""
    record = r.records[-1]
    return record["final_status"], record["attempts"], record["complete"]


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    """Cut bytes into pieces of the given sizes, again and again."""
    pieces, at, turn = [], 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        pieces.append(data[at : at + size])
        at, turn = at + size, turn + 1
    return pieces
