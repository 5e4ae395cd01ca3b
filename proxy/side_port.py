"""The HTTP server of the side port: metrics, readiness, admin API and status page over keep-alive connections.

Owns its connections, their limits, and the clock of the history. Small and strict: whole requests of bounded size, one
at a time per connection, JSON for every error. What a path means is admin.py's.
"""

from __future__ import annotations

import asyncio
import socket
import time
from http import HTTPStatus
from typing import cast

import h11

from proxy.admin import Admin
from proxy.history import INTERVAL_S, History, Totals
from proxy.side_api import Endpoint, Reply, Request, error_reply

MAX_BODY_BYTES = 64 * 1024
MAX_HEAD_BYTES = 16 * 1024
TOO_LONG = f"the head of a request to the side port may hold {MAX_HEAD_BYTES} bytes"
MAX_CONNECTIONS = 256
IDLE_S = 60.0  # for a whole request to arrive, and for its answer to be read
LINGER_S = 2.0  # how long a client that is refused early may go on sending


async def start_side_port(endpoint: Endpoint, sock: socket.socket) -> SidePort:
    """Serve the side port on `sock`, which is bound and listens; the result owns it."""
    port = SidePort(endpoint, loopback=_is_loopback(sock.getsockname()[0]))
    await port.start(sock)
    return port


class SidePort:
    """The running server. `close` ends it at once and is idempotent; then `wait_closed`."""

    def __init__(self, endpoint: Endpoint, *, loopback: bool) -> None:
        self._endpoint = endpoint
        self._history = History()
        self.admin = Admin(endpoint, self._history, loopback=loopback)
        self.connections: set[_Connection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._sampler: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<SidePort connections={len(self.connections)} tasks={len(self.tasks)}>"

    async def start(self, sock: socket.socket) -> None:
        """Begin to accept connections and to take samples."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self, loop), sock=sock)
        self._sample(loop)

    def close(self) -> None:
        """Stop accepting, close every connection and take no more samples."""
        if self._server is not None:
            self._server.close()
        if self._sampler is not None:
            self._sampler.cancel()
            self._sampler = None
        for connection in list(self.connections):
            connection.close()

    async def wait_closed(self) -> None:
        """Wait until nothing of the side port runs any more; cancelling the wait changes nothing."""
        if self._server is not None:
            await self._server.wait_closed()
        if self.tasks:
            await asyncio.wait(list(self.tasks))

    def _sample(self, loop: asyncio.AbstractEventLoop) -> None:
        endpoint = self._endpoint
        totals = Totals.of(endpoint.counters, endpoint.active_requests(), time.monotonic())
        self._history.sample(totals, endpoint.fleet, endpoint.config.queue_stale_after_s)
        self._sampler = loop.call_later(INTERVAL_S, self._sample, loop)


class _Connection(asyncio.Protocol):
    """One client connection: reads a request, answers it, then reads the next."""

    def __init__(self, port: SidePort, loop: asyncio.AbstractEventLoop) -> None:
        self._port = port
        self._loop = loop
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._head: h11.Request | None = None
        self._body = bytearray()
        self._task: asyncio.Task[None] | None = None
        self._discarding = False
        self._drained = asyncio.Event()
        self._drained.set()
        self._transport: asyncio.Transport
        self._timer: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------------ called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # No assertion: uvloop's transports are no asyncio.Transport.
        self._transport = cast(asyncio.Transport, transport)
        self._port.connections.add(self)
        self._limit(IDLE_S)
        if len(self._port.connections) > MAX_CONNECTIONS:
            self._refuse(503, "too many connections to the side port")

    def data_received(self, data: bytes) -> None:
        if not self._discarding:
            self._h11.receive_data(data)
            self._advance()

    def eof_received(self) -> bool:
        if self._discarding:
            return False
        self._h11.receive_data(b"")
        self._advance()
        return self._task is not None  # a half-closed client still gets its answer

    def pause_writing(self) -> None:
        self._drained.clear()

    def resume_writing(self) -> None:
        self._drained.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._port.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def close(self) -> None:
        """Close the connection; what has been written already is still sent."""
        self._transport.close()

    # ------------------------------------------------------------------ one request after the other

    def _advance(self) -> None:
        while self._task is None and not self._discarding and not self._transport.is_closing():
            try:
                event = self._h11.next_event()
            except h11.RemoteProtocolError as error:
                self._refuse_unreadable(error.error_status_hint)
                return
            if event is h11.NEED_DATA or event is h11.PAUSED:
                if event is h11.NEED_DATA and self._h11.they_are_waiting_for_100_continue:
                    self._write(h11.InformationalResponse(status_code=100, headers=[], reason="Continue"))
                return
            if isinstance(event, h11.Request):
                self._begin(event)
            elif isinstance(event, h11.Data):
                self._body += event.data
                if len(self._body) > MAX_BODY_BYTES:
                    self._refuse_body()
            elif isinstance(event, h11.EndOfMessage):
                self._start_answer()
            else:
                self._transport.close()

    def _begin(self, head: h11.Request) -> None:
        self._head = head
        self._body.clear()
        fields = dict(head.headers)
        if len(head.target) + sum(len(name) + len(value) for name, value in head.headers) > MAX_HEAD_BYTES:
            self._refuse(431, TOO_LONG)
        elif b"content-length" in fields and b"transfer-encoding" in fields:
            self._refuse(400, "the request has both Content-Length and Transfer-Encoding")
        elif int(fields.get(b"content-length", b"0")) > MAX_BODY_BYTES:
            self._refuse_body()

    def _start_answer(self) -> None:
        head = self._head
        assert head is not None
        request = Request(
            method=head.method.decode("ascii"),
            target=head.target.decode("ascii"),
            headers={name.decode("ascii"): value.decode("latin-1") for name, value in head.headers},
            body=bytes(self._body),
        )
        self._body.clear()
        self._transport.pause_reading()  # pipelined requests wait in the kernel
        self._task = self._loop.create_task(self._answer(request))
        self._port.tasks.add(self._task)
        self._task.add_done_callback(self._answered)

    async def _answer(self, request: Request) -> None:
        try:
            reply = await self._port.admin.answer(request)
        except Exception as error:  # noqa: BLE001 - this task's top: a fault in one answer must not cost the side port
            self._loop.call_exception_handler({"message": "side port: an answer failed", "exception": error})
            reply = error_reply(500, "the proxy failed to make this answer; its log says why")
        self._send(reply, bodyless=request.method == "HEAD")
        await self._drained.wait()

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._port.tasks.discard(task)
        self._task = None
        if task.cancelled() or self._transport.is_closing():
            return
        if self._h11.our_state is not h11.DONE or self._h11.their_state is not h11.DONE:
            self._transport.close()
            return
        self._h11.start_next_cycle()
        self._limit(IDLE_S)
        self._transport.resume_reading()
        self._advance()

    # ------------------------------------------------------------------ writing

    def _send(self, reply: Reply, *, bodyless: bool) -> None:
        fields = [
            ("Content-Type", reply.content_type),
            ("Content-Length", str(len(reply.body))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            *reply.headers,
        ]
        if self._discarding:
            fields.append(("Connection", "close"))
        reason = HTTPStatus(reply.status).phrase
        self._write(h11.Response(status_code=reply.status, headers=fields, reason=reason))
        if not bodyless:
            self._write(h11.Data(data=reply.body))
        self._write(h11.EndOfMessage())

    def _write(self, event: h11.InformationalResponse | h11.Response | h11.Data | h11.EndOfMessage) -> None:
        data = self._h11.send(event)
        if data:
            self._transport.write(data)

    def _refuse(self, status: int, message: str) -> None:
        """Answer before the request is whole; what still comes is read for a while, or a reset would eat the answer."""
        self._discarding = True
        head = self._head
        self._send(error_reply(status, message), bodyless=head is not None and head.method == b"HEAD")
        self._transport.write_eof()
        self._limit(LINGER_S)

    def _refuse_unreadable(self, status: int) -> None:
        """Say only so much: what h11 says repeats the request, which may hold a secret."""
        if status == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
            self._refuse(status, TOO_LONG)
        else:
            self._refuse(status, "the request is not proper HTTP/1.1")

    def _refuse_body(self) -> None:
        self._refuse(413, f"the body of a request to the side port may hold {MAX_BODY_BYTES} bytes")

    def _limit(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._transport.abort)


def _is_loopback(address: str) -> bool:
    return address == "::1" or address.startswith(("127.", "::ffff:127."))
