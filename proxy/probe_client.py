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


class ProbeFailed(Exception):
    """The probe got no whole HTTP response."""


class ProbeClient(asyncio.BufferedProtocol):
    """One GET at a time on a connection that is kept alive; `buffer` is shared with other probes of the process."""

    def __init__(self, backend: Backend, connector: Connector, buffer: bytearray) -> None:
        self._backend = backend
        self._connector = connector
        self._view = memoryview(buffer)
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[int] | None = None
        self._sink: BodySink | None = None
        self._reset()

    def _reset(self) -> None:
        self._head = b""
        self._status = 0
        self._left = -1  # bytes of the body still to come; -1: not known by length
        self._chunks: ChunkScanner | None = None
        self._keep_alive = False

    async def get(self, path: str, sink: BodySink | None = None) -> int:
        """Send one GET and return the status of its whole response; `sink` gets the body's pieces as views.

        A view is valid during its call only. Raises OSError or ProbeFailed. Nothing limits the time: the caller does,
        and after cancellation the connection is closed. A kept connection that proves dead is replaced once.
        """
        reused = self._transport is not None
        try:
            return await self._get(path, sink)
        except (OSError, ProbeFailed):
            if not reused:
                raise
            return await self._get(path, sink)

    async def _get(self, path: str, sink: BodySink | None) -> int:
        if self._transport is None:
            await self._connector.connect(self._backend, lambda: self)
        assert self._transport is not None
        self._reset()
        self._sink = sink
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(
            b"GET %b HTTP/1.1\r\nHost: %b\r\nAccept: */*\r\n\r\n" % (path.encode("ascii"), self._backend.authority)
        )
        try:
            status = await self._done
        except BaseException:
            self.close()
            raise
        finally:
            self._done = self._sink = None
        if not self._keep_alive:
            self.close()
        return status

    def close(self) -> None:
        """Close the connection; the next request makes a new one."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    # ------------------------------------------------------------------ asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.BaseProtocol."""
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """See asyncio.BufferedProtocol."""
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        """See asyncio.BufferedProtocol."""
        if self._done is None or self._done.done():
            self.close()  # bytes that nobody asked for
            return
        try:
            self._take(self._view[:nbytes])
        except (HeadError, FramingError) as e:
            self._fail(ProbeFailed(str(e)))

    def eof_received(self) -> None:
        """See asyncio.BaseProtocol."""
        if self._status and self._left < 0 and self._chunks is None:
            self._finish()
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
                self._finish()
        elif self._left < 0:
            self._give(data)
        else:
            self._give(data[: self._left])
            self._keep_alive = self._keep_alive and len(data) <= self._left
            self._left = max(self._left - len(data), 0)
            if self._left == 0:
                self._finish()

    def _give(self, piece: memoryview) -> None:
        if self._sink is not None and piece:
            self._sink(piece)

    def _finish(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(self._status)

    def _fail(self, error: BaseException) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)
