"""Requests in pieces of any size, pipelines, refusals and limits in time, without a socket."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.kit import chunked, complete_responses, cut, final, request, response, rig

sizes_of_pieces = st.lists(st.one_of(st.integers(1, 9), st.integers(1, 200)), min_size=1, max_size=8)


REQUESTS = {
    "length": request(b"hello world" * 20, extra=b"X-A: 1\r\nx-a: 2\r\n"),
    "empty": request(b""),
    "chunked": b"POST /v1 HTTP/1.1\r\nHost: dd\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(b"hello ", b"w" * 500),
    "trailers": b"POST /v1 HTTP/1.1\r\nHost: dd\r\nTransfer-Encoding: chunked\r\n\r\n"
    + chunked(b"a", end=b"0\r\nT: v\r\n\r\n"),
    "get": request(method=b"GET", target=b"/a?b"),
    "empty lines first": b"\r\n\r\n" + request(b"{}"),
}


def arrived(data: bytes) -> bytes:
    """Give what a backend gets of such a request."""
    data = data.removeprefix(b"\r\n\r\n").replace(b"Host: dd", b"Host: 10.0.0.1:80")
    if b"Transfer-Encoding" in data:
        content = b"hello " + b"w" * 500 if b"hello" in data else b"a"
        head = data.partition(b"\r\n\r\n")[0].replace(
            b"Transfer-Encoding: chunked", b"Content-Length: %d" % len(content)
        )
        return head + b"\r\n\r\n" + content
    return data


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("sizes", [[1], [2], [3, 1], [100_000]], ids=str)
def test_a_request_arrives_byte_for_byte(name: str, sizes: list[int]) -> None:
    with rig(1, body_memory=100) as r:
        client = r.client()
        client.send(*cut(REQUESTS[name], sizes))
        replica = r.accept()
        assert replica.received() == arrived(REQUESTS[name])
        replica.send(response())
        assert client.received() == response()
        size = len(REQUESTS[name].removeprefix(b"\r\n\r\n"))
        if name not in ("chunked", "trailers"):  # of those the content counts, not its framing
            assert r.records[-1]["bytes_in"] == size


@settings(max_examples=80, deadline=None)
@given(st.lists(st.sampled_from(sorted(REQUESTS)), min_size=1, max_size=4), sizes_of_pieces)
def test_pipelined_requests_in_any_cuts_are_answered_in_order(names: list[str], sizes: list[int]) -> None:
    with rig(1, body_memory=100) as r:
        client = r.client()
        client.send(*cut(b"".join(REQUESTS[name] for name in names), sizes))
        replica = None
        for n, name in enumerate(names):
            replica = r.accept() if replica is None else replica
            assert replica.received() == arrived(REQUESTS[name])
            replica.send(response(b"answer %d" % n))
        seen = complete_responses(client.received(), ended=False, methods=(b"POST",) * len(names))
        assert seen == [(200, b"answer %d" % n) for n in range(len(names))]


def test_a_request_is_read_whole_before_anybody_is_asked() -> None:
    with rig(1) as r:
        client = r.client()
        whole = request(b"y" * 5000)
        client.send(*cut(whole[:-1], [100]))
        assert r.no_dial()
        assert r.backends[0].active == 0
        client.send(whole[-1:])
        assert r.accept().received().endswith(b"y" * 5000)


def test_a_body_that_turns_out_malformed_reaches_nobody() -> None:
    with rig(1) as r:
        client = r.client()
        client.send(b"POST / HTTP/1.1\r\nHost: dd\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n")
        assert complete_responses(client.received(), ended=True)[0][0] == 400
        assert r.no_dial()


def test_expect_is_answered_once_and_only_when_the_body_is_wanted() -> None:
    with rig(1) as r:
        client = r.client()
        head, body = request(b"hello", extra=b"Expect: 100-continue\r\n").split(b"\r\n\r\n")
        client.send(head + b"\r\n\r\n")
        assert client.received() == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(body)
        assert b"xpect" not in r.accept().received()
        eager = r.client()
        eager.send(head + b"\r\n\r\n" + body)
        assert eager.received() == b""
        r.endpoint.fleet.record_depth(r.backends[0], 999, r.loop.now)
        refused = r.client()
        refused.send(head + b"\r\n\r\n")
        assert refused.received().startswith(b"HTTP/1.1 429 ")


def test_a_refused_upload_is_read_on_for_two_seconds_and_not_reset() -> None:
    with rig(1, max_request_body=1000) as r:
        client = r.client()
        client.send(b"POST / HTTP/1.1\r\nHost: dd\r\nContent-Length: 2000\r\n\r\n", b"x" * 10)
        answer = client.received()
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b"\r\nConnection: close\r\n" in answer
        for _ in range(3):
            client.send(b"x" * 100)
            r.loop.advance(0.5)
        assert client.transport.half_closed
        assert not client.transport.aborted
        r.loop.advance(1.5)
        assert client.transport.lost


def test_a_chunked_body_that_grows_too_large_is_413() -> None:
    with rig(1, max_request_body=1000) as r:
        client = r.client()
        client.send(b"POST / HTTP/1.1\r\nHost: dd\r\nTransfer-Encoding: chunked\r\n\r\n", chunked(b"x" * 999, end=b""))
        assert client.received() == b""
        client.send(chunked(b"xx", end=b""))
        assert client.received().startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ([b"GET /" + b"a" * 300], 414),
        ([b"GET / HTTP/1.1\r\nX: " + b"a" * 300], 431),
        ([b"GET / HTTP/1.1\r\nX: " + b"a" * 300 + b"\r\nHost: dd\r\n\r\n"], 431),
        ([b"GET / HTTP/1.1\r\n"] + [b"X: aaaaaaaa\r\n"] * 30, 431),
    ],
)
def test_a_head_that_is_too_long_is_refused_before_it_ends(sent: list[bytes], status: int) -> None:
    with rig(1, max_head=256) as r:
        client = r.client()
        client.send(*sent)
        assert client.received().startswith(b"HTTP/1.1 %d " % status)
        assert final(r) == (status, 0, True)


# ------------------------------------------------------------------------------------------------------- limits in time


def test_an_idle_client_is_closed_without_a_word_and_half_a_head_gets_408() -> None:
    with rig(1, client_timeout=30) as r:
        idle, slow = r.client(), r.client()
        r.loop.advance(20.0)
        slow.send(b"GET / HTTP/1.1\r\n")
        r.loop.advance(15.0)
        assert (idle.is_gone(), idle.received()) == (True, b"")
        slow.send(b"X: y\r\n")  # time runs from its first byte
        r.loop.advance(20.0)
        assert slow.received().startswith(b"HTTP/1.1 408 ")
        assert r.endpoint.counters.timeouts["client"] == 1


def test_a_body_must_bring_a_kibibyte_in_each_span() -> None:
    with rig(1, client_timeout=30) as r:
        client = r.client()
        client.send(request(b"x" * 9000)[:-8000])
        for _ in range(4):
            r.loop.advance(25.0)
            assert client.received() == b""
            client.send(b"x" * 1100)
        for _ in range(3):
            r.loop.advance(12.0)
            client.send(b"x" * 10)
        assert client.received().startswith(b"HTTP/1.1 408 ")
        assert r.no_dial()


def test_a_flood_of_empty_lines_costs_little() -> None:
    """Counted in calls, which a busy machine does not change: not one for each empty line."""
    calls = 0

    def count(frame: object, event: str, arg: object) -> None:
        nonlocal calls
        calls += event == "c_call"

    with rig(1) as r:
        client = r.client()
        sys.setprofile(count)
        try:
            client.send(b"\r\n" * 100_000)
        finally:
            sys.setprofile(None)
        assert calls < 1000
        client.send(request(b"{}"))
        r.accept().send(response())
        assert client.received() == response()


def test_a_pipeline_whose_answers_are_not_taken_is_held_back() -> None:
    answer = response(b"x" * 100_000)
    with rig(1) as r:
        client = r.client()
        client.stop_taking()
        client.send(request(b"", target=b"/%d" % 0) * 40)
        replica = r.accept()
        answered = 0
        while replica.received() and answered < 40:
            replica.send(answer)
            answered += 1
        assert answered < 5
        assert client.transport.get_write_buffer_size() < 5 * len(answer)
        for _ in range(40):
            client.go_on_taking()
            client.stop_taking()
            if replica.received():
                replica.send(answer)
                answered += 1
        client.go_on_taking()
        assert answered == 40
        assert len(complete_responses(client.received(), ended=False, methods=(b"POST",) * 40)) == 40


def test_health_answers_that_are_not_taken_are_held_back_too() -> None:
    with rig(1) as r:
        client = r.client()
        client.stop_taking()
        asked = request(method=b"GET", target=b"/health") * 5000
        for _ in range(20):
            if client.is_read():
                client.send(asked)
        assert not client.is_read()
        assert client.transport.get_write_buffer_size() < 1_000_000
