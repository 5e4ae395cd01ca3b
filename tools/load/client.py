"""Sockets: keep-alive connections to one endpoint, and one exchange on one of them.

Owns connecting, the pool of idle connections, timeouts, and clients that misbehave on purpose (read slowly, leave
early). Refuses to know about schedules, retries and statistics. Connections are plain `asyncio.Protocol`s, since
streams cost twice as much per event.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import cast

from tools.load.wire import Answer, Outcome, ResponseReader

SLOW_BUFFER = 4096


@dataclass(frozen=True)
class Target:
    """Where the endpoint listens. `tls` is None for plain HTTP."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Manners:
    """How the client behaves during one exchange: limits in seconds, `read_rate` in bytes per second (0: as fast as it
    can).
    """

    timeout: float = 600.0
    leave_after: float | None = None
    read_rate: float = 0.0


PLAIN = Manners()


class Connection(asyncio.Protocol):
    """One socket. It is either idle in the pool or carries exactly one exchange."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.transport: asyncio.Transport | None = None
        self.reader: ResponseReader | None = None
        self.waiter: asyncio.Future[Answer] | None = None
        self.idle_since = 0.0
        self.used = False
        self.closed = False
        self.read_rate = 0.0

    def __repr__(self) -> str:
        state = "closed" if self.closed else "busy" if self.waiter else "idle"
        return f"<Connection {state}{' used' if self.used else ''}>"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the socket is connected."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's own class does not derive from asyncio's

    def send(self, request: bytes, reader: ResponseReader, read_rate: float) -> asyncio.Future[Answer]:
        """Write one request; the future holds the answer, or a failed one when the connection breaks."""
        assert self.transport is not None
        self.reader = reader
        self.read_rate = read_rate
        waiter: asyncio.Future[Answer] = self.client.loop.create_future()
        self.waiter = waiter
        self.transport.write(request)
        return waiter

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes arrived."""
        reader = self.reader
        if reader is None:
            self.abort()
        elif reader.feed(data, monotonic()):
            self._settle(reader.answer)
        elif self.read_rate:
            self._pause(len(data) / self.read_rate)

    def _pause(self, seconds: float) -> None:
        assert self.transport is not None
        self.transport.pause_reading()
        self.client.loop.call_later(seconds, self._resume)

    def _resume(self) -> None:
        if not self.closed and self.transport is not None:
            self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the socket is gone."""
        self.closed = True
        self.client.forget(self)
        if self.reader is not None:
            self._settle(self.reader.end(f"connection lost: {exc}" if exc else ""))

    def give_up(self, outcome: Outcome, reason: str) -> None:
        """End the running exchange from this side and close the socket at once."""
        if self.reader is not None:
            answer = self.reader.answer
            answer.fail(outcome, reason)
            self.abort()
            self._settle(answer)

    def abort(self) -> None:
        """Close without waiting for anything."""
        self.closed = True
        if self.transport is not None:
            self.transport.abort()

    def _settle(self, answer: Answer) -> None:
        self.reader = None
        waiter, self.waiter = self.waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(answer)


class Client:
    """A pool of connections to one target, most recently used first."""

    def __init__(self, target: Target, connect_timeout: float = 10.0, idle_timeout: float = 4.0) -> None:
        self.target = target
        self.connect_timeout = connect_timeout
        self.idle_timeout = idle_timeout
        self.loop = asyncio.get_running_loop()
        self.idle: list[Connection] = []
        self.busy: set[Connection] = set()
        self.opened = 0
        self.reused = 0
        self.resent = 0

    def __repr__(self) -> str:
        return f"<Client {self.target.authority} busy={len(self.busy)} idle={len(self.idle)} opened={self.opened}>"

    async def exchange(self, request: bytes, reader: Callable[[], ResponseReader], manners: Manners = PLAIN) -> Answer:
        """Send the request and return its answer, a failed one included; raises nothing but CancelledError.

        A pooled connection that turns out dead before any response byte is resent once on a fresh one, as every HTTP
        client does; `resent` counts that. After a cancellation the connection is closed.
        """
        deadline = monotonic() + manners.timeout
        fresh = bool(manners.read_rate)
        while True:
            connection = None if fresh else self._pick()
            fresh = connection is None
            if connection is None:
                try:
                    connection = await self._connect(manners, deadline)
                except (OSError, TimeoutError) as error:
                    return self._unconnected(error)
            answer = await self._carry(connection, request, reader(), manners, deadline)
            if answer.outcome is Outcome.CLOSED and not fresh:
                self.resent += 1
                fresh = True
                continue
            return answer

    async def _carry(
        self, connection: Connection, request: bytes, reader: ResponseReader, manners: Manners, deadline: float
    ) -> Answer:
        self.busy.add(connection)
        left = deadline - monotonic()
        timer = self.loop.call_later(left, connection.give_up, Outcome.TIMEOUT, f"no end after {manners.timeout:g} s")
        leave = manners.leave_after
        departure = (
            None if leave is None else self.loop.call_later(leave, connection.give_up, Outcome.LEFT, "left on purpose")
        )
        try:
            answer = await connection.send(request, reader, manners.read_rate)
        except asyncio.CancelledError:
            connection.abort()
            raise
        finally:
            timer.cancel()
            if departure is not None:
                departure.cancel()
            self.busy.discard(connection)
        if answer.close or connection.closed or manners.read_rate:
            connection.abort()
        else:
            connection.used = True
            connection.idle_since = monotonic()
            self.idle.append(connection)
        return answer

    def _pick(self) -> Connection | None:
        oldest = monotonic() - self.idle_timeout
        while self.idle:
            connection = self.idle.pop()
            if not connection.closed and connection.idle_since >= oldest:
                self.reused += 1
                return connection
            connection.abort()
        return None

    async def _connect(self, manners: Manners, deadline: float) -> Connection:
        limit = min(self.connect_timeout, max(deadline - monotonic(), 0.0))
        target = self.target
        async with asyncio.timeout(limit):
            if manners.read_rate:
                sock = await self._slow_socket()
                name = target.host if target.tls else None
                _, protocol = await self.loop.create_connection(
                    lambda: Connection(self), sock=sock, ssl=target.tls, server_hostname=name
                )
            else:
                _, protocol = await self.loop.create_connection(
                    lambda: Connection(self), target.host, target.port, ssl=target.tls
                )
        self.opened += 1
        return protocol

    async def _slow_socket(self) -> socket.socket:
        """Connect with a receive buffer so small that a slow reader is felt on the other side."""
        found = await self.loop.getaddrinfo(self.target.host, self.target.port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        sock = socket.socket(family, kind, protocol)
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_BUFFER)
        try:
            await self.loop.sock_connect(sock, address)
        except BaseException:  # whatever happens, cancellation included, the descriptor is not left behind
            sock.close()
            raise
        return sock

    @staticmethod
    def _unconnected(error: Exception) -> Answer:
        answer = Answer()
        answer.fail(Outcome.CONNECT_ERROR, str(error) or type(error).__name__)
        return answer

    def forget(self, connection: Connection) -> None:
        """Drop a connection that closed while idle."""
        if connection.waiter is None and connection in self.idle:
            self.idle.remove(connection)

    def give_up(self, reason: str) -> None:
        """End every running exchange as unfinished."""
        for connection in list(self.busy):
            connection.give_up(Outcome.UNFINISHED, reason)

    def close(self) -> None:
        """Close every connection."""
        for connection in [*self.idle, *self.busy]:
            connection.abort()
        self.idle.clear()
