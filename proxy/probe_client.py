"""GET requests to one backend over a connection of its own, for health probes and queue samples.

Owns that connection: making it, asking on it, and the time that an answer may take. How answers are read, and what
comes on a kept connection while nobody asks, is collector.py's where it can be, and the loop's where not: the first
answer of a connection, TLS, short limits, and answers that are late or come in parts. Client traffic never meets these
connections.
"""

from __future__ import annotations

import asyncio
import os
from typing import Protocol, cast

from proxy.collector import PATIENCE_S, Collector
from proxy.connector import Connector
from proxy.framing import FramingError
from proxy.headers import HeadError
from proxy.probe_response import BodySink, ResponseReader
from proxy.upstream import Backend

MIN_COLLECTED_LIMIT_S = 4 * PATIENCE_S  # a shorter limit is kept by the loop, to the millisecond
HELD_UP_S = 0.1  # a limit that runs out so late says that this process was held up: what has come is not read yet
READ_S = 0.002  # for reading it


class ProbeFailed(Exception):
    """The probe got no whole HTTP response."""


class Asker(Protocol):
    """Who asks, and is told what comes of it."""

    @property
    def body(self) -> BodySink:
        """What takes the pieces of a response's body, each valid during its call only."""

    def answered(self, result: int | Exception) -> None:
        """Take the status of a whole response, or a ProbeFailed or OSError (TimeoutError: the limit has passed)."""


class ProbeClient:
    """One GET at a time on a connection that is kept alive; each may take `limit_s` seconds.

    `waiting` is True from `start` until the asker is told the result.
    """

    __slots__ = (
        *("_again", "_asker", "_backend", "_began", "_collector", "_connection", "_connector", "_dialling", "_limit_s"),
        *("_reader", "_request", "_timer", "waiting"),
    )

    def __init__(
        self, backend: Backend, path: str, limit_s: float, asker: Asker, connector: Connector, collector: Collector
    ) -> None:
        self._backend = backend
        self._request = b"GET %b HTTP/1.1\r\nHost: %b\r\nAccept: */*\r\n\r\n" % (path.encode(), backend.authority)
        self._limit_s = limit_s
        self._asker = asker
        self._connector = connector
        self._collector = collector
        self._reader = ResponseReader(collector.buffer, asker.body)
        self._connection: _Connection | None = None
        self._dialling: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._began = 0.0
        self._again = False  # a kept connection is in use: when it proves dead, another one is made
        self.waiting = False

    def start(self, now: float) -> None:
        """Send one GET, `now` in the loop's time; a kept connection that proves dead is replaced.

        The collector must just have been polled, so that nothing on a kept connection is taken for the answer.
        """
        self._began = now
        self.waiting = True
        connection = self._connection
        if connection is None:
            self._dial()
            return
        self._again = True
        if connection.ask(self._request):
            self._collector.expect(connection, now)
        else:
            self.overdue()

    def close(self) -> None:
        """Close the connection and forget the request, of which the asker hears no more; the next one dials."""
        self.waiting = False
        self._stop_timer()
        if self._dialling is not None:
            self._dialling.cancel()
            self._dialling = None
        self._drop()

    def overdue(self) -> None:
        """Limit the time of the present request, which the collector could not have answered so far."""
        if self._timer is None:
            self._timer = self._collector.loop.call_at(self._began + self._limit_s, self._timed_out)

    def _timed_out(self) -> None:
        now = self._collector.loop.time()
        if now > self._began + self._limit_s + HELD_UP_S:
            self._began = now - self._limit_s
            self._timer = self._collector.loop.call_later(READ_S, self._timed_out)
            return
        self.close()
        self._asker.answered(TimeoutError())

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _drop(self) -> None:
        self._reader.restart()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    def _end(self, result: int | Exception) -> None:
        self.waiting = False
        if self._timer is not None:
            self._stop_timer()
        self._asker.answered(result)

    def _dial(self) -> None:
        self.overdue()
        self._again = False
        self._dialling = self._collector.loop.create_task(self._connect())
        self._collector.dials.add(self._dialling)
        self._dialling.add_done_callback(self._collector.dials.discard)

    async def _connect(self) -> None:
        connection = _Connection(self, self._collector, self._limit_s >= MIN_COLLECTED_LIMIT_S)
        try:
            await self._connector.connect(self._backend, lambda: connection)
        except OSError as e:
            self._dialling = None
            self._end(e)
            return
        except asyncio.CancelledError:
            connection.abort()
            raise
        self._dialling = None
        self._connection = connection
        if connection.ended:
            self.lost(connection, None)
        else:
            connection.ask(self._request)

    # ------------------------------------------------------------------ events of the present connection

    def took(self, connection: _Connection, nbytes: int) -> bool:
        """Take the bytes that stand in the shared buffer now; True when no more of them are to come."""
        if connection is not self._connection:
            return True
        if not self.waiting:
            self._drop()  # bytes that nobody asked for
            return True
        self._again = False
        try:
            if not self._reader.feed(nbytes):
                return False
        except (HeadError, FramingError) as e:
            self._drop()
            self._end(ProbeFailed(str(e)))
            return True
        if not self._reader.keep_alive:
            self._drop()
        elif not connection.kept:
            connection.rest()
        self._end(self._reader.status)
        return True

    def lost(self, connection: _Connection, error: BaseException | None) -> None:
        """Take the end of the connection; it ends a response that has no other end."""
        if connection is not self._connection:
            return
        whole = error is None and self._reader.ends_with_connection
        self._drop()
        if not self.waiting:
            return
        if whole:
            self._end(self._reader.status)
        elif self._again:
            self._dial()
        else:
            self._end(error if isinstance(error, OSError) else ProbeFailed("the connection ended before the response"))


class _Connection(asyncio.BufferedProtocol):
    """One connection of a ProbeClient, which may have a new one before this one is quite gone.

    While it is `kept`, the collector reads it; otherwise the loop does. A plain socket is the transport's, and open at
    least until `connection_lost` was called (see socket_writer.py).
    """

    __slots__ = ("_client", "_collected", "_collector", "_fd", "_transport", "_views", "ended", "kept")

    def __init__(self, client: ProbeClient, collector: Collector, collected: bool) -> None:
        self._client = client
        self._collector = collector
        self._collected = collected
        self._views = [memoryview(collector.buffer)]
        self._transport: asyncio.Transport | None = None
        self._fd = -1
        self.kept = False
        self.ended = False

    # ------------------------------------------------------------------ for the client

    def ask(self, request: bytes) -> bool:
        """Send a request; True when the collector is to look for its answer."""
        assert self._transport is not None
        if self.kept:
            try:
                sent = os.write(self._fd, request)
            except OSError:  # the transport meets it again
                sent = 0
            if sent == len(request):
                return True
            self._wake()
            request = request[sent:]
        self._transport.write(request)
        return False

    def rest(self) -> None:
        """Leave what comes next to the collector, where that is possible; the response before is whole."""
        assert self._transport is not None
        if self._collected and self._fd >= 0 and not self._transport.get_write_buffer_size():
            self._transport.pause_reading()
            self._collector.keep(self._fd, self)
            self.kept = True

    def abort(self) -> None:
        """Close at once."""
        self._forget()
        if self._transport is not None:
            self._transport.abort()

    def _forget(self) -> None:
        if self.kept:
            self.kept = False
            self._collector.forget(self._fd)

    def _wake(self) -> None:
        """Have the loop read again."""
        assert self._transport is not None
        self._forget()
        self._transport.resume_reading()

    # ------------------------------------------------------------------ for the collector

    def readable(self) -> None:
        """See collector.Kept."""
        while True:
            try:
                nbytes = os.readv(self._fd, self._views)
            except BlockingIOError:
                if self._client.waiting:
                    self.overdue()
                return
            except OSError as e:
                self._end(e)
                return
            if not nbytes:
                self._end(None)
                return
            try:
                if self._client.took(self, nbytes):
                    return
            except BaseException as e:  # as a transport does, or the asker would wait for ever
                self._end(e)
                raise

    def overdue(self) -> None:
        """See collector.Kept."""
        self._wake()
        self._client.overdue()

    # ------------------------------------------------------------------ for the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.BaseProtocol."""
        self._transport = cast(asyncio.Transport, transport)
        if transport.get_extra_info("ssl_object") is None:
            self._fd = transport.get_extra_info("socket").fileno()

    def get_buffer(self, sizehint: int) -> memoryview:
        """See asyncio.BufferedProtocol."""
        return self._views[0]

    def buffer_updated(self, nbytes: int) -> None:
        """See asyncio.BufferedProtocol."""
        self._client.took(self, nbytes)

    def eof_received(self) -> None:
        """See asyncio.BaseProtocol."""
        self._end(None)

    def connection_lost(self, exc: BaseException | None) -> None:
        """See asyncio.BaseProtocol."""
        self._forget()
        self._fd = -1
        self._transport = None  # or a TLS transport, with 300 KiB of buffers, waits for the collector of cycles
        self._end(exc)

    def _end(self, error: BaseException | None) -> None:
        if not self.ended:
            self.ended = True
            self._client.lost(self, error)
