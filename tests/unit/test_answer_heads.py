"""Whatever an upstream's head holds and however it is cut, the client gets a proper one, and the same one."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from itertools import product

import pytest

from tests.unit.kit import ask, chunked, complete_responses, cut, response, rig

NOMINATED = (
    b"Connection: close, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nProxy-Authenticate: Basic\r\nUpgrade: h2c\r\n"
)
_LENGTHS = [
    *((b"GET", 200, b"Content-Length: 0\r\n"), (b"GET", 204, b""), (b"GET", 204, b"Content-Length: 0\r\n")),
    *((b"GET", 304, b"Content-Length: 7\r\n"), (b"GET", 304, b""), (b"HEAD", 200, b"Content-Length: 7\r\n")),
    *((b"HEAD", 200, b"Transfer-Encoding: chunked\r\n"), (b"HEAD", 404, b""), (b"GET", 404, b"Content-Length: 0\r\n")),
]
BODYLESS = [
    (*case, version)
    for case in _LENGTHS
    for version in (b"1.1", b"1.0")
    if version == b"1.1" or b"chunked" not in case[2]  # which HTTP/1.0 does not have
]


@pytest.mark.parametrize("flush_head", [False, True])
@pytest.mark.parametrize("size", [10_000, 1, 20])
@pytest.mark.parametrize(("method", "status", "length", "version"), BODYLESS)
def test_fields_of_one_hop_end_here_in_answers_without_a_body(
    method: bytes, status: int, length: bytes, version: bytes, size: int, flush_head: bool
) -> None:
    with rig(1, flush_head=flush_head) as r:
        client = ask(r, method=method)
        replica = r.accept()
        head = b"HTTP/%b %d X\r\nX-End: 1\r\n%b%b\r\n" % (version, status, NOMINATED, length)
        replica.send(*cut(head, [size]))
        out = client.received()
        assert out.startswith(b"HTTP/1.1 %d" % status)
        assert b"\r\nX-End: 1\r\n" in out
        for field in (b"connection:", b"x-hop", b"keep-alive", b"proxy-authenticate", b"upgrade"):
            assert field not in out.lower()
        assert status != 204 or b"content-length" not in out.lower()
        assert replica.is_gone()
        assert not client.is_gone()


# ------------------------------------------------------------------------------------- a sample of all combinations

HEADS = [
    *(b"X-A: 1\r\n", b"Connection: keep-alive, X-H\r\nX-H: 1\r\nKeep-Alive: t\r\n", b"Connection: close\r\n"),
    *(b"X-A:1\r\n", b"Connection: keep-alive\r\nKeep-Alive: timeout=5\r\n"),
]
BODIES = [
    *((b"Content-Length: 3\r\n", b"abc"), (b"Content-Length: 0\r\n", b""), (b"Content-Length: 3, 3\r\n", b"abc")),
    (b"Transfer-Encoding: chunked\r\n", chunked(b"ab", b"c")),
    (b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n"),
    (b"Transfer-Encoding: chunked\r\n", chunked(b"abc", end=b"0\r\nT: 1\r\n\r\n")),
    *((b"", b"abc"), (b"", b"")),
]


@dataclass(frozen=True)
class Case:
    """One upstream answer and the request that it answers; `framing`: field lines and body."""

    fields: bytes
    framing: tuple[bytes, bytes]
    status: int
    version: bytes
    method: bytes
    client_version: bytes
    flush_head: bool
    id_header: str | None

    @property
    def bodyless(self) -> bool:
        return self.method == b"HEAD" or self.status in (204, 304)

    @property
    def exists(self) -> bool:
        """False for chunks in HTTP/1.0 and framing that a bodyless status never has."""
        chunks = self.framing[0].startswith(b"Transfer")
        return not (chunks and (self.version == b"1.0" or self.status in (204, 304)))

    def head(self) -> bytes:
        return b"HTTP/%b %d R\r\n%b%b\r\n" % (self.version, self.status, self.fields, self.framing[0])

    def body(self) -> bytes:
        return b"" if self.bodyless else self.framing[1]

    def content(self) -> bytes:
        return b"abc" if b"c" in self.body() else b""


def all_cases() -> list[Case]:
    statuses, versions = (200, 204, 304, 404, 429, 503), (b"1.1", b"1.0")
    methods = (b"GET", b"HEAD", b"POST")
    found = product(HEADS, BODIES, statuses, versions, methods, versions, (False, True), (None, "X-Id"))
    return [case for parts in found if (case := Case(*parts)).exists]


def answer_to(case: Case, sizes: list[int]) -> tuple[bytes, bool]:
    """Give what the client got, and whether its connection was closed then."""
    options: dict[str, object] = {} if case.id_header is None else {"request_id_header": case.id_header}
    with rig(1, flush_head=case.flush_head, **options) as r:
        client = r.client()
        length = b"Content-Length: 0\r\n" if case.method == b"POST" else b""
        client.send(b"%b /x HTTP/%b\r\nHost: a\r\n%b\r\n" % (case.method, case.client_version, length))
        replica = r.accept()
        replica.send(*cut(case.head() + case.body(), sizes))
        if not case.framing[0] and not case.bodyless:
            replica.eof()
        return client.received(), client.is_gone()


def check_head(case: Case, out: bytes, gone: bool) -> None:
    head = out.split(b"\r\n\r\n")[0].lower() + b"\r\n"
    assert out.startswith(b"HTTP/1.1 ")
    assert b"keep-alive" not in head
    assert b"x-h:" not in head
    assert (b"\r\nconnection: close\r\n" in head) == gone or case.client_version == b"1.0"
    assert case.status != 204 or not (b"content-length" in head or b"transfer-encoding" in head)
    assert case.id_header is None or b"\r\nx-id: " in head


def test_an_answer_is_the_same_however_it_is_cut() -> None:
    for case in random.Random(7).sample(all_cases(), 150):
        seen = set()
        for sizes in ([1_000_000], [1], [len(case.head()), 1_000_000]):
            out, gone = answer_to(case, sizes)
            check_head(case, out, gone)
            head = re.sub(rb"X-Id: [^\r]*", b"X-Id: #", out.split(b"\r\n\r\n")[0])
            whole = complete_responses(out, ended=gone, methods=(case.method,))
            assert whole == [(case.status, case.content())], (case, out)
            seen.add((head, gone))
        assert len(seen) == 1, (case, seen)


@pytest.mark.parametrize("closes", [b"", b"Connection: close\r\n"])
def test_a_head_that_changes_still_goes_out_together_with_its_body(closes: bytes) -> None:
    with rig(1, request_id_header="X-Request-Id") as r:
        client = ask(r, extra=closes)
        r.accept().send(response(b"whole"))
        assert len(client.transport.writes) == 1
        assert client.received().endswith(b"\r\n\r\nwhole")
