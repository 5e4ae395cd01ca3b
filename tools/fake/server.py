"""The sockets of fake replicas: one listener per replica, one protocol object per connection.

Owns routing of paths, keep-alive and its idle limit, and the endpoints under `/debug/`. What a request costs and how
it ends is the job's and the replica's business.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
from typing import Any, cast
from urllib.parse import parse_qsl

from tools.fake import openai
from tools.fake.faults import BadFault, parse_fault
from tools.fake.http import BadRequest, Request, RequestReader, response_head
from tools.fake.job import JSON, Job
from tools.fake.replica import Replica

_READ_AHEAD = 256 * 1024  # bytes of pipelined requests that one connection may bring before it is no longer read
_METRICS_TYPE = ("content-type", "text/plain; version=0.0.4; charset=utf-8")


class Listener:
    """One replica's port, which can stop and begin to listen while the process keeps it.

    `peers` holds the listeners of the whole process by port, so that a replica that refuses can be told to stop that
    through any other port.
    """

    def __init__(
        self, replica: Replica, host: str, port: int, loop: asyncio.AbstractEventLoop, peers: dict[int, Listener]
    ) -> None:
        self.replica = replica
        self.loop = loop
        self.peers = peers
        self.connections: set[Connection] = set()
        self._family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._host = host
        if port:
            self._bound(port, shared=False).close()  # two processes that share a port would go unnoticed
        self._guard = self._bound(port)  # holds the port while nobody listens, so that no other process gets it
        self.port: int = self._guard.getsockname()[1]
        self._server: asyncio.Server | None = None
        self._reopen: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Listen. Raises OSError when the port is taken."""
        if self._server is None:
            self._server = await self.loop.create_server(
                lambda: Connection(self), sock=self._bound(self.port), backlog=4096
            )

    def refuse(self, for_s: float | None) -> None:
        """Stop listening and close idle connections; listen again after `for_s` seconds, if given."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self.connections):
            connection.close_if_idle()
        if self._reopen is not None:
            self._reopen.cancel()
            self._reopen = None
        if for_s is not None:
            self._reopen = self.loop.call_later(for_s, self.clear, "refuse")

    def clear(self, kind: str | None) -> None:
        """End one fault, or all; what hung goes on."""
        active = self.replica.faults.active
        for name in [kind] if kind else list(active):
            active.pop(name, None)
        if self._reopen is not None:
            self._reopen.cancel()
            self._reopen = None
        if "refuse" not in active and self._server is None:
            task = self.loop.create_task(self.open())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        for connection in list(self.connections):
            connection.faults_changed()

    def set_fault(self, spec: Any) -> None:
        """Begin the fault that a JSON object describes, or end one. Raises BadFault."""
        if spec.get("kind") == "clear":
            self.clear(spec.get("only"))
            return
        fault = parse_fault(spec)
        self.replica.faults.active[fault.kind] = fault
        if fault.kind == "refuse":
            self.refuse(fault.for_s)
        elif fault.kind == "idle_close":
            for connection in list(self.connections):
                connection.watch_idle()

    def _bound(self, port: int, *, shared: bool = True) -> socket.socket:
        sock = socket.socket(self._family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            sock.bind((self._host, port))
        except OSError:
            sock.close()
            raise
        return sock


class Connection(asyncio.Protocol):
    """One connection of a client; implements the channel of `Job`."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._replica = listener.replica
        self._loop = listener.loop
        self._reader = RequestReader()
        self._transport: asyncio.Transport
        self._job: Job | None = None
        self._silent = False  # a probe or sample that is to get no answer
        self._served = 0
        self._idle_since = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._reading = False
        self.paused = False

    # asyncio.Protocol ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin: the client connected."""
        self._transport = cast(asyncio.Transport, transport)
        sock = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._listener.connections.add(self)

    def data_received(self, data: bytes) -> None:
        """Take bytes of requests."""
        self._reader.feed(data)
        if not self._busy:
            self._next()
        elif self._reader.buffered > _READ_AHEAD:
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop what runs for this client."""
        self._listener.connections.discard(self)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._job is not None:
            self._job.client_left()
            self._job = None

    def pause_writing(self) -> None:
        """Stop generating: the client does not read."""
        self.paused = True

    def resume_writing(self) -> None:
        """Go on generating."""
        self.paused = False
        if self._job is not None:
            self._job.resume()

    # the job's channel -----------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send bytes, unless the connection is closing."""
        if not self._transport.is_closing():
            self._transport.write(data)

    def finished(self, *, keep_alive: bool) -> None:
        """Take the next request, or close."""
        self._job = None
        if not keep_alive:
            self._transport.close()
            return
        self._idle_since = self._loop.time()
        limit = self._replica.keep_alive_s
        if limit and self._idle_timer is None:
            self._idle_timer = self._loop.call_later(limit, self._idle_check)
        if not self._reading:  # else the loop in `_next` goes on by itself
            self._transport.resume_reading()
            self._next()

    def break_off(self, *, reset: bool) -> None:
        """Close after what was written, or reset."""
        self._job = None
        if reset:
            self._loop.call_soon(self._reset)  # after this turn of the loop, which sends what was written
        else:
            self._transport.close()

    # faults ----------------------------------------------------------------------------------------------------

    def close_if_idle(self) -> None:
        """Close unless a request is under way."""
        if not self._busy and self._reader.between_requests:
            self._transport.close()

    def faults_changed(self) -> None:
        """Let what hung go on, and heed the idle limit that is valid now."""
        if self._job is not None:
            self._job.release()
        elif self._silent:
            self._transport.close()

    def watch_idle(self) -> None:
        """Heed an idle limit that became shorter."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        if self._idle_since:
            self._idle_check()

    def _idle_check(self) -> None:
        self._idle_timer = None
        limit = self._replica.keep_alive_s
        if not limit:
            return
        left = limit if self._busy else self._idle_since + limit - self._loop.time()
        if left > 0:
            self._idle_timer = self._loop.call_later(left, self._idle_check)
        elif self._reader.between_requests:
            self._transport.close()

    def _reset(self) -> None:
        if self._transport.is_closing():
            return
        sock = socket.socket(fileno=os.dup(self._transport.get_extra_info("socket").fileno()))
        with sock, contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    # requests --------------------------------------------------------------------------------------------------

    @property
    def _busy(self) -> bool:
        return self._job is not None or self._silent

    def _next(self) -> None:
        self._reading = True
        try:
            while not self._busy and not self._transport.is_closing():
                request = self._reader.next_request()
                if request is None:
                    if self._reader.wants_continue:
                        self._reader.wants_continue = False
                        self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                    return
                self._serve(request)
        except BadRequest as error:
            body = openai.error_body(400, str(error), "invalid_request_error")
            self._transport.write(response_head(400, [JSON], len(body), keep_alive=False) + body)
            self._transport.close()
        finally:
            self._reading = False

    def _serve(self, request: Request) -> None:
        path = request.path
        if path in (openai.CHAT_PATH, openai.COMPLETIONS_PATH):
            if request.method != "POST":
                self._answer(request, 405, openai.error_body(405, "Method Not Allowed", "invalid_request_error"))
                return
            self._replica.arrived(reused=self._served > 0)
            self._served += 1
            self._job = Job(self._replica, self, request, self._loop)
            self._job.begin()
        elif path == "/health":
            self._health(request)
        elif path == "/metrics":
            self._metrics(request)
        elif path == "/v1/models":
            self._answer(request, 200, openai.models_body())
        elif path.startswith("/debug/"):
            self._debug(request)
        else:
            self._answer(request, 404, openai.error_body(404, "Not Found", "invalid_request_error"))

    def _health(self, request: Request) -> None:
        self._replica.counts.probes += 1
        fault = self._replica.faults.active.get("unhealthy")
        if fault is not None and fault.how == "hang":
            self._silent = True
        elif fault is not None or not self._replica.started:
            self._answer(request, 503, b"")
        else:
            self._answer(request, 200, b"")

    def _metrics(self, request: Request) -> None:
        self._replica.counts.samples += 1
        fault = self._replica.faults.active.get("metrics")
        if fault is None:
            self._answer(request, 200, self._replica.metrics(), _METRICS_TYPE)
        elif fault.how == "hang":
            self._silent = True
        elif fault.how == "garbage":
            self._answer(request, 200, b"\x00\xff{{{ no metrics", _METRICS_TYPE)
        else:
            self._answer(request, 404, b"")

    def _debug(self, request: Request) -> None:
        try:
            listeners, many = self._debug_targets(request)
            if request.path == "/debug/fault" and request.method == "POST":
                try:
                    spec = json.loads(request.body)
                except ValueError:
                    spec = None
                if not isinstance(spec, dict):
                    raise BadFault('a fault is a JSON object with a kind, such as {"kind": "clear"}')
                for listener in listeners:
                    listener.set_fault(spec)
            elif request.path == "/debug/reset" and request.method == "POST":
                for listener in listeners:
                    listener.replica.reset_counts()
            elif request.path != "/debug/routing":
                self._answer(request, 404, openai.error_body(404, "Not Found", "invalid_request_error"))
                return
        except (ValueError, BadFault) as error:
            self._answer(request, 400, openai.error_body(400, str(error), "invalid_request_error"))
            return
        routing = [listener.replica.routing() for listener in listeners]
        self._answer(request, 200, openai.dump({"replicas": routing} if many else routing[0]))

    def _debug_targets(self, request: Request) -> tuple[list[Listener], bool]:
        """Return the replicas meant by `?port=N` or `?port=all`; by default the one of this port, else all."""
        port = dict(parse_qsl(request.query)).get("port")
        peers = self._listener.peers
        if port is None and self._listener.port in peers:
            return [self._listener], False
        if port is None or port == "all":
            return list(peers.values()), True
        if not port.isdigit() or int(port) not in peers:
            raise BadFault(f"no replica of this process has the port {port}")
        return [peers[int(port)]], False

    def _answer(self, request: Request, status: int, body: bytes, kind: tuple[str, str] = JSON) -> None:
        head = response_head(status, [kind], len(body), keep_alive=request.keep_alive)
        self._transport.write(head if request.method == "HEAD" else head + body)
        self.finished(keep_alive=request.keep_alive)
