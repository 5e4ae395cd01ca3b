"""Message heads that were understood before: whole heads first, then their lines, then h11.

Owns two shortcuts that give, byte for byte, what wire.py gives: a memo of whole heads that wire.py or the second
shortcut has understood, and a reading of plain lines (`Name: value` in plain characters, with nothing unusual among the
framing fields). Everything else goes to wire.py. Nothing is remembered longer than MAX_AGE_S, since heads carry
credentials, and both memos are bounded in number and size.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Generic, TypeVar

from proxy import wire
from proxy.headers import HOP_BY_HOP, LOGGED_PATH_CHARACTERS, Framing, RequestHead, ResponseHead
from proxy.outcome import IDEMPOTENT_METHODS

MAX_AGE_S = 30.0
MAX_HEADS = 256
MAX_LINES = 1024
MAX_HEAD_BYTES = 4096  # longer heads are not remembered
MAX_LINE_BYTES = 512

_LINE = re.compile(rb"([0-9A-Za-z!#$%&'*+\-.^_`|~]+): ([!-~\x80-\xff](?:[ -~\x80-\xff]*[!-~\x80-\xff])?)")
_REQUEST_LINE = re.compile(rb"([A-Z]+) (/[!\"$->@-~]*)(?:\?[!-~]*)? HTTP/1\.1")
_STATUS_LINE = re.compile(rb"HTTP/1\.1 ([2-9][0-9][0-9]) ((?:[!-~](?:[ -~]*[!-~])?)?)")
_HOST = re.compile(rb"[0-9A-Za-z.:\[\]-]+")
_LENGTH = re.compile(rb"[0-9]{1,15}")

PLAIN, HOST, LENGTH, CODING, CLOSE, KEEP, DROP, EXPECT, RETRY_AFTER, UNUSUAL = range(10)
_KINDS = {
    **dict.fromkeys(HOP_BY_HOP, DROP),
    b"host": HOST,
    b"content-length": LENGTH,
    b"transfer-encoding": CODING,
    b"connection": KEEP,
    b"expect": EXPECT,
    b"retry-after": RETRY_AFTER,
}

_BODY_OF_LENGTH, _CHUNKED_BODY, _BODY_TO_CLOSE = Framing.LENGTH, Framing.CHUNKED, Framing.CLOSE

Head = TypeVar("Head", RequestHead, ResponseHead)


def _kind(line: bytes) -> int:
    """Say what a field line is to the proxy; UNUSUAL sends the whole head to wire.py."""
    match = _LINE.fullmatch(line)
    if match is None:
        return UNUSUAL
    name, value = match[1].lower(), match[2]
    kind = _KINDS.get(name, PLAIN)
    if kind == KEEP:
        return {b"keep-alive": KEEP, b"close": CLOSE}.get(value.lower(), UNUSUAL)
    if kind == HOST:
        return HOST if _HOST.fullmatch(value) else UNUSUAL
    if kind == LENGTH:
        return LENGTH if _LENGTH.fullmatch(value) else UNUSUAL
    if kind == CODING:
        return CODING if value == b"chunked" else UNUSUAL
    if kind == EXPECT:
        return EXPECT if value.lower() == b"100-continue" else UNUSUAL
    return kind


class HeadMemo(Generic[Head]):
    """Understand heads of one direction; `hits` were whole heads known before, `misses` all others."""

    __slots__ = ("_heads", "_lines", "_parse", "_read", "hits", "misses")

    def __init__(self, read: Callable[[bytes, LineKinds], Head | None], parse: Callable[[bytes], Head | None]) -> None:
        self._read: Callable[[bytes, LineKinds], Head | None] = read
        self._parse: Callable[[bytes], Head | None] = parse
        self._heads: dict[bytes, Head] = {}
        self._lines = LineKinds()
        self.hits = 0
        self.misses = 0

    @property
    def size(self) -> int:
        """Number of heads that are remembered now."""
        return len(self._heads)

    def forget(self) -> None:
        """Drop everything; to be called at least every MAX_AGE_S seconds."""
        self._heads.clear()
        self._lines.clear()

    def understand(self, raw: bytes) -> Head | None:
        """Understand a complete head with its final empty line; None for an interim response. Raises HeadError."""
        head = self._heads.get(raw)
        if head is not None:
            self.hits += 1
            return head
        head = self._read(raw, self._lines) or self._parse(raw)
        if head is None or not head.counts:
            return head
        self.misses += 1
        if len(raw) <= MAX_HEAD_BYTES:
            if len(self._heads) >= MAX_HEADS:
                self._heads.clear()
            self._heads[raw] = head
        return head


class LineKinds(dict[bytes, int]):
    """What field lines are to the proxy; a line that is not known yet is looked at and remembered, if it is short."""

    __slots__ = ()

    def __missing__(self, line: bytes) -> int:
        kind = _kind(line)
        if len(line) <= MAX_LINE_BYTES:
            if len(self) >= MAX_LINES:
                self.clear()
            self[line] = kind
        return kind


def read_request(raw: bytes, kinds: LineKinds) -> RequestHead | None:
    """Read a plain request head, or None when anything in it is unusual (then wire.py is to be asked)."""
    lines = raw.split(b"\r\n")
    match = _REQUEST_LINE.fullmatch(lines[0])
    if match is None:
        return None
    kept: list[bytes] = [lines[0]]
    host = 0  # index in `kept` of the line that Host is cut from
    length: int | None = None
    chunked = close = expects = False
    for line in lines[1:-2]:
        kind = kinds[line]
        if kind == PLAIN:
            kept.append(line)
        elif kind == HOST:
            if host:
                return None
            host = len(kept)
            kept.append(line[: line.index(b":") + 2])
        elif kind == LENGTH:
            if length is not None:
                return None
            length = int(line[line.index(b":") + 2 :])
            kept.append(line)
        elif kind == CODING:
            if chunked:
                return None
            chunked = True
        elif kind == CLOSE:
            close = True
        elif kind == EXPECT:
            expects = True
        elif kind == RETRY_AFTER:
            kept.append(line)
        elif kind == UNUSUAL:
            return None
    method, path = match.groups()
    if not host or (chunked and length is not None) or method == b"CONNECT":
        return None
    kept.append(b"\r\n")
    return RequestHead(
        method,
        path[:LOGGED_PATH_CHARACTERS].decode("ascii"),
        False,  # http10
        not close,
        expects,
        length,
        chunked,
        b"\r\n".join(kept[: host + 1]),
        b"\r\n" + b"\r\n".join(kept[host + 1 :]),
        path == b"/health" and method in (b"GET", b"HEAD"),
        method in IDEMPOTENT_METHODS,
    )


def read_response(raw: bytes, kinds: LineKinds) -> ResponseHead | None:
    """Read a plain head of a final response, or None when anything in it is unusual."""
    lines = raw.split(b"\r\n")
    match = _STATUS_LINE.fullmatch(lines[0])
    if match is None:
        return None
    status = int(match[1])
    if status in (204, 304):
        return None
    length: int | None = None
    coding_line = b""
    retry_after: bytes | None = None
    verbatim, close = True, False
    for line in lines[1:-2]:
        kind = kinds[line]
        if kind == PLAIN or kind in (HOST, EXPECT):
            continue
        if kind == LENGTH:
            if length is not None:
                return None
            length = int(line[line.index(b":") + 2 :])
        elif kind == CODING:
            if coding_line:
                return None
            coding_line = line + b"\r\n"
        elif kind == RETRY_AFTER:
            retry_after = retry_after or line[line.index(b":") + 2 :]
        elif kind == UNUSUAL:
            return None
        else:  # a hop-by-hop field
            verbatim = False
            close = close or kind == CLOSE
    if coding_line and length is not None:
        return None
    return ResponseHead(
        status,
        _CHUNKED_BODY if coding_line else _BODY_TO_CLOSE if length is None else _BODY_OF_LENGTH,
        length or 0,
        not close,
        raw if verbatim else _without_hop_by_hop(lines, kinds),
        verbatim,
        coding_line,
        retry_after,
    )


def _without_hop_by_hop(lines: list[bytes], kinds: LineKinds) -> bytes:
    kept = [line for line in lines[1:-2] if kinds[line] not in (CLOSE, KEEP, DROP)]
    return b"\r\n".join([lines[0], *kept, b"", b""])


def request_memo() -> HeadMemo[RequestHead]:
    """Make the memo for clients' heads."""
    return HeadMemo(read_request, wire.parse_request)


def response_memo() -> HeadMemo[ResponseHead]:
    """Make the memo for upstreams' heads."""
    return HeadMemo(read_response, wire.parse_response)
