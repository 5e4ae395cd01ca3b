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
from proxy.headers import Framing, HeadError
from proxy.upstream import Backend

MAX_HEAD_BYTES = 64 * 1024
BUFFER_BYTES = 256 * 1024

_line_kinds = LineKinds()  # of heads without credentials

BodySink = Callable[[memoryview], None]
Done = Callable[[int | Exception], None]


class ProbeFailed(Exception):
    """The probe got no whole HTTP response."""


class ProbeClient(asyncio.BufferedProtocol):
    """One GET at a time on a connection that is kept alive; `buffer` is shared with other probes of the process."""

    def __init__(self, backend: Backend, connector: Connector, buffer: bytearray) -> None:
        self._backend = backend
        self._connector = connector
        self._view = memoryview(buffer)
        self._transport: asyncio.Transport | None = None
        self._dialling: asyncio.Task[None] | None = None
        self._path = ""
        self._sink: BodySink | None = None
        self._done: Done | None = None
        self._again = False  # a kept connection is in use: when it proves dead, another one is made
        self._reset()

    def _reset(self) -> None:
        self._head = b""
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
        self._again = self._transport is not None
        if self._transport is None:
            self._dial()
        else:
            self._send(self._transport)

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
        except BaseException:
            self.close()
            raise

    def _dial(self) -> None:
        self._dialling = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        try:
            await self._connector.connect(self._backend, lambda: self)
        except OSError as e:
            self._dialling = None
            self._end(e)
            return
        self._dialling = None
        if self._transport is not None:
            self._send(self._transport)

    def _send(self, transport: asyncio.Transport) -> None:
        self._reset()
        transport.write(
            b"GET %b HTTP/1.1\r\nHost: %b\r\nAccept: */*\r\n\r\n" % (self._path.encode(), self._backend.authority)
        )

    def close(self) -> None:
        """Close the connection and forget the request; the next one makes a new connection."""
        self._done = self._sink = None
        if self._dialling is not None:
            self._dialling.cancel()
            self._dialling = None
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    def _end(self, result: int | Exception) -> None:
        done = self._done
        self._done = self._sink = None
        if not self._keep_alive:
            self.close()
        if done is not None:
            done(result)

    # ------------------------------------------------------------------ asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.BaseProtocol."""
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """See asyncio.BufferedProtocol."""
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        """See asyncio.BufferedProtocol."""
        if self._done is None:
            self.close()  # bytes that nobody asked for
            return
        self._again = False
        try:
            self._take(self._view[:nbytes])
        except (HeadError, FramingError) as e:
            self._fail(ProbeFailed(str(e)))

    def eof_received(self) -> None:
        """See asyncio.BaseProtocol."""
        if self._status and self._left < 0 and self._chunks is None:
            self._end(self._status)
        else:
            self._fail(ProbeFailed("the connection ended before the response did"))

    def connection_lost(self, exc: BaseException | None) -> None:
        """See asyncio.BaseProtocol."""
        self._transport = None
        self._fail(exc if isinstance(exc, OSError) else ProbeFailed("the connection ended before the response did"))

    # ------------------------------------------------------------------ the response

    def _take(self, data: memoryview) -> None:
        if not self._status:
            whole = self._head + bytes(data)
            end = whole.find(b"\r\n\r\n") + 4
            if end < 4:
                self._head = whole
                if len(whole) > MAX_HEAD_BYTES or not wire.may_begin_response(whole):
                    raise HeadError(502, "no HTTP response")
                return
            self._take_head(whole[:end])
            data = memoryview(whole)[end:]
            if not self._status:  # it was an interim response
                self._head = b""
                if data:
                    self._take(data)
                return
        self._take_body(data)

    def _take_head(self, raw: bytes) -> None:
        head = read_response(raw, _line_kinds) or wire.parse_response(raw)
        if head is None:
            return
        self._status = head.status
        self._keep_alive = head.keep_alive and head.framing is not Framing.CLOSE
        if head.framing is Framing.CHUNKED:
            self._chunks = ChunkScanner([])
        elif head.framing is not Framing.CLOSE:
            self._left = head.length

    def _take_body(self, data: memoryview) -> None:
        if self._chunks is not None:
            end = self._chunks.feed(bytes(data))
            assert self._chunks.pieces is not None
            for piece in self._chunks.pieces:
                self._give(memoryview(piece))
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

    def _fail(self, error: Exception) -> None:
        if self._done is None:
            return
        if self._again:
            self._again = False
            self._transport = None
            self._dial()
            return
        self._keep_alive = False
        self._end(error)
