"""Peers that send much at little cost, or take nothing: they fill no memory and hold nobody else up."""

from __future__ import annotations

import tracemalloc
from typing import Any

import h11
import pytest

from proxy.body import RequestBody
from proxy.head_memo import response_memo
from proxy.headers import HeadError, logged_path
from proxy.response import read_head
from proxy.upload import Upload
from tests.unit.kit import chunked, final, request, response, rig

GET = request(method=b"GET", target=b"/")
HEALTH = request(method=b"GET", target=b"/health")
LARGE = response(b"x" * 100_000)


# ----------------------------------------------------------------------------------------------------------- pipelines


@pytest.mark.parametrize("next_one", [GET, HEALTH], ids=["request", "health"])
def test_a_client_that_takes_no_answers_gets_no_further_ones(next_one: bytes) -> None:
    with rig(1) as r:
        client = r.client()
        client.stop_taking()
        client.send(GET + next_one * 50)
        replica = r.accept()
        replica.send(LARGE)
        assert len(client.transport.writes) == 1
        assert replica.received().count(b"GET ") == 1
        client.transport.take()
        client.stop_taking()  # again, with the first answer taken
        r.loop.run()
        if next_one is GET:
            assert replica.received().count(b"GET ") == 1
            replica.send(LARGE)
            assert replica.received().count(b"GET ") == 0
        else:
            assert client.transport.writes[-1].startswith(b"HTTP/1.1 503")


def test_a_client_that_asks_one_by_one_and_takes_nothing_is_not_asked_for_more() -> None:
    with rig(1) as r:
        client = r.client()
        client.stop_taking()
        client.send(GET)
        replica = r.accept()
        replica.send(LARGE)
        for _ in range(50):
            client.send(GET)
        assert replica.received().count(b"GET ") == 1
        client.go_on_taking()
        for _ in range(50):
            assert replica.received().count(b"GET ") == 1
            replica.send(response())
        assert client.received() == LARGE + response() * 50


def test_no_more_is_read_of_a_pipeline_than_a_head_may_take() -> None:
    with rig(1) as r:
        client = r.client()
        client.send(GET)
        replica = r.accept()
        for _ in range(50):
            client.transport.deliver(GET * 100)
        r.loop.run()
        replica.send(response())
        replica.send(response())
        assert not client.is_read()
        buffered = repr(client.downstream).partition("buffered=")[2].partition(" ")[0]
        assert int(buffered) < 128 * 1024
        for _ in range(4999):
            replica.send(response())
        assert client.is_read()
        assert r.endpoint.counters.responses[200] == 5001


def test_an_upload_that_waited_in_a_pipeline_is_read_to_its_end() -> None:
    body = b"b" * 300_000
    with rig(1) as r:
        client = r.client()
        client.send(GET + request(body) + GET)
        replica = r.accept()
        assert not client.is_read()
        for _ in range(3):
            replica.send(response())
        assert client.received() == response() * 3
        assert client.is_read()


def test_a_client_that_takes_nothing_for_the_client_timeout_is_closed() -> None:
    with rig(1, client_timeout=10) as r:
        client = r.client()
        client.stop_taking()
        client.send(GET + GET)
        r.accept().send(LARGE)
        r.loop.advance(11.0)
        assert client.is_gone()
        r.loop.advance(11.0)
        assert client.transport.lost
        assert r.endpoint.counters.requests == 1


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_half_closed_client_gets_the_answer_to_each_of_its_requests(number: int) -> None:
    with rig(1) as r:
        client = r.client()
        client.stop_taking()
        client.send(GET * number)
        replica = r.accept()
        replica.send(LARGE)
        client.eof()  # between two of its exchanges
        client.go_on_taking()
        for _ in range(number - 1):
            replica.send(response())
        assert client.received() == LARGE + response() * (number - 1)
        assert client.is_gone()


def test_a_drain_closes_a_client_that_has_nothing_more_to_ask() -> None:
    with rig(1) as r:
        client = r.client()
        client.stop_taking()
        client.send(GET)
        r.accept().send(LARGE)
        r.endpoint.begin_drain()
        assert client.is_gone()
        client.go_on_taking()
        assert client.received() == LARGE


# ------------------------------------------------------------------------------------------------------- tiny pieces


def test_a_body_in_tiny_pieces_takes_little_more_memory_than_its_bytes() -> None:
    body = RequestBody(1 << 20, "/tmp")
    tracemalloc.start()
    try:
        for n in range(200_000):
            body.append(b"%d" % (n % 90 + 10))
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert body.in_memory()[:6] == b"101112"


def test_the_chunks_of_one_read_are_kept_in_one_step() -> None:
    class Counted(RequestBody):
        appends = 0

        def append(self, data: bytes) -> None:
            self.appends += 1
            super().append(data)

    body = Counted(10, "/tmp")
    upload = Upload(body, None, 0.0)
    assert upload.feed(chunked(*[b"ab"] * 10_000)) == 70_005
    assert (body.appends, body.size) == (1, 20_000)
    body.close()


# -------------------------------------------------------------------------------------------------- interim responses

INTERIM = b"HTTP/1.1 103 Early Hints\r\nLink: </%d>; rel=preload\r\n\r\n"


def test_a_flood_of_interim_responses_is_dropped_without_judging_each(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = []

    class Counted(h11.Connection):
        def __init__(self, *args: Any, **options: Any) -> None:
            judged.append(self)
            super().__init__(*args, **options)

    monkeypatch.setattr(h11, "Connection", Counted)
    data = b"".join(INTERIM % n for n in range(4000)) + response()
    head, rest, end = read_head(response_memo(), data, 65536)
    assert head is not None
    assert (head.status, rest[end:]) == (200, b"ok")
    assert len(judged) == 1


@pytest.mark.parametrize(
    "bad",
    [
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 103 X\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
        b"HTTP/1.1 103 X\r\nA : b\r\n\r\n",
        b"HTTP/1.1 103 X\r\nA: \x00\r\n\r\n",
        b"HTTP/1.1 103 X\r\nA: b\n\r\n\r\n",
        b"HTTP/1.1 103 X\r\nA: " + b"b" * 70_000 + b"\r\n\r\n",
        b"HTTP/1.1 1x3 X\r\n\r\n",
    ],
    ids=range(7),
)
def test_an_interim_response_that_is_refused_alone_is_refused_behind_others(bad: bytes) -> None:
    for before in (b"", INTERIM % 1, INTERIM % 1 + INTERIM % 2):
        with pytest.raises(HeadError):
            read_head(response_memo(), before + bad + response(), 65536)


@pytest.mark.parametrize("cuts", [[b"HTTP/2.0 200 X\r\nContent-Length: 0\r\n\r\n"], [b"HTTP/2.0 20", b"0 X\r\n\r\n"]])
def test_another_http_version_is_no_response_however_it_arrives(cuts: list[bytes]) -> None:
    with rig(1) as r:
        client = r.client()
        client.send(GET)
        r.accept().send(cuts[0])
        assert final(r) == (502, 1, True)
        assert r.records[-1]["upstreams"][0]["outcome"] == "protocol_error"


def test_a_kept_connection_that_sent_an_interim_response_before_it_died_was_not_stale() -> None:
    with rig(1) as r:
        client = r.client()
        client.send(GET)
        replica = r.accept()
        replica.send(response())
        client.send(GET)
        replica.send(INTERIM % 1)
        replica.eof()
        assert r.no_dial()
        assert final(r) == (502, 1, True)
        assert r.records[-1]["upstreams"][0]["outcome"] == "closed"
        assert r.backends[0].breaker.failures == 1


# ---------------------------------------------------------------------------------------------------------- the log


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"/a?b", "/a"),
        (b"//user:pw@host/a", "//user:pw@host/a"),  # a path, whatever it looks like
        (b"http://user:pw@host/a?b#c", "/a"),
        (b"HTTP://host", "/"),
        (b"ftp://user:pw@host/a?b", "/a"),
        (b"*", "*"),
        (b"user:pw@host:443", None),
        (b"host:443", None),
        (b"mailto:someone@host", None),
    ],
)
def test_no_authority_gets_into_the_log(target: bytes, path: str | None) -> None:
    assert logged_path(target) == path
    with rig(1) as r:
        client = r.client()
        client.send(b"CONNECT " + target + b" HTTP/1.1\r\nHost: dd\r\n\r\n")
        assert (r.records[-1]["final_status"], r.records[-1]["path"]) == (501, path)


def test_a_refused_head_is_not_repeated_in_the_answer() -> None:
    with rig(1) as r:
        client = r.client()
        client.send(b"GET / HTTP/1.1\r\nHost: dd\r\nAuthorization : Bearer secret\r\n\r\n")
        answer = client.received()
        assert answer.startswith(b"HTTP/1.1 400")
        assert b"secret" not in answer
        assert b"bytearray" not in answer
