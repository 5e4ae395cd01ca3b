"""The responses to health probes and queue samples: where they end, what their heads say, the pieces of their bodies.

Owns the reading of one backend's responses, one after the other, out of the buffer that all probes share: a page of
metrics costs no memory of its own. No I/O: it is told how many bytes stand in the buffer.
"""

from __future__ import annotations

from collections.abc import Callable

from proxy import wire
from proxy.framing import ChunkScanner
from proxy.head_memo import LineKinds, read_response
from proxy.headers import Framing, HeadError, ResponseHead

PLAIN_HEAD_BYTES = 1024
MAX_HEAD_BYTES = 64 * 1024
MAX_RESPONSE_BYTES = 4 * 2**20  # of one response, interim ones included: a page that never ends holds up the traffic

_line_kinds = LineKinds()  # of heads without credentials

BodySink = Callable[[memoryview], None]


class ResponseReader:
    """Reads responses; `sink` gets each piece of a body as a view that is valid during its call only.

    `status` and `keep_alive` are those of the latest response, as far as it has come.
    """

    __slots__ = (
        *("_body_at", "_buffer", "_chunks", "_head", "_last_head", "_last_raw", "_left", "_sink", "_taken"),
        *("_usual_bytes", "_view", "keep_alive", "status"),
    )

    def __init__(self, buffer: bytearray, sink: BodySink) -> None:
        self._buffer = buffer
        self._view = memoryview(buffer)
        self._sink = sink
        self._last_raw = b""
        self._last_head: ResponseHead | None = None
        self._usual_bytes = -1  # of a whole response with the last head, if one may have another follow
        self._taken = 0  # bytes of the present response
        self._reset()

    def _reset(self) -> None:
        self._head = b""
        self.status = 0
        self._left = -1  # bytes of the body still to come; -1: not known by length
        self._chunks: ChunkScanner | None = None
        self.keep_alive = False

    def restart(self) -> None:
        """Forget a response of which only a part has come."""
        self._taken = 0

    @property
    def ends_with_connection(self) -> bool:
        """Tell whether the present response is whole when its connection ends properly now."""
        return bool(self._taken and self.status) and self._left < 0 and self._chunks is None

    def feed(self, nbytes: int) -> bool:
        """Take the first bytes of the buffer; True when the response is whole.

        Raises HeadError or FramingError when it is no proper response; then `restart` has to follow.
        """
        if not self._taken:
            if nbytes == self._usual_bytes and self._buffer.startswith(self._last_raw):
                assert self._last_head is not None
                self.status = self._last_head.status
                self.keep_alive = True
                self._sink(self._view[len(self._last_raw) : nbytes])
                return True
            self._reset()
        self._taken += nbytes
        if self._taken > MAX_RESPONSE_BYTES:
            raise HeadError(502, "the response does not end")
        if not self._take(self._view[:nbytes]):
            return False
        self._taken = 0
        return True

    def _take(self, data: memoryview) -> bool:
        if not self.status:
            rest = self._take_plain_head(data)
            if rest is None:
                rest = self._take_heads(self._head + bytes(data))
            if rest is None:
                return False
            data = rest
        return self._take_body(data)

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
            usual = head is not None and head.keep_alive and head.framing is Framing.LENGTH
            self._usual_bytes = len(raw) + head.length if head is not None and usual else -1
        if head is None:
            return False
        self.status = head.status
        self.keep_alive = head.keep_alive and head.framing is not Framing.CLOSE
        if head.framing is Framing.CHUNKED:
            self._chunks = ChunkScanner([])
        elif head.framing is not Framing.CLOSE:
            self._left = head.length
        return True

    def _take_body(self, data: memoryview) -> bool:
        if self._chunks is not None:
            end = self._chunks.feed(bytes(data))
            assert self._chunks.pieces is not None
            self._give(memoryview(b"".join(self._chunks.pieces)))
            self._chunks.pieces.clear()
            if end < 0:
                return False
            self.keep_alive = self.keep_alive and end == len(data)
            return True
        if self._left < 0:
            self._give(data)
            return False
        self._give(data[: self._left])
        self.keep_alive = self.keep_alive and len(data) <= self._left
        self._left = max(self._left - len(data), 0)
        return self._left == 0

    def _give(self, piece: memoryview) -> None:
        if piece:
            self._sink(piece)
