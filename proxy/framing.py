"""Where a message body ends (RFC 9112 sections 6 and 7): scanners that are fed bytes as they came.

Owns the framing of bodies. Bytes in, an index out, no I/O and no copies: the caller forwards what it was given.
A scanner's `feed` answers how many bytes of the piece belong to the message once its end is in it; MORE when all of the
piece does and more is to come; PART when only a part of the piece may be passed on.
"""

from __future__ import annotations

import re
from typing import Protocol

MORE = -1
PART = -2
MAX_CHUNK_LINE = 4096  # bytes of a chunk-size line with its extensions, and of one trailer line
MAX_TRAILERS = 64 * 1024
_MEMO_ENTRIES = 2048
_CRLF = b"\r\n"
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t !-~\x80-\xff]*)?")
_TRAILER_LINE = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t !-~\x80-\xff]*")


class FramingError(Exception):
    """The bytes are no proper body; the text says what is wrong with them."""


class Scanner(Protocol):
    """What every scanner offers.

    `started` is True once a byte of content was seen, `at_chunk` when the next byte begins a chunk.
    """

    started: bool
    at_chunk: bool

    def feed(self, data: bytes) -> int:
        """Take the next piece; MORE, PART, or the number of its bytes that belong to the message when it ends here."""
        ...


class LengthScanner:
    """A body of a known length."""

    at_chunk = False
    __slots__ = ("left", "started")

    def __init__(self, length: int) -> None:
        self.left = length
        self.started = False

    def feed(self, data: bytes) -> int:
        """See Scanner.feed."""
        n = len(data)
        if n:
            self.started = True
        if n < self.left:
            self.left -= n
            return MORE
        end = self.left
        self.left = 0
        return end


class CloseScanner:
    """A body that ends with the connection; only the end of file ends it."""

    at_chunk = False
    __slots__ = ("started",)

    def __init__(self) -> None:
        self.started = False

    def feed(self, data: bytes) -> int:
        """See Scanner.feed."""
        if data:
            self.started = True
        return MORE


WHOLE_CHUNK_BYTES = 4096  # below this, a piece that is one whole chunk is known by its first and last bytes

_NO_LINE = bytes(WHOLE_CHUNK_BYTES)  # longer than any piece that it could begin, so that none does


def _size_line(n: int) -> bytes:
    """Give the line that begins a chunk of `n` bytes altogether, as servers write it; one too long if there is none."""
    for digits in range(1, 4):
        line = b"%x\r\n" % max(n - digits - 4, 0)
        if len(line) == digits + 2 and n > digits + 4:
            return line
    return _NO_LINE


SIZE_LINES = [_size_line(n) for n in range(WHOLE_CHUNK_BYTES)]
SIZES_AT = [slice(len(line)) for line in SIZE_LINES]

_sizes: dict[bytes, int] = {}


def chunk_size(line: bytes) -> int:
    """Read a chunk-size line without its line end; raises FramingError."""
    size = _sizes.get(line)
    if size is not None:
        return size
    match = _SIZE_LINE.fullmatch(line) if len(line) <= MAX_CHUNK_LINE else None
    if match is None:
        raise FramingError("bad chunk size line")
    size = int(match[1], 16)
    if len(line) <= 8:
        if len(_sizes) >= _MEMO_ENTRIES:
            _sizes.clear()
        _sizes[line] = size
    return size


class ChunkScanner:
    """A chunked body. Tracks chunk boundaries without taking the body apart.

    With `pieces` (a list) the content of the chunks is appended to it as it comes. Trailers are checked and never
    passed on: from the last chunk's line on, `trailer_at` is the index in the latest piece up to which it may be
    forwarded (-1 before), and the forwarder writes the final empty line itself.
    """

    __slots__ = ("_cut", "_in_trailers", "_skip", "_trailer_bytes", "at_chunk", "pieces", "started", "trailer_at")

    def __init__(self, pieces: list[bytes] | None = None) -> None:
        self._skip = 0  # bytes of the current chunk that are still to come, its line end included
        self._cut = b""  # a size or trailer line that was cut by the end of a piece
        self._in_trailers = False
        self._trailer_bytes = 0
        self.pieces = pieces
        self.started = False
        self.at_chunk = True
        self.trailer_at = -1

    def feed(self, data: bytes) -> int:
        """See Scanner.feed; raises FramingError."""
        end = self._scan(data)
        self.at_chunk = not (self._skip or self._cut or self._in_trailers)
        return end

    def _scan(self, data: bytes) -> int:
        before = len(self._cut)
        if before:
            data = self._cut + data
            self._cut = b""
        if self._in_trailers:
            self.trailer_at = 0
            end = self._feed_trailers(data, 0)
            return end - before if end >= 0 else PART
        n = len(data)
        pos = self._skip
        if pos:
            pos = self._rest_of_chunk(data, n)
            if pos < 0:
                return MORE
        while pos < n:
            eol = data.find(_CRLF, pos)
            if eol < 0:
                self._keep_cut(data, pos)
                return MORE
            size = chunk_size(data[pos:eol])
            start = eol + 2
            if size == 0:
                return self._last_chunk(data, start, before)
            pos = start + size + 2
            if pos <= n:
                if data[pos - 2 : pos] != _CRLF:
                    raise FramingError("no line end behind a chunk")
                self.started = True
                if self.pieces is not None:
                    self.pieces.append(data[start : pos - 2])
            elif start < n:
                self._open_chunk(data, start, n, size)
        self._skip = pos - n
        return MORE

    def _keep_cut(self, data: bytes, pos: int) -> None:
        self._cut = data[pos:]
        if len(self._cut) > MAX_CHUNK_LINE + 1:  # a carriage return may be the last byte
            raise FramingError("a chunk-size or trailer line is too long")
        if b"\n" in self._cut:
            raise FramingError("a bare line feed")
        self._skip = 0

    def _open_chunk(self, data: bytes, start: int, n: int, size: int) -> None:
        self.started = True
        if self.pieces is not None:
            self.pieces.append(data[start : start + size])
        if n == start + size + 1 and data[-1:] != b"\r":
            raise FramingError("no line end behind a chunk")

    def _rest_of_chunk(self, data: bytes, n: int) -> int:
        """Go on in a chunk that an earlier piece began; the index behind it, or -1 when the piece ends in it."""
        skip = self._skip
        if skip > 2:
            self.started = True
            if self.pieces is not None:
                self.pieces.append(data[: skip - 2])
        if n < skip:
            if n == skip - 1 and data[-1:] != b"\r":
                raise FramingError("no line end behind a chunk")
            self._skip = skip - n
            return -1
        if data[max(skip - 2, 0) : skip] != _CRLF[-min(skip, 2) :]:
            raise FramingError("no line end behind a chunk")
        self._skip = 0
        return skip

    def _last_chunk(self, data: bytes, pos: int, before: int) -> int:
        self._in_trailers = True
        self._skip = 0
        if data.startswith(_CRLF, pos):
            return pos + 2 - before  # nearly always: no trailers, and all of it here
        self.trailer_at = pos - before
        end = self._feed_trailers(data, pos)
        return end - before if end >= 0 else PART

    def _feed_trailers(self, data: bytes, pos: int) -> int:
        while True:
            eol = data.find(_CRLF, pos)
            if eol < 0:
                self._keep_cut(data, pos)
                return -1
            if eol == pos:
                return pos + 2
            line = data[pos:eol]
            self._trailer_bytes += len(line)
            long = len(line) > MAX_CHUNK_LINE or self._trailer_bytes > MAX_TRAILERS
            if long or not _TRAILER_LINE.fullmatch(line):
                raise FramingError("bad trailers")
            pos = eol + 2
