"""What one HTTP/1.1 response is, and whether it arrived whole: bytes in, a judged `Answer` out, no I/O.

A load generator that believes a cut stream is worse than none, so the judgement is strict: a body is whole only when
its own framing says so, an event stream of an OpenAI endpoint only with its `data: [DONE]`. Knows nothing of sockets,
pools or retries; time is a number that the caller passes in.
"""

from __future__ import annotations

import enum
import re

from tools.load.stats import LogHistogram

MAX_HEAD = 65536
TAIL = 4096
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: [^\r\n]*)?\Z")
_HEX = re.compile(rb"[0-9A-Fa-f]{1,15}\Z")
_TOKENS = re.compile(rb'"completion_tokens":\s*([0-9]+)')
_EMPTY = b'"delta":{}'
_NO_CHOICE = re.compile(rb'"choices":\s*\[\s*\]')


class Outcome(enum.IntEnum):
    """How one request ended, from the client's point of view; the names are what reports show."""

    OK = 0
    HTTP_ERROR = 1
    CONNECT_ERROR = 2
    CLOSED = 3
    TRUNCATED = 4
    PROTOCOL_ERROR = 5
    TIMEOUT = 6
    ERROR_EVENT = 7
    SHORT = 8
    LEFT = 9
    UNFINISHED = 10

    @property
    def label(self) -> str:
        """The word for people and JSON."""
        return self.name.lower()


class EventMeter:
    """Count the events of one SSE stream that bring something, and the gaps between them.

    Usage, errors, `[DONE]` and a closing event with an empty delta are read but are no tokens.
    """

    __slots__ = ("done", "error", "events", "first_at", "gaps", "last_at", "pending", "usage")

    def __init__(self, gaps: LogHistogram | None) -> None:
        self.gaps = gaps
        self.pending = b""
        self.events = 0
        self.first_at = 0.0
        self.last_at = 0.0
        self.done = False
        self.error = False
        self.usage = -1

    def feed(self, piece: bytes, now: float) -> None:
        """Take the next bytes of the body, received at `now` (seconds)."""
        if self.pending:
            piece = self.pending + piece
        if b"\r" in piece:
            piece = piece.replace(b"\r\n", b"\n")
        *events, self.pending = piece.split(b"\n\n")
        for event in events:
            self._event(event, now)

    def _event(self, event: bytes, now: float) -> None:
        if not event.startswith(b"data:"):
            lines = [line for line in event.split(b"\n") if line.startswith(b"data:")]
            if not lines:
                return
            event = b"\n".join(lines)
        payload = event[5:].strip()
        if payload == b"[DONE]":
            self.done = True
            return
        if payload.startswith(b'{"error"'):
            self.error = True
            return
        if b'"completion_tokens"' in payload:
            found = _TOKENS.search(payload)
            if found:
                self.usage = int(found[1])
            if _NO_CHOICE.search(payload):
                return
        if _EMPTY in payload:
            return
        if not self.events:
            self.first_at = now
        elif self.gaps is not None:
            self.gaps.add(now - self.last_at)
        self.events += 1
        self.last_at = now


class Answer:
    """One response as the client saw it. `outcome` is final once `finished` is true; times are the caller's clock.

    `framed` tells that length or chunks said the body was whole, whatever its content says.
    """

    __slots__ = ("body_bytes", "close", "finished", "framed", "headers", "meter", "outcome", "reason", "status", "tail")

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.meter: EventMeter | None = None
        self.body_bytes = 0
        self.tail = b""
        self.close = False
        self.finished = False
        self.framed = False
        self.outcome = Outcome.UNFINISHED
        self.reason = ""

    def __repr__(self) -> str:
        return f"<Answer {self.status} {self.outcome.label} {self.body_bytes} bytes {self.reason}>"

    @property
    def tokens(self) -> int:
        """Output tokens: what the endpoint's usage says, else the number of content events, else 0."""
        if self.meter is not None:
            return self.meter.usage if self.meter.usage >= 0 else self.meter.events
        found = _TOKENS.search(self.tail)
        return int(found[1]) if found else 0

    def fail(self, outcome: Outcome, reason: str) -> None:
        """End the exchange with a fault; the first one stays."""
        if not self.finished:
            self.finished, self.close, self.outcome, self.reason = True, True, outcome, reason


class _Bad(Exception):
    """The peer broke the protocol; the text says how."""


class ResponseReader:
    """Read one response. `feed` returns True once its end was reached, faults included."""

    __slots__ = ("_buffer", "_left", "_state", "answer", "expect_done", "gaps")

    HEAD, LENGTH, SIZE, CHUNK, CHUNK_END, TRAILER, EOF = range(7)

    def __init__(self, expect_done: bool = False, gaps: LogHistogram | None = None) -> None:
        self.answer = Answer()
        self.expect_done = expect_done
        self.gaps = gaps
        self._buffer = b""
        self._state = self.HEAD
        self._left = 0

    def feed(self, data: bytes, now: float) -> bool:
        """Take bytes received at `now`; True when the response has ended (see `answer`)."""
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        try:
            return self._head(data, now) if self._state == self.HEAD else self._body(data, 0, now)
        except _Bad as bad:
            self.answer.fail(Outcome.PROTOCOL_ERROR, str(bad))
            return True

    def end(self, error: str = "") -> Answer:
        """The connection ended: judge what is there. `error` is the reason when it was a reset."""
        answer = self.answer
        if not answer.finished:
            if self._state == self.EOF and not error:
                self._whole(surplus=False)
                answer.close = True
            elif self._state == self.HEAD:
                answer.fail(Outcome.CLOSED, error or "closed before a response")
            else:
                answer.fail(Outcome.TRUNCATED, error or "closed inside the body")
        return answer

    def _head(self, data: bytes, now: float) -> bool:
        while True:
            stop = data.find(b"\r\n\r\n")
            if stop < 0:
                if len(data) > MAX_HEAD:
                    raise _Bad("response head over 64 KiB")
                if data and not b"HTTP/1.".startswith(data[:7]):
                    raise _Bad("not an HTTP/1.x response")
                self._buffer = data
                return False
            lines = data[:stop].split(b"\r\n")
            found = _STATUS_LINE.match(lines[0])
            if found is None:
                raise _Bad("bad status line")
            status = int(found[2])
            if status >= 200:
                break
            if status == 101:
                raise _Bad("unasked 101")
            data = data[stop + 4 :]
        answer = self.answer
        answer.status = status
        headers = answer.headers
        for line in lines[1:]:
            name, colon, value = line.partition(b":")
            name = name.lower()
            if not colon or not name or name[-1:].isspace():
                raise _Bad("bad header line")
            if name in (b"content-length", b"transfer-encoding") and name in headers:
                raise _Bad("doubled framing header")
            headers[name] = value.strip()
        self._framing(found[1] == b"0")
        return self._body(data, stop + 4, now)

    def _framing(self, old: bool) -> None:
        answer, headers = self.answer, self.answer.headers
        connection = headers.get(b"connection", b"").lower()
        answer.close = b"close" in connection or (old and b"keep-alive" not in connection)
        if headers.get(b"content-type", b"").lower().startswith(b"text/event-stream") and answer.status < 300:
            answer.meter = EventMeter(self.gaps)
        length, coding = headers.get(b"content-length"), headers.get(b"transfer-encoding")
        if coding is not None:
            if length is not None or coding.lower() != b"chunked":
                raise _Bad("bad framing")
            self._state = self.SIZE
        elif answer.status in (204, 304):
            self._state, self._left = self.LENGTH, 0
        elif length is not None:
            if not length.isdigit():
                raise _Bad("bad Content-Length")
            self._state, self._left = self.LENGTH, int(length)
        else:
            self._state = self.EOF

    def _take(self, piece: bytes, now: float) -> None:
        answer = self.answer
        answer.body_bytes += len(piece)
        if answer.meter is not None:
            answer.meter.feed(piece, now)
        else:
            answer.tail = piece[-TAIL:] if len(piece) >= TAIL else (answer.tail + piece)[-TAIL:]

    def _body(self, data: bytes, at: int, now: float) -> bool:
        if self._state == self.LENGTH:
            piece = data[at : at + self._left]
            if piece:
                self._left -= len(piece)
                self._take(piece, now)
            return self._whole(len(data) > at + len(piece)) if self._left == 0 else False
        if self._state == self.EOF:
            if len(data) > at:
                self._take(data[at:], now)
            return False
        return self._chunks(data, at, now)

    def _chunks(self, data: bytes, at: int, now: float) -> bool:
        size = len(data)
        while at < size:
            if self._state == self.CHUNK:
                piece = data[at : at + self._left]
                at += len(piece)
                self._left -= len(piece)
                self._take(piece, now)
                if self._left:
                    return False
                self._state = self.CHUNK_END
            elif self._state == self.CHUNK_END:
                if size - at < 2:
                    break
                if data[at : at + 2] != b"\r\n":
                    raise _Bad("chunk without its line end")
                at += 2
                self._state = self.SIZE
            else:
                stop = data.find(b"\r\n", at)
                if stop < 0:
                    if size - at > 4096:
                        raise _Bad("endless chunk line")
                    break
                line, at = data[at:stop], stop + 2
                if self._state == self.SIZE:
                    digits = line.partition(b";")[0].strip()
                    if not _HEX.match(digits):
                        raise _Bad("bad chunk size")
                    self._left = int(digits, 16)
                    self._state = self.CHUNK if self._left else self.TRAILER
                elif not line:
                    return self._whole(at < size)
        self._buffer = data[at:]
        return False

    def _whole(self, surplus: bool) -> bool:
        answer = self.answer
        meter = answer.meter
        answer.framed = self._state != self.EOF
        if surplus:
            answer.fail(Outcome.PROTOCOL_ERROR, "bytes after the end of the response")
        elif meter is not None and meter.error:
            answer.fail(Outcome.ERROR_EVENT, "the stream carried an error event")
        elif meter is not None and self.expect_done and not meter.done:
            answer.fail(Outcome.TRUNCATED, "the stream ended without [DONE]")
        elif meter is not None and meter.pending.strip():
            answer.fail(Outcome.TRUNCATED, "the stream ended inside an event")
        elif self._state == self.EOF and self._json_is_open():
            answer.fail(Outcome.TRUNCATED, "the JSON body ended early")
        else:
            answer.finished = True
            answer.outcome = Outcome.OK if answer.status < 400 else Outcome.HTTP_ERROR
        return True

    def _json_is_open(self) -> bool:
        kind = self.answer.headers.get(b"content-type", b"").lower()
        return kind.startswith(b"application/json") and not self.answer.tail.rstrip().endswith((b"}", b"]"))
