"""The fake replica reads HTTP/1.1 requests as the standard frames them, however they are cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.fake.http import KEEP, BadRequest, Request, RequestReader
from tools.fake.openai import CHAT_PATH

WIRE = (
    b"POST /v1/chat/completions?x=1 HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\nhello world"
    b"\r\nPOST /b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5;x=y\r\nhello\r\n6\r\n world\r\n0\r\nT: v\r\n\r\n"
    b"GET /c HTTP/1.0\r\n\r\n"
)


def read_all(pieces: list[bytes]) -> list[Request]:
    """Feed pieces one after the other and return the requests."""
    reader = RequestReader()
    out = []
    for piece in pieces:
        reader.feed(piece)
        while (request := reader.next_request()) is not None:
            out.append(request)
    assert reader.between_requests
    return out


@given(st.lists(st.integers(1, len(WIRE) - 1), max_size=12))
def test_requests_are_read_the_same_however_the_bytes_are_cut(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(WIRE)]
    requests = read_all([WIRE[a:b] for a, b in pairwise(edges)])
    assert [r.path for r in requests] == [CHAT_PATH, "/b", "/c"]
    assert [bytes(r.body) for r in requests] == [b"hello world", b"hello world", b""]
    assert [r.keep_alive for r in requests] == [True, True, False]


def test_requests_are_read_byte_by_byte() -> None:
    assert len(read_all([WIRE[i : i + 1] for i in range(len(WIRE))])) == 3


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/2.0\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET / HTTP/1.1\r\nA : b\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
    ],
)
def test_what_is_no_request_is_refused(head: bytes) -> None:
    reader = RequestReader()
    reader.feed(head)
    with pytest.raises(BadRequest):
        reader.next_request()


def test_a_long_body_is_counted_but_not_kept() -> None:
    reader = RequestReader()
    reader.feed(b"POST / HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n")
    for _ in range(10):
        assert reader.next_request() is None
        reader.feed(b"x" * 100_000)
    request = reader.next_request()
    assert request is not None
    assert (request.body_bytes, len(request.body), request.whole) == (1_000_000, KEEP, False)
