"""Message heads as this proxy understands them, and what becomes of their fields on the way (RFC 9110 section 7.6).

Owns the rules about fields: hop-by-hop, Host, framing, what a head means for its connection. Takes fields that wire.py
validated (or head_memo.py, which gives the same); no h11, no sockets. Field names and values are raw bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from proxy.outcome import IDEMPOTENT_METHODS

Field = tuple[bytes, bytes]  # name as sent, value without surrounding blanks

HOP_BY_HOP = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization"),
        *(b"te", b"trailer", b"transfer-encoding", b"upgrade"),
    }
)
UNNOMINABLE = frozenset({b"host", b"content-length", b"transfer-encoding"})
MAX_LENGTH_DIGITS = 18
LOGGED_PATH_CHARACTERS = 1024
_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_HOST = re.compile(rb"[0-9A-Za-z._~!$&'()*+,;=:\[\]%-]*")
_WITH_AUTHORITY = re.compile(rb"[0-9A-Za-z+.\-]+://[^/?#]*(.*)", re.DOTALL)
_ABSOLUTE = re.compile(rb"(?i)https?://([^/?#]*)(.*)", re.DOTALL)


class Framing(Enum):
    """How the end of a body is known (RFC 9112 section 6.3)."""

    NONE = "none"
    LENGTH = "length"
    CHUNKED = "chunked"
    CLOSE = "close"


_NONE, _LENGTH, _CHUNKED, _CLOSE = Framing  # as globals they are found in a fraction of the time


class HeadError(Exception):
    """A head that is refused: `status` is the answer to a client (an upstream's head is a protocol error anyway)."""

    def __init__(self, status: int, reason: str, method: bytes | None = None, path: str | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.method = method
        self.path = path


@dataclass(slots=True)
class RequestHead:
    """A client's request head.

    `before_host + authority + after_host` is what goes to a backend; with `chunked` the Content-Length of the body that
    was read is still missing in it. `length` is None without a Content-Length.
    """

    method: bytes
    path: str  # for the log: no query, no authority
    http10: bool
    keep_alive: bool
    expects_continue: bool
    length: int | None
    chunked: bool
    before_host: bytes
    after_host: bytes
    for_proxy: bool  # GET or HEAD /health, answered by the proxy itself
    idempotent: bool

    @property
    def counts(self) -> bool:
        """False for what the proxy answers itself: that is no client traffic."""
        return not self.for_proxy

    @property
    def bodyless_response(self) -> bool:
        """True when the response has no body whatever its head says."""
        return self.method == b"HEAD"

    def upstream_bytes(self, authority: bytes, body_size: int) -> bytes:
        """Give the head for one backend; `body_size` is the size in bytes of the whole body."""
        if self.chunked:
            return b"%b%b%bContent-Length: %d\r\n\r\n" % (self.before_host, authority, self.after_host[:-2], body_size)
        return self.before_host + authority + self.after_host


@dataclass(slots=True)
class ResponseHead:
    """An upstream's final response head.

    `out` is what an HTTP/1.1 client gets when nothing is to be added; `verbatim` says that it is what the upstream
    sent. `keep_alive` says whether the upstream's connection may be used again.
    """

    status: int
    framing: Framing
    length: int
    keep_alive: bool
    out: bytes
    verbatim: bool
    coding_line: bytes  # the Transfer-Encoding line in `out` with its line end, or empty
    retry_after: bytes | None

    @property
    def has_body(self) -> bool:
        """True when a body follows, were the request no HEAD."""
        return self.framing is _CHUNKED or self.framing is _CLOSE or self.length > 0

    @property
    def counts(self) -> bool:
        """True: every response of an upstream is client traffic."""
        return True


def split_tokens(values: list[bytes]) -> list[bytes]:
    """Split a comma-separated field that may have come in several lines; lower case, without empty elements."""
    return [t for t in (part.strip(b" \t").lower() for v in values for part in v.split(b",")) if t]


def _values(fields: list[Field], name: bytes) -> list[bytes]:
    return [v for n, v in fields if n.lower() == name]


def forwarded(fields: list[Field]) -> list[Field]:
    """Drop the hop-by-hop fields and those that Connection nominates (RFC 9110 section 7.6.1); keep order and case."""
    nominated = set(split_tokens(_values(fields, b"connection"))) - UNNOMINABLE
    return [(n, v) for n, v in fields if (low := n.lower()) not in HOP_BY_HOP and low not in nominated]


def content_length(fields: list[Field]) -> int | None:
    """Read Content-Length; equal repetitions count as one (RFC 9110 section 8.6).

    Raises HeadError: 400, or 413 when it is huge.
    """
    values = [part.strip(b" \t") for v in _values(fields, b"content-length") for part in v.split(b",")]
    if not values:
        return None
    if len(set(values)) > 1:
        raise HeadError(400, "differing Content-Length fields")
    if not values[0].isdigit():
        raise HeadError(400, "Content-Length is not a number")
    if len(values[0]) > MAX_LENGTH_DIGITS:
        raise HeadError(413, "Content-Length is too large")
    return int(values[0])


def _request_is_chunked(fields: list[Field], http10: bool) -> bool:
    values = _values(fields, b"transfer-encoding")
    if not values:
        return False
    codings = split_tokens(values)
    if any(_TOKEN.fullmatch(c) and c not in (b"chunked", b"identity") for c in codings):
        raise HeadError(501, "unknown transfer coding")
    if codings != [b"chunked"] or len(values) > 1 or b"," in values[0]:
        raise HeadError(400, "Transfer-Encoding is not exactly chunked")
    if http10:
        raise HeadError(400, "Transfer-Encoding in an HTTP/1.0 message")
    if _values(fields, b"content-length"):
        raise HeadError(400, "both Content-Length and Transfer-Encoding")
    return True


def origin_form(method: bytes, target: bytes) -> bytes:
    """Turn the request target into what an origin server gets (RFC 9112 section 3.2); raises HeadError 400 or 501."""
    if method == b"CONNECT":
        raise HeadError(501, "CONNECT is not implemented")
    if target.startswith(b"/"):
        return target
    if target == b"*" and method == b"OPTIONS":
        return target
    match = _ABSOLUTE.fullmatch(target)
    if match is None or not match[1]:
        raise HeadError(400, "bad request target")
    rest = match[2]
    if not rest and method == b"OPTIONS":
        return b"*"
    return rest if rest.startswith(b"/") else b"/" + rest


def logged_path(target: bytes) -> str | None:
    """Give the path of a target for the log: no authority, no query, bounded; None when it has no path."""
    match = _WITH_AUTHORITY.fullmatch(target)
    path: bytes = re.split(rb"[?#]", match[1] if match else target, maxsplit=1)[0] or b"/"
    if path[:1] != b"/" and path != b"*":
        return None  # an authority, as CONNECT has it: perhaps with a password
    return path[:LOGGED_PATH_CHARACTERS].decode("latin-1")


def build_request(method: bytes, target: bytes, http10: bool, fields: list[Field]) -> RequestHead:
    """Make a RequestHead of validated parts; raises HeadError with the status to answer."""
    path = logged_path(target)
    try:
        return _build_request(method, target, http10, fields, path)
    except HeadError as e:
        e.method, e.path = method, path
        raise


def _build_request(method: bytes, target: bytes, http10: bool, fields: list[Field], path: str | None) -> RequestHead:
    target = origin_form(method, target)
    hosts = _values(fields, b"host")
    if len(hosts) > 1 or (not hosts and not http10):
        raise HeadError(400, "missing or doubled Host field")
    if hosts and not _HOST.fullmatch(hosts[0]):
        raise HeadError(400, "bad Host field")
    chunked = _request_is_chunked(fields, http10)
    length = content_length(fields)
    expects = not http10 and b"100-continue" in split_tokens(_values(fields, b"expect"))
    before: list[bytes] = [b"%b %b HTTP/1.1\r\n" % (method, target)]
    after: list[bytes] = []
    into = before
    if not hosts:
        before.append(b"Host: ")
        into = after
        after.append(b"\r\n")
    for name, value in forwarded(fields):
        low = name.lower()
        if low == b"host":
            before.append(name + b": ")
            into = after
            after.append(b"\r\n")
        elif low == b"content-length":
            if length is not None and not any(part.lower().startswith(b"content-length:") for part in into):
                into.append(b"%b: %d\r\n" % (name, length) if b"," in value else b"%b: %b\r\n" % (name, value))
        elif low != b"expect" or not expects:
            into.append(b"%b: %b\r\n" % (name, value))
    after.append(b"\r\n")
    return RequestHead(
        method=method,
        path=path or "/",
        http10=http10,
        keep_alive=not http10 and b"close" not in split_tokens(_values(fields, b"connection")),
        expects_continue=expects,
        length=length,
        chunked=chunked,
        before_host=b"".join(before),
        after_host=b"".join(after),
        for_proxy=method in (b"GET", b"HEAD") and target.partition(b"?")[0] == b"/health",
        idempotent=method in IDEMPOTENT_METHODS,
    )


def _response_framing(status: int, http10: bool, fields: list[Field]) -> tuple[Framing, int]:
    codings = _values(fields, b"transfer-encoding")
    lengths = _values(fields, b"content-length")
    if len(codings) > 1 or len(lengths) > 1 or (codings and lengths):
        raise HeadError(502, "doubled framing fields")
    if codings and (http10 or codings[0].strip(b" \t").lower() != b"chunked"):
        raise HeadError(502, "a transfer coding other than chunked")
    length = content_length(fields)
    if status in (204, 304):
        return _NONE, 0
    if codings:
        return _CHUNKED, 0
    if length is None:
        return _CLOSE, 0
    return _LENGTH, length


def build_response(status: int, reason: bytes, http10: bool, fields: list[Field], raw: bytes) -> ResponseHead:
    """Make a ResponseHead of validated parts of a final response; `raw` is the head as it came. Raises HeadError."""
    framing, length = _response_framing(status, http10, fields)
    dropped = {b"content-length", b"transfer-encoding"} if status == 204 else set()
    keep_coding = {b"transfer-encoding"} - dropped
    nominated = set(split_tokens(_values(fields, b"connection"))) - UNNOMINABLE
    out, coding_line = [b"HTTP/1.1 %d %b\r\n" % (status, reason)], b""
    for name, value in fields:
        low = name.lower()
        if low in dropped or low in nominated or (low in HOP_BY_HOP and low not in keep_coding):
            continue
        line = b"%b: %b\r\n" % (name, value)
        if low == b"transfer-encoding":
            coding_line = line
        out.append(line)
    out.append(b"\r\n")
    joined = b"".join(out)
    retry_after = _values(fields, b"retry-after")
    return ResponseHead(
        status=status,
        framing=framing,
        length=length,
        keep_alive=not http10 and b"close" not in split_tokens(_values(fields, b"connection")),
        out=joined,
        verbatim=joined == raw,
        coding_line=coding_line,
        retry_after=retry_after[0] if retry_after else None,
    )


@dataclass(frozen=True, slots=True)
class ClientSide:
    """What the client's side of one exchange asks of a response head."""

    http10: bool = False
    close: bool = False  # the connection ends with this response
    add_retry_after: int | None = None  # seconds, for a 429 that came without
    bodyless: bool = False  # the response to a HEAD


def client_head(head: ResponseHead, side: ClientSide) -> bytes:
    """Give the response head for a client: framing that its version knows, and what has to be added."""
    lines = head.out[:-2]
    if side.http10 and head.coding_line:
        lines = lines.replace(b"\r\n" + head.coding_line, b"\r\n", 1)
    elif head.framing is _CLOSE and not side.http10 and not side.bodyless:
        lines += b"Transfer-Encoding: chunked\r\n"
    if side.add_retry_after is not None:
        lines += b"Retry-After: %d\r\n" % side.add_retry_after
    if side.close:
        lines += b"Connection: close\r\n"
    return lines + b"\r\n"


def retry_after_s(value: bytes, wall_now: float) -> float | None:
    """Read Retry-After as seconds from now (RFC 9110 section 10.2.3: seconds or a date); None when malformed."""
    if value.isdigit() and len(value) <= 12:
        return float(value)
    text = value.decode("latin-1").strip()
    if re.fullmatch(r"\d{1,12}(\.\d{1,9})?", text):
        return float(text)
    if re.fullmatch(r"\d{13,}", text):
        return float("inf")
    from email.utils import parsedate_to_datetime  # half a MiB, and a date is rare

    try:
        return max(parsedate_to_datetime(text).timestamp() - wall_now, 0.0)
    except (ValueError, TypeError, OverflowError):
        return None
