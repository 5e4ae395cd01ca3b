"""Where the data path speaks to h11: every message head is validated there, on a fresh connection each.

Owns what h11 0.16 leaves to its user (bare line feeds, folds, versions) and the translation of its errors. The bytes of
bodies never come here: framing.py tracks them.
"""

from __future__ import annotations

import re

import h11

from proxy.headers import Field, HeadError, RequestHead, ResponseHead, build_request, build_response, logged_path

_EMPTY_LINES = re.compile(rb"(?:\r\n)++")
_FOLD = re.compile(rb"\r\n[ \t]")
_REQUEST_LINE = re.compile(rb"([^ \r\n]+) ([^ \r\n]+) (HTTP/[0-9]\.[0-9])\r\n")
_FRAMING_LINE = re.compile(rb"(?i)\r\n(content-length|transfer-encoding):([^\r\n]*)")
_METHOD = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_INTERIM_HEADS = re.compile(
    rb"(?>HTTP/1\.1 1(?:0[02-9]|[1-9][0-9]) [ !-~]{0,80}\r\n"
    rb"(?>(?!(?i:content-length|transfer-encoding):)[0-9A-Za-z\-]{1,64}: [!-~](?:[ -~]{0,512}[!-~])?\r\n){0,64}+\r\n)++"
)
_PREFIX = b"HTTP/1."


def has_bare_lf(data: bytes) -> bool:
    """Tell whether some line feed has no carriage return before it."""
    return data.count(b"\n") != data.count(b"\r\n")


def skip_empty_lines(data: bytes) -> int:
    """Give the index behind the empty lines at the start."""
    match = _EMPTY_LINES.match(data)
    return 0 if match is None else match.end()


def may_begin_response(data: bytes) -> bool:
    """Tell whether these first bytes can be the start of an HTTP/1 response, so that garbage is seen at once."""
    return data[: len(_PREFIX)] == _PREFIX[: len(data)]


def skip_interim(data: bytes, start: int) -> int:
    """Give the index behind the plain interim heads at `start`, if there are any, so that thousands cost little."""
    match = _INTERIM_HEADS.match(data, start)
    return start if match is None else match.end()


def parse_request(raw: bytes) -> RequestHead:
    """Parse a complete request head, its final empty line included; raises HeadError with the status to answer."""
    line = _REQUEST_LINE.match(raw)
    if line is None:
        raise HeadError(400, "bad request line")
    method, target, version = line.groups()
    named = _METHOD.fullmatch(method) is not None
    try:
        if not named:
            raise HeadError(400, "bad method")
        if version not in (b"HTTP/1.1", b"HTTP/1.0"):
            raise HeadError(505, "HTTP version not supported")
        return build_request(method, target, version == b"HTTP/1.0", _request_fields(raw))
    except HeadError as e:
        if e.method is None and named:
            e.method, e.path = method, logged_path(target)
        raise


def _request_fields(raw: bytes) -> list[Field]:
    """Have h11 judge the head; what it is too kind to, or answers with a status of its own, is judged before it."""
    if has_bare_lf(raw):
        raise HeadError(400, "a bare line feed in the head")
    if _FOLD.search(raw):
        raise HeadError(400, "a folded field line")
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=len(raw) + 1)
    connection.receive_data(raw)
    try:
        event = connection.next_event()
    except h11.RemoteProtocolError as e:
        others = _FRAMING_LINE.sub(b"", raw)
        if others == raw:
            raise HeadError(400, str(e).partition(": bytearray(")[0]) from None
        # Perhaps h11 refuses a framing field: headers.py names that fault and its status, h11 judges the rest.
        framing = [(m[1], m[2].strip(b" \t")) for m in _FRAMING_LINE.finditer(raw)]
        return framing + _request_fields(others)
    if not isinstance(event, h11.Request):
        raise HeadError(400, "no request")
    return [(bytes(n), bytes(v)) for n, v in event.headers.raw_items()]


def parse_response(raw: bytes) -> ResponseHead | None:
    """Parse a complete response head; None for an interim response. Raises HeadError, which means a protocol error."""
    if has_bare_lf(raw):
        raise HeadError(502, "a bare line feed in the head")
    if not may_begin_response(raw):
        raise HeadError(502, "another HTTP version")
    if len(_FRAMING_LINE.findall(raw)) > 1:  # h11 makes one of two that are equal
        raise HeadError(502, "doubled framing fields")
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=len(raw) + 1)
    connection.send(_ASKING)
    connection.send(h11.EndOfMessage())
    connection.receive_data(raw)
    try:
        event = connection.next_event()
    except h11.RemoteProtocolError as e:
        raise HeadError(502, str(e)) from None
    if isinstance(event, h11.InformationalResponse):
        if event.status_code == 101:
            raise HeadError(502, "an upgrade that nobody asked for")
        return None
    if not isinstance(event, h11.Response):
        raise HeadError(502, "no response")
    fields = [(bytes(n), bytes(v)) for n, v in event.headers.raw_items()]
    http10 = bytes(event.http_version) == b"1.0"
    return build_response(event.status_code, bytes(event.reason), http10, fields, raw)


_ASKING = h11.Request(method="GET", target="/", headers=[("Host", "upstream")])


def long_head(data: bytes, limit: int, reason: str) -> HeadError:
    """Make the refusal of a head of more than `limit` bytes; 414 when that is its request line alone, else 431."""
    line_end = data.find(b"\r\n", 0, limit)
    line = data[: max(line_end, 0)].split(b" ")
    known = len(line) == 3 and _METHOD.fullmatch(line[0]) is not None and line[2].startswith(b"HTTP/")
    method, path = (line[0], logged_path(line[1])) if known else (None, None)
    return HeadError(431 if line_end >= 0 else 414, reason, method, path)
