"""GET requests to one backend over a connection of its own, for health probes and queue samples.

Owns that connection and the reading of its responses. The body is given away piece by piece from a buffer that all
probes share, so that a page of metrics costs no memory of its own. Client traffic never meets these connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from proxy import wire
from proxy.connector import Connector
from proxy.framing import ChunkScanner, FramingError
from proxy.head_memo import LineKinds, read_response
from proxy.headers import Framing, HeadError, ResponseHead
from proxy.upstream import Backend

PLAIN_HEAD_BYTES = 1024
MAX_HEAD_BYTES = 64 * 1024
MAX_RESPONSE_BYTES = 4 * 2**20  # of one response, interim ones included: a page that never ends holds up the traffic
BUFFER_BYTES = 256 * 1024

_line_kinds = LineKinds()  # of heads without credentials

BodySink = Callable[[memoryview], None]
Done = Callable[[int | Exception], None]


class ProbeFailed(Exception):
    """The probe got no whole HTTP response."""


class ProbeClient:
    """One GET at a time on a connection that is kept alive; `buffer` is shared with other probes of the process."""

    def __init__(self, backend: Backend, connector: Connector, buffer: bytearray) -> None:
        self._backend = backend
        self._connector = connector
        self._view = memoryview(buffer)
        self._connection: _Connection | None = None
        self._dialling: asyncio.Task[None] | None = None
        self._path = ""
        self._sink: BodySink | None = None
        self._done: Done | None = None
        self._again = False  # a kept connection is in use: when it proves dead, another one is made
        self._last_raw = b""
        self._last_head: ResponseHead | None = None
        self._reset()

    def _reset(self) -> None:
        self._head = b""
        self._taken = 0
        self._status = 0
        self._left = -1  # bytes of the body still to come; -1: not known by length
        self._chunks: ChunkScanner | None = None
        self._keep_alive = False

    def start(self, path: str, sink: BodySink | None, done: Done) -> None:
        """Send one GET; `done` gets the status of the whole response, or an OSError or ProbeFailed.

        `sink` gets the body's pieces as views, each valid during its call only. Nothing limits the time: the caller
        closes when it has waited enough, and then `done` is not called. A kept connection that proves dead is replaced.
        """
        self._path, self._sink, self._done = path, sink, done
        self._again = self._connection is not None
        if self._connection is None:
            self._dial()
        else:
            self._send(self._connection)

    async def get(self, path: str, sink: BodySink | None = None) -> int:
        """Send one GET and return the status of its whole response; see `start`.

        Raises OSError or ProbeFailed; after cancellation the connection is closed.
        """
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def done(result: int | Exception) -> None:
            if not future.done():
                if isinstance(result, int):
                    future.set_result(result)
                else:
                    future.set_exception(result)

        self.start(path, sink, done)
        try:
            return await future
        except BaseException:  # cancelled as well: the connection would bring a late answer
            self.close()
            raise

    def _dial(self) -> None:
        self._dialling = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        connection = _Connection(self, self._view)
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
            self._send(connection)

    def _send(self, connection: _Connection) -> None:
        self._reset()
        connection.write(
            b"GET %b HTTP/1.1\r\nHost: %b\r\nAccept: */*\r\n\r\n" % (self._path.encode(), self._backend.authority)
        )

    def close(self) -> None:
        """Close the connection and forget the request; the next one makes a new connection."""
        self._done = self._sink = None
        if self._dialling is not None:
            self._dialling.cancel()
            self._dialling = None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    def _end(self, result: int | Exception) -> None:
        done = self._done
        self._done = self._sink = None
        if not self._keep_alive:
            self.close()
        if done is not None:
            done(result)

    # ------------------------------------------------------------------ events of the present connection

    def took(self, connection: _Connection, nbytes: int) -> None:
        """Take the bytes that stand in the shared buffer now."""
        if connection is not self._connection:
            return
        if self._done is None:
            self.close()  # bytes that nobody asked for
            return
        self._again = False
        self._taken += nbytes
        try:
            if self._taken > MAX_RESPONSE_BYTES:
                raise HeadError(502, "the response does not end")
            self._take(self._view[:nbytes])
        except (HeadError, FramingError) as e:
            self._keep_alive = False
            self._end(ProbeFailed(str(e)))

    def lost(self, connection: _Connection, error: BaseException | None) -> None:
        """Take the end of the connection; it ends a response that has no other end."""
        if connection is not self._connection:
            return
        self._connection = None
        self._keep_alive = False
        if self._done is None:
            return
        if self._status and self._left < 0 and self._chunks is None and error is None:
            self._end(self._status)
        elif self._again:
            self._again = False
            self._dial()
        else:
            self._end(error if isinstance(error, OSError) else ProbeFailed("the connection ended before the response"))

    # ------------------------------------------------------------------ the response

    def _take(self, data: memoryview) -> None:
        if not self._status:
            rest = self._take_plain_head(data)
            if rest is None:
                rest = self._take_heads(self._head + bytes(data))
            if rest is None:
                return
            data = rest
        self._take_body(data)

    def _take_plain_head(self, data: memoryview) -> memoryview | None:
        """Take a final head that came in one piece, without copying the page behind it; None: look more closely."""
        if self._head:
            return None
        first = bytes(data[:PLAIN_HEAD_BYTES])
        end = first.find(b"\r\n\r\n") + 4
        if end < 4 or not self._take_head(first[:end]):
            return None
        return data[end:]

    def _take_heads(self, whole: bytes) -> memoryview | None:
        """Take interim heads and the final one; gives what follows it, None while it is not complete."""
        start = 0
        while True:
            end = whole.find(b"\r\n\r\n", start) + 4
            if end < 4:
                self._head = whole[start:]
                if len(self._head) > MAX_HEAD_BYTES or not wire.may_begin_response(self._head):
                    raise HeadError(502, "no HTTP response")
                return None
            if self._take_head(whole[start:end]):
                return memoryview(whole)[end:]
            start = wire.skip_interim(whole, end)

    def _take_head(self, raw: bytes) -> bool:
        """Take one head; False when it is an interim one."""
        if raw == self._last_raw:
            head = self._last_head
        else:
            head = read_response(raw, _line_kinds) or wire.parse_response(raw)
            self._last_raw, self._last_head = raw, head
        if head is None:
            return False
        self._status = head.status
        self._keep_alive = head.keep_alive and head.framing is not Framing.CLOSE
        if head.framing is Framing.CHUNKED:
            self._chunks = ChunkScanner([])
        elif head.framing is not Framing.CLOSE:
            self._left = head.length
        return True

    def _take_body(self, data: memoryview) -> None:
        if self._chunks is not None:
            end = self._chunks.feed(bytes(data))
            assert self._chunks.pieces is not None
            self._give(memoryview(b"".join(self._chunks.pieces)))
            self._chunks.pieces.clear()
            if end >= 0:
                self._keep_alive = self._keep_alive and end == len(data)
                self._end(self._status)
        elif self._left < 0:
            self._give(data)
        else:
            self._give(data[: self._left])
            self._keep_alive = self._keep_alive and len(data) <= self._left
            self._left = max(self._left - len(data), 0)
            if self._left == 0:
                self._end(self._status)

    def _give(self, piece: memoryview) -> None:
        if self._sink is not None and piece:
            self._sink(piece)


class _Connection(asyncio.BufferedProtocol):
    """One connection of a ProbeClient, which may have a new one before this one is quite gone."""

    def __init__(self, client: ProbeClient, view: memoryview) -> None:
        self._client = client
        self._view = view
        self._transport: asyncio.Transport | None = None
        self.ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.BaseProtocol."""
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """See asyncio.BufferedProtocol."""
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        """See asyncio.BufferedProtocol."""
        self._client.took(self, nbytes)

    def eof_received(self) -> None:
        """See asyncio.BaseProtocol."""
        self._end(None)

    def connection_lost(self, exc: BaseException | None) -> None:
        """See asyncio.BaseProtocol."""
        self._end(exc)

    def _end(self, error: BaseException | None) -> None:
        if not self.ended:
            self.ended = True
            self._client.lost(self, error)

    def write(self, data: bytes) -> None:
        """Send bytes."""
        assert self._transport is not None
        self._transport.write(data)

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()
