"""Responses in pieces of any size, slow peers and peers that leave, without a socket."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.kit import Rig, ask, chunked, complete_responses, cut, final, request, response, rig

CHUNKED_200 = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
CLOSE_200 = b"HTTP/1.1 200 OK\r\nX-Any: thing\r\n\r\n"


RESPONSES = {
    "length": response(b"hello world" * 9, 200, b"X-A: 1\r\nx-a: 2\r\n"),
    "empty": response(b""),
    "chunked": CHUNKED_200 + chunked(b"data: 1\n\n", b"d" * 300, b"\r\n0\r\n\r\n"),
    "extensions": CHUNKED_200 + b'5;a="b"\r\nhello\r\n0;x\r\n\r\n',
    "no content": b"HTTP/1.1 204 No Content\r\nX-A: 1\r\n\r\n",
    "not modified": b"HTTP/1.1 304 Not Modified\r\nETag: x\r\n\r\n",
    "client error": response(b"no", 404),
    "interim first": b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + response(),
}
FORWARDED = RESPONSES | {"interim first": response()}
sizes_of_pieces = st.lists(st.one_of(st.integers(1, 9), st.integers(1, 200)), min_size=1, max_size=8)


@pytest.mark.parametrize("name", RESPONSES)
@pytest.mark.parametrize("sizes", [[1], [2], [3, 1], [100_000]], ids=str)
def test_a_response_arrives_byte_for_byte(name: str, sizes: list[int]) -> None:
    with rig(1) as r:
        client = ask(r)
        replica = r.accept()
        replica.send(*cut(RESPONSES[name], sizes))
        assert client.received() == FORWARDED[name]
        assert final(r)[2]
        assert len(r.endpoint.pool) == 1  # the end was found exactly: the connection can serve again


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(RESPONSES)), sizes_of_pieces, st.booleans())
def test_cuts_change_nothing_of_a_response(name: str, sizes: list[int], flush_head: bool) -> None:
    with rig(1, flush_head=flush_head) as r:
        client = ask(r)
        r.accept().send(*cut(RESPONSES[name], sizes))
        assert client.received() == FORWARDED[name]
        assert final(r)[2]
        assert r.records[-1]["bytes_out"] == len(FORWARDED[name])


@settings(max_examples=60, deadline=None)
@given(sizes_of_pieces, st.sampled_from([b"X-T: 1\r\n", b"A: b\r\nC: d\r\n"]))
def test_trailers_are_dropped_however_they_are_cut(sizes: list[int], trailers: bytes) -> None:
    with rig(1) as r:
        client = ask(r)
        r.accept().send(*cut(CHUNKED_200 + b"5\r\nhello\r\n0\r\n" + trailers + b"\r\n", sizes))
        assert client.received() == CHUNKED_200 + b"5\r\nhello\r\n0\r\n\r\n"
        assert len(r.endpoint.pool) == 1


@settings(max_examples=60, deadline=None)
@given(sizes_of_pieces, st.sampled_from([b"HTTP/1.1", b"HTTP/1.0"]))
def test_a_response_to_the_end_of_file_reaches_each_version_in_its_own_framing(
    sizes: list[int], version: bytes
) -> None:
    with rig(1) as r:
        client = r.client()
        client.send(b"GET / " + version + b"\r\nHost: dd\r\n\r\n")
        replica = r.accept()
        replica.send(*cut(CLOSE_200 + b"hello world", sizes))
        replica.eof()
        answer = client.received()
        assert (b"Transfer-Encoding: chunked" in answer) == (version == b"HTTP/1.1")
        assert complete_responses(answer, ended=client.is_gone(), methods=(b"GET",)) == [(200, b"hello world")]
        assert client.is_gone() == (version == b"HTTP/1.0")


@settings(max_examples=40, deadline=None)
@given(sizes_of_pieces)
def test_an_http10_client_gets_the_content_of_chunks(sizes: list[int]) -> None:
    with rig(1) as r:
        client = r.client()
        client.send(b"GET / HTTP/1.0\r\n\r\n")
        r.accept().send(*cut(CHUNKED_200 + chunked(b"hello ", b"w", b"orld"), sizes))
        answer = client.received()
        assert b"Transfer-Encoding" not in answer
        assert complete_responses(answer, ended=True, methods=(b"GET",)) == [(200, b"hello world")]
        assert client.is_gone()


@pytest.mark.parametrize("raw", [response(b"")[:-4] + b"\r\n\r\n", CHUNKED_200, b"HTTP/1.1 200 OK\r\n\r\n"])
def test_the_answer_to_head_ends_with_its_head(raw: bytes) -> None:
    raw = raw.replace(b"Content-Length: 0", b"Content-Length: 5")
    with rig(1) as r:
        client = r.client()
        client.send(b"HEAD / HTTP/1.1\r\nHost: dd\r\n\r\n")
        r.accept().send(*cut(raw, [7]))
        assert client.received() == raw
        assert final(r)[2]


def test_each_event_is_with_the_client_before_the_next_one_comes() -> None:
    with rig(1) as r:
        client = ask(r)
        replica = r.accept()
        replica.send(CHUNKED_200)
        assert client.received() == b""  # the head waits for its first body byte
        replica.send(chunked(b"data: 0\n\n", end=b""))
        assert client.received() == CHUNKED_200 + chunked(b"data: 0\n\n", end=b"")
        for n in range(1, 5):
            event = chunked(b"data: %d\n\n" % n, end=b"")
            replica.send(event)
            assert client.received() == event
        replica.send(chunked())
        assert client.received() == chunked()


def test_the_head_goes_out_at_once_where_that_is_wanted() -> None:
    with rig(2, flush_head=True) as r:
        client = ask(r)
        replica = r.accept()
        replica.send(CHUNKED_200)
        assert client.received() == CHUNKED_200
        replica.eof()
        assert r.no_dial()  # nothing is replayed once begun
        assert client.is_gone()
        assert final(r) == (200, 1, False)


@pytest.mark.parametrize(
    ("begun", "version"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello", b"1.1"),
        (CHUNKED_200 + b"5\r\nhello\r\n", b"1.1"),
        (CHUNKED_200 + b"5\r\nhello\r\n5\r\nwo", b"1.1"),
        (CLOSE_200 + b"hello", b"1.1"),
        (CHUNKED_200 + b"5\r\nhello\r\n", b"1.0"),
        (CLOSE_200 + b"hello", b"1.0"),
    ],
)
@pytest.mark.parametrize("how", ["reset", "garbage", "eof", "removed", "silence"])
def test_a_response_that_has_begun_is_never_tried_again_and_never_looks_complete(
    begun: bytes, version: bytes, how: str
) -> None:
    with rig(3, read_timeout=20) as r:
        client = r.client()
        client.send(b"GET / HTTP/%b\r\nHost: dd\r\n\r\n" % version)
        replica = r.accept()
        replica.send(begun)
        if how == "reset":
            replica.reset()
        elif how == "removed":
            r.endpoint.remove_backend(r.backends[0], 0.0)
            r.loop.advance(1.0)
        elif how == "silence":
            r.loop.advance(25.0)
        elif how == "eof" and begun.startswith(CLOSE_200):
            replica.eof()
            assert final(r) == (200, 1, True)
            return
        elif how == "garbage" and (begun.startswith(CLOSE_200) or b"Content-Length" in begun or begun.endswith(b"wo")):
            replica.reset()  # whatever comes is content there
        elif how == "garbage":
            replica.send(b"no chunk at all\r\n")
        else:
            replica.eof()
        assert r.no_dial()
        assert final(r) == (200, 1, False)
        assert client.is_gone()
        reset = client.transport.aborted or client.transport.socket.options != []
        assert reset or version == b"1.1"
        assert r.records[-1]["bytes_out"] == len(client.transport.sent)
        assert reset or complete_responses(client.received(), ended=True, methods=(b"GET",)) == []
        assert r.endpoint.counters.incomplete["upstream"] == 1


@pytest.mark.parametrize("body", [response(b"ok"), CHUNKED_200 + chunked(b"ok")])
@pytest.mark.parametrize("rest", [b"H", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"\r\n"])
def test_nothing_that_follows_a_response_is_let_through(body: bytes, rest: bytes) -> None:
    with rig(1) as r:
        client = ask(r)
        replica = r.accept()
        replica.send(body + rest)
        assert client.received() == body
        assert replica.is_gone()


# -------------------------------------------------------------------------------------------------------- backpressure


def test_a_slow_client_slows_its_upstream_down_and_memory_stays_bounded() -> None:
    with rig(1) as r:
        client = ask(r)
        replica = r.accept()
        replica.send(b"HTTP/1.1 200 OK\r\nContent-Length: 6400000\r\n\r\nx")
        client.stop_taking()
        sent = 1
        for _ in range(5):
            if replica.is_read():
                replica.send(b"x" * 64_000)
                sent += 64_000
        assert not replica.is_read()
        assert client.transport.get_write_buffer_size() < 300_000
        replica.send(b"x" * 64_000)  # waits in the socket
        assert client.transport.get_write_buffer_size() < 300_000
        client.go_on_taking()
        assert replica.is_read()
        replica.send(b"x" * (6_400_000 - sent - 64_000))
        assert complete_responses(client.received(), ended=False) == [(200, b"x" * 6_400_000)]


def test_a_connection_that_was_held_back_reads_again_in_the_pool() -> None:
    with rig(1) as r:
        client = ask(r)
        replica = r.accept()
        client.stop_taking()
        replica.send(response(b"x" * 100_000))
        assert len(r.endpoint.pool) == 1
        assert replica.is_read()
        replica.eof()
        assert len(r.endpoint.pool) == 0
        client.go_on_taking()
        assert complete_responses(client.received(), ended=False) == [(200, b"x" * 100_000)]


def test_a_client_that_takes_nothing_is_let_go_after_the_read_timeout() -> None:
    with rig(1, read_timeout=20) as r:
        client = ask(r)
        replica = r.accept()
        client.stop_taking()
        replica.send(b"HTTP/1.1 200 OK\r\nContent-Length: 640000\r\n\r\n", b"x" * 200_000)
        r.loop.advance(25.0)
        assert replica.is_gone()
        assert r.endpoint.counters.timeouts["client"] == 1
        assert r.backends[0].breaker.failures == 0
        assert final(r) == (200, 1, False)


def test_a_pipeline_of_more_than_a_head_is_not_read_while_a_request_runs() -> None:
    with rig(1, max_head=1024) as r:
        client = ask(r)
        replica = r.accept()
        replica.received()
        client.send(*[request(b"", target=b"/%d" % n) for n in range(60)])
        assert not client.is_read()
        for _ in range(61):
            replica.send(response(b""))
        assert client.is_read()
        assert len(complete_responses(client.received(), ended=False, methods=(b"POST",) * 61)) == 61


# ------------------------------------------------------------------------------------------------------- who goes away


def test_a_half_closed_client_gets_its_response() -> None:
    with rig(1) as r:
        client = ask(r)
        replica = r.accept()
        client.eof()
        assert not replica.is_gone()
        assert client.received() == b"HTTP/1.1 100 Continue\r\n\r\n"
        replica.send(response())
        assert complete_responses(client.received(), ended=True) == [(200, b"ok")]
        assert client.is_gone()
        assert final(r) == (200, 1, True)


def test_a_closed_client_is_noticed_by_its_reset_and_its_upstream_is_closed() -> None:
    with rig(1) as r:
        client = ask(r)
        replica = r.accept()
        client.eof()
        r.departures.watched[client.downstream]()
        r.loop.run()
        assert replica.is_gone()
        assert final(r) == (499, 1, False)
        assert r.records[-1]["upstreams"][0]["outcome"] == "cancelled"
        assert r.backends[0].breaker.failures == 0


@pytest.mark.parametrize("begun", [False, True])
def test_a_client_that_resets_ends_its_upstream_at_once(begun: bool) -> None:
    with rig(2) as r:
        client = ask(r)
        replica = r.accept()
        if begun:
            replica.send(CHUNKED_200, chunked(b"x", end=b""))
        client.reset()
        assert replica.is_gone()
        assert r.no_dial()
        assert final(r) == (200 if begun else 499, 1, False)
        assert r.endpoint.counters.incomplete["client"] == int(begun)
        assert r.endpoint.counters.responses == {200 if begun else 499: 1}


def test_an_http10_client_that_half_closes_is_served() -> None:
    with rig(1) as r:
        client = r.client()
        client.send(b"GET / HTTP/1.0\r\n\r\n")
        replica = r.accept()
        client.eof()
        assert client.received() == b""
        replica.send(response())
        assert complete_responses(client.received(), ended=True, methods=(b"GET",)) == [(200, b"ok")]


def test_a_pipelined_request_that_is_cut_by_the_end_is_dropped() -> None:
    with rig(1) as r:
        client = ask(r)
        replica = r.accept()
        client.send(request(b"next")[:-2])
        client.eof()
        client.received()
        replica.send(response())
        r.loop.run()
        assert client.is_gone()
        assert r.no_dial()


def connections_in_books(r: Rig) -> int:
    return len(r.endpoint.downstreams)


def test_idle_clients_come_and_go() -> None:
    with rig(1, client_timeout=30) as r:
        for _ in range(1000):
            r.client()
        assert connections_in_books(r) == 1000
        r.loop.advance(35.0)
        assert connections_in_books(r) == 0
