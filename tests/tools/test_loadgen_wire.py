"""A response is taken for whole only when every rule of its framing and of its stream says so."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.load.stats import LogHistogram
from tools.load.wire import Answer, Outcome, ResponseReader

SSE = b"Content-Type: text/event-stream\r\n"
TOKEN = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
LAST = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":3,"total_tokens":8}}\n\n'
DONE = b"data: [DONE]\n\n"


def chunked(*pieces: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + end


def unary(body: bytes, status: bytes = b"200 OK", extra: bytes = b"") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n%s\r\n%s" % (status, len(body), extra, body)


def stream(*pieces: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    return b"HTTP/1.1 200 OK\r\n" + SSE + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(*pieces, end=end)


def read(data: bytes, expect_done: bool = True, cuts: tuple[int, ...] = (), error: str = "") -> Answer:
    """Feed the bytes in pieces, then end the connection if the response has not ended by itself."""
    reader = ResponseReader(expect_done, LogHistogram())
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for number, (low, high) in enumerate(itertools.pairwise(edges)):
        if high > low and reader.feed(data[low:high], float(number)):
            return reader.answer
    return reader.end(error)


WHOLE = {
    "unary": (unary(b'{"usage":{"completion_tokens": 7}}'), Outcome.OK, 7),
    "empty body": (unary(b"", b"200 OK"), Outcome.OK, 0),
    "error status": (unary(b"{}", b"503 Service Unavailable"), Outcome.HTTP_ERROR, 0),
    "chunked": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(b"abc", b"d" * 300), Outcome.OK, 0),
    "trailers": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=1\r\nabc\r\n0\r\nA: b\r\n\r\n", Outcome.OK, 0,
    ),
    "interim": (b"HTTP/1.1 100 Continue\r\n\r\n" + unary(b"ok"), Outcome.OK, 0),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", Outcome.OK, 0),
    "stream": (stream(TOKEN, TOKEN, TOKEN, LAST, DONE), Outcome.OK, 3),
    "stream with usage": (stream(TOKEN, TOKEN, USAGE, DONE), Outcome.OK, 3),
    "many events in a chunk": (stream(TOKEN * 5 + DONE), Outcome.OK, 5),
    "event over chunks": (stream(TOKEN[:9], TOKEN[9:], DONE[:4], DONE[4:]), Outcome.OK, 1),
    "CRLF and comments": (stream(b": hi\r\n\r\nevent: x\r\ndata: {}\r\n\r\n", b"data: [DONE]\r\n\r\n"), Outcome.OK, 1),
    "error event": (stream(TOKEN, b'data: {"error":{"message":"m"}}\n\n', DONE), Outcome.ERROR_EVENT, 1),
    "stream without DONE": (stream(TOKEN, TOKEN), Outcome.TRUNCATED, 2),
    "stream of a lost event": (stream(TOKEN, DONE, b"data: {"), Outcome.TRUNCATED, 1),
    "surplus": (unary(b"ok") + b"HTTP", Outcome.PROTOCOL_ERROR, 0),
    "surplus after chunks": (stream(TOKEN, DONE) + b"\r\n", Outcome.PROTOCOL_ERROR, 1),
    "bad chunk size": (stream(TOKEN, end=b"-1\r\n\r\n"), Outcome.PROTOCOL_ERROR, 1),
    "bad chunk end": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcX\r\n", Outcome.PROTOCOL_ERROR, 0),
    "bad status line": (b"HTTP/1.1 abc\r\n\r\n", Outcome.PROTOCOL_ERROR, 0),
    "not HTTP": (b"SSH-2.0-OpenSSH\r\n", Outcome.PROTOCOL_ERROR, 0),
    "bad length": (b"HTTP/1.1 200 OK\r\nContent-Length: +3\r\n\r\nabc", Outcome.PROTOCOL_ERROR, 0),
    "doubled length": (b"HTTP/1.1 200 OK\r\n" + b"Content-Length: 3\r\n" * 2 + b"\r\nabc", Outcome.PROTOCOL_ERROR, 0),
    "length and chunks": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", Outcome.PROTOCOL_ERROR, 0,
    ),
    "upgrade": (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", Outcome.PROTOCOL_ERROR, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_the_judgement_does_not_depend_on_how_the_bytes_are_cut(name: str) -> None:
    data, outcome, tokens = WHOLE[name]
    for cuts in ((), tuple(range(len(data)))):
        answer = read(data, cuts=cuts)
        if outcome is Outcome.PROTOCOL_ERROR and cuts:
            assert answer.outcome in (Outcome.PROTOCOL_ERROR, Outcome.OK), "surplus may arrive after the end"
            continue
        assert (answer.outcome, answer.tokens) == (outcome, tokens), answer


@given(st.sampled_from(["unary", "chunked", "stream", "stream with usage", "event over chunks", "trailers"]), st.data())
def test_a_response_that_ends_early_is_never_taken_for_whole(name: str, data: st.DataObject) -> None:
    whole = WHOLE[name][0]
    end = data.draw(st.integers(0, len(whole) - 1))
    cuts = tuple(data.draw(st.lists(st.integers(0, end), max_size=4)))
    answer = read(whole[:end], cuts=cuts)
    head_end = whole.index(b"\r\n\r\n") + 4
    assert answer.outcome is (Outcome.TRUNCATED if end >= head_end else Outcome.CLOSED)
    assert answer.close


def test_a_close_delimited_body_is_whole_at_a_proper_end_and_truncated_at_a_reset() -> None:
    head = b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n"
    assert read(head + b'{"a":1}').outcome is Outcome.OK
    assert read(head + b'{"a":').outcome is Outcome.TRUNCATED
    assert read(head + b'{"a":1}', error="reset").outcome is Outcome.TRUNCATED
    text = b"HTTP/1.1 200 OK\r\n" + SSE + b"\r\n"
    assert read(text + TOKEN + DONE).outcome is Outcome.OK
    assert read(text + TOKEN).outcome is Outcome.TRUNCATED


def test_a_stream_of_another_kind_of_endpoint_needs_no_done() -> None:
    assert read(stream(TOKEN), expect_done=False).outcome is Outcome.OK


def test_gaps_are_those_between_the_events_that_bring_something() -> None:
    gaps = LogHistogram()
    reader = ResponseReader(True, gaps)
    head, _, _ = stream().partition(b"\r\n\r\n")
    reader.feed(head + b"\r\n\r\n", 0.0)
    for at, piece in enumerate((TOKEN, TOKEN, TOKEN, LAST, USAGE, DONE), 1):
        assert not reader.feed(chunked(piece, end=b""), at * 0.5)
    assert reader.feed(b"0\r\n\r\n", 9.0)
    meter = reader.answer.meter
    assert meter is not None
    assert (meter.events, meter.first_at, meter.last_at) == (3, 0.5, 1.5)
    assert (gaps.count, gaps.total) == (2, 1.0)


@pytest.mark.parametrize(
    ("head", "close"),
    [
        (b"HTTP/1.1 200 OK\r\n", False),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n", True),
        (b"HTTP/1.0 200 OK\r\n", True),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n", False),
    ],
)
def test_a_connection_is_kept_only_when_the_response_allows_it(head: bytes, close: bool) -> None:
    assert read(head + b"Content-Length: 2\r\n\r\nok").close is close
