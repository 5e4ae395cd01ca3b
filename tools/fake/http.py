"""Reads HTTP/1.1 requests out of bytes.

Owns the framing of requests (Content-Length and chunked bodies, keep-alive, pipelining). Does no I/O and knows nothing
of what is asked for. It keeps only the first `KEEP` bytes of a body and counts the rest, so that an upload of any size
costs no memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

KEEP = 64 * 1024
MAX_HEAD = 64 * 1024
MAX_LINE = 4096

REASONS = {
    200: "OK",
    201: "Created",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    409: "Conflict",
    413: "Payload Too Large",
    422: "Unprocessable Entity",
    429: "Too Many Requests",
    500: "Internal Server Error",
    501: "Not Implemented",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}


class BadRequest(Exception):
    """What the peer sent is no HTTP/1.1 request."""


@dataclass(slots=True)
class Request:
    """One request; `body` is its beginning, `body_bytes` its real size."""

    method: str
    path: str
    query: str
    keep_alive: bool
    http11: bool
    headers: dict[bytes, bytes]
    body: bytearray = field(default_factory=bytearray)
    body_bytes: int = 0

    @property
    def whole(self) -> bool:
        """Tell whether `body` is all of the body."""
        return len(self.body) == self.body_bytes

    def add(self, data: bytes | bytearray) -> None:
        """Count a piece of the body and keep what fits."""
        self.body_bytes += len(data)
        room = KEEP - len(self.body)
        if room > 0:
            self.body += data[:room]


class _State(Enum):
    HEAD = "head"
    LENGTH = "length"
    CHUNK_SIZE = "chunk size"
    CHUNK_DATA = "chunk data"
    CHUNK_END = "chunk end"
    TRAILER = "trailer"


class RequestReader:
    """Turns the bytes of one connection into requests."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._state = _State.HEAD
        self._left = 0
        self._request: Request | None = None
        self.wants_continue = False

    @property
    def buffered(self) -> int:
        """Return the number of bytes that no request has taken yet."""
        return len(self._buffer)

    @property
    def between_requests(self) -> bool:
        """Tell whether no request has begun."""
        return self._request is None and not self._buffer

    def feed(self, data: bytes) -> None:
        """Add what was received; `next_request` uses it."""
        self._buffer += data

    def next_request(self) -> Request | None:
        """Return the next whole request, or None until more bytes are fed. Raises BadRequest."""
        while True:
            if self._state is _State.HEAD:
                if not self._read_head():
                    return None
            elif self._state in (_State.LENGTH, _State.CHUNK_DATA):
                self._take_data()
                if self._left:
                    return None
                if self._state is _State.CHUNK_DATA:
                    self._state = _State.CHUNK_END
                    continue
                return self._complete()
            else:
                line = self._line()
                if line is None:
                    return None
                if self._chunk_line(line):
                    return self._complete()

    def _complete(self) -> Request:
        request = self._request
        assert request is not None
        self._request, self._state, self.wants_continue = None, _State.HEAD, False
        return request

    def _read_head(self) -> bool:
        while self._buffer[:2] == b"\r\n":  # RFC 9112 section 2.2: empty lines before a request line are skipped
            del self._buffer[:2]
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > MAX_HEAD:
                raise BadRequest("the request head is too long")
            return False
        request = parse_head(bytes(self._buffer[:end]))
        del self._buffer[: end + 4]
        coding = request.headers.get(b"transfer-encoding")
        length = request.headers.get(b"content-length")
        if coding is not None and (length is not None or coding.lower() != b"chunked"):
            raise BadRequest("ambiguous framing or unknown transfer coding")
        if length is not None and not length.isdigit():
            raise BadRequest("Content-Length is not a number")
        self._left = int(length or 0)
        self._state = _State.LENGTH if coding is None else _State.CHUNK_SIZE
        self._request = request
        has_body = coding is not None or self._left > 0
        self.wants_continue = has_body and request.headers.get(b"expect", b"").lower() == b"100-continue"
        return True

    def _take_data(self) -> None:
        take = min(self._left, len(self._buffer))
        if not take or self._request is None:
            return
        piece = self._buffer if take == len(self._buffer) else self._buffer[:take]
        self._request.add(piece)
        self._left -= take
        del self._buffer[:take]

    def _line(self) -> bytes | None:
        end = self._buffer.find(b"\r\n")
        if end < 0:
            if len(self._buffer) > MAX_LINE:
                raise BadRequest("a chunk line is too long")
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line

    def _chunk_line(self, line: bytes) -> bool:
        """Use one line of the chunked framing; tell whether it ended the body."""
        if self._state is _State.CHUNK_END:
            if line:
                raise BadRequest("a chunk is longer than its size")
            self._state = _State.CHUNK_SIZE
        elif self._state is _State.CHUNK_SIZE:
            try:
                self._left = int(line.split(b";", 1)[0], 16)
            except ValueError:
                raise BadRequest("bad chunk size") from None
            self._state = _State.CHUNK_DATA if self._left else _State.TRAILER
        else:
            return not line
        return False


def parse_head(head: bytes) -> Request:
    """Return the request of a head without its empty line. Raises BadRequest."""
    lines = iter(head.split(b"\r\n"))
    parts = next(lines).split(b" ")
    if len(parts) != 3 or not parts[2].startswith(b"HTTP/1."):
        raise BadRequest("bad request line")
    headers = dict(_fields(lines))
    http11 = parts[2] == b"HTTP/1.1"
    connection = headers.get(b"connection", b"").lower()
    keep_alive = b"close" not in connection and (http11 or b"keep-alive" in connection)
    path, _, query = parts[1].decode("latin-1").partition("?")
    return Request(parts[0].decode("latin-1"), path, query, keep_alive, http11, headers)


def _fields(lines: Iterator[bytes]) -> Iterator[tuple[bytes, bytes]]:
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not name or name.strip() != name:
            raise BadRequest("bad header line")
        yield name.lower(), value.strip()


def response_head(status: int, fields: list[tuple[str, str]], length: int | None, *, keep_alive: bool) -> bytes:
    """Return a response head; without a length the body is chunked, or ends with the connection (length -1)."""
    lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Unknown')}", "server: uvicorn"]
    lines += [f"{name}: {value}" for name, value in fields]
    if length is None:
        lines.append("transfer-encoding: chunked")
    elif length >= 0:
        lines.append(f"content-length: {length}")
    if not keep_alive:
        lines.append("connection: close")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def chunk(data: bytes) -> bytes:
    """Frame one piece of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)
