"""Read an upstream's response: its head, then its body piece by piece. Bytes in, what the client may get out; no I/O.

Owns the limits on a head and the choice of a scanner. What a response leads to is relay.py's.
"""

from __future__ import annotations

from proxy import wire
from proxy.framing import ChunkScanner, CloseScanner, LengthScanner, Scanner
from proxy.head_memo import HeadMemo
from proxy.headers import Framing, HeadError, ResponseHead

_LENGTH, _CLOSE = Framing.LENGTH, Framing.CLOSE  # as globals they are found in a fraction of the time


def read_head(memo: HeadMemo[ResponseHead], data: bytes, limit: int) -> tuple[ResponseHead | None, bytes, int]:
    """Read the final response head at the start of `data`, behind interim ones, which are dropped.

    Returns the head, the bytes that begin with it, and the index behind it in them; None and the bytes to keep when it
    is not complete. Raises HeadError for what is no proper response, or a head of more than `limit` bytes.
    """
    start = 0
    end = data.find(b"\r\n\r\n") + 4
    if 4 <= end <= limit:  # as nearly always, and nearly always that is the final head
        head = memo.understand(data[:end])
        if head is not None:
            return head, data, end
        start = wire.skip_interim(data, end)
    while True:
        end = data.find(b"\r\n\r\n", start) + 4
        if end < 4:
            rest = data[start:] if start else data
            if len(rest) > limit or not wire.may_begin_response(rest) or wire.has_bare_lf(rest):
                raise HeadError(502, "no proper response head")
            return None, rest, 0
        if end - start > limit:
            raise HeadError(502, "the response head is too long")
        head = memo.understand(data[start:end])
        if head is not None:
            return (head, data[start:], end - start) if start else (head, data, end)
        start = wire.skip_interim(data, end)


class ResponseBody:
    """The body of one response; `decode` takes its content out of the chunks, for a client that knows none."""

    __slots__ = ("_pieces", "scanner")

    def __init__(self, head: ResponseHead, *, decode: bool) -> None:
        self._pieces: list[bytes] | None = None
        self.scanner: Scanner
        if head.framing is _LENGTH:
            self.scanner = LengthScanner(head.length)
        elif head.framing is _CLOSE:
            self.scanner = CloseScanner()
        else:
            self._pieces = [] if decode else None
            self.scanner = ChunkScanner(self._pieces)

    @property
    def raw(self) -> bool:
        """True when the pieces are passed on as they came."""
        return self._pieces is None

    def feed(self, data: bytes) -> tuple[bytes, int]:
        """Take the next piece; returns what the client gets of it, and what the scanner says. Raises FramingError."""
        end = self.scanner.feed(data)
        return self.forwardable(data, end), end

    def forwardable(self, data: bytes, end: int) -> bytes:
        """Give what the client gets of a piece for which the scanner has said `end`: the very same object, if all."""
        if self._pieces is not None:
            content = b"".join(self._pieces)
            self._pieces.clear()
            return content
        if type(self.scanner) is ChunkScanner and self.scanner.trailer_at >= 0:  # trailers are dropped
            return data[: self.scanner.trailer_at] + (b"\r\n" if end >= 0 else b"")
        return data if end < 0 or end == len(data) else data[:end]
