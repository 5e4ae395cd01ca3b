"""Each end is booked under the one who caused it, and nothing is held, logged or counted that should not be."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.kit import ask, chunked, complete_responses, final, request, response, rig, spooled_files

CHUNKED_200 = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


# --------------------------------------------------------------------------------------------------- the end of a drain


@pytest.mark.parametrize("where", ["connecting", "waiting", "uploading"])
def test_a_client_that_waits_when_the_drain_ends_is_told_to_ask_again(where: str) -> None:
    with rig(1) as r:
        client = r.client()
        client.send(request(b"x" * 2000)[: -100 if where == "uploading" else None])
        replica = r.accept() if where == "waiting" else None
        r.endpoint.begin_drain()
        r.loop.run()
        assert client.received() == b""
        r.endpoint.cut_all()
        r.loop.run()
        out = client.received()
        assert [status for status, _ in complete_responses(out, ended=True)] == [503]
        assert b"\r\nConnection: close\r\n" in out
        assert client.transport.lost
        assert replica is None or replica.is_gone()
        assert r.records[0]["final_status"] == 503
        assert r.endpoint.counters.responses == {503: 1}
        assert r.endpoint.counters.rejected["draining"] == 1
        assert r.backends[0].breaker.failures == 0


def test_half_a_head_does_not_hold_a_drain() -> None:
    with rig(1) as r:
        client = r.client()
        client.send(b"POST /v1 HTTP/1.1\r\nHos")
        r.endpoint.begin_drain()
        r.loop.run()
        assert [status for status, _ in complete_responses(client.received(), ended=True)] == [503]
        r.loop.advance(3.0)
        assert client.transport.lost


# ------------------------------------------------------------------------------------------------------- reasons of 429


def test_a_limit_of_connections_is_the_reason_when_a_full_backend_was_never_tried() -> None:
    with rig(2, max_connections_per_backend=1, max_attempts=1) as r:
        ask(r)
        first = r.accept()
        second = ask(r)
        r.dial().refuse()
        assert final(r)[:2] == (429, 1)
        rejected = {reason: n for reason, n in r.endpoint.counters.rejected.items() if n}
        assert rejected == {"connection_limit": 1}
        assert complete_responses(second.received(), ended=False)[0][0] == 429
        first.send(response())


def test_the_queue_is_the_reason_when_an_overloaded_backend_was_never_tried() -> None:
    with rig(2, max_attempts=1) as r:
        r.endpoint.fleet.record_depth(r.backends[0], 1e9, r.loop.now)
        ask(r)
        r.dial().refuse()
        assert final(r)[:2] == (429, 1)
        rejected = {reason: n for reason, n in r.endpoint.counters.rejected.items() if n}
        assert rejected == {"queue_depth": 1}


# ------------------------------------------------------------------------------------------------------------ the log


@pytest.mark.parametrize("line", [b'{"prompt":"topsecret"} /x y', b'{"topsecret"} /x HTTP/1.1', b"POST /topsecret y"])
def test_what_is_no_request_line_is_not_logged(line: bytes) -> None:
    with rig(1, max_head=1024) as r:
        client = r.client()
        client.send(line + b"\r\n" + b"X: y\r\n" * 400)
        assert client.received().startswith(b"HTTP/1.1 431 ")
        [record] = r.records
        assert (record["method"], record["path"]) == (None, None)


def test_the_request_line_of_a_head_that_is_too_long_is_logged() -> None:
    with rig(1, max_head=1024) as r:
        r.client().send(b"POST /v1?q=1 HTTP/1.1\r\n" + b"X: y\r\n" * 400)
        [record] = r.records
        assert (record["method"], record["path"]) == ("POST", "/v1")


# ----------------------------------------------------------------------------------------------------- request bodies


@pytest.mark.parametrize("answer", [CHUNKED_200 + chunked(b"x", end=b""), response(b"x" * 9)[:-4]])
def test_a_request_body_is_let_go_when_its_answer_begins(answer: bytes) -> None:
    with rig(1) as r:
        ask(r)
        replica = r.accept()
        [exchange] = r.endpoint.exchanges
        assert exchange.body is not None
        replica.send(answer)
        assert exchange.begun
        assert exchange.body is None


def test_the_file_of_a_spooled_body_is_let_go_when_its_answer_begins(tmp_path: Path) -> None:
    with rig(1, body_memory=1000, spool_dir=str(tmp_path)) as r:
        client = r.client()
        client.send(request(b"x" * 5000)[:-1], b"x")
        replica = r.accept()
        assert len(spooled_files(str(tmp_path))) == 1
        replica.send(CHUNKED_200, chunked(b"x", end=b""))
        assert spooled_files(str(tmp_path)) == []
        replica.send(chunked(b"y"))
        assert complete_responses(client.received(), ended=False) == [(200, b"xy")]


def test_a_body_is_kept_for_the_next_attempt_until_then() -> None:
    with rig(2) as r:
        client = r.client()
        client.send(request(b"x" * 5000))
        r.accept().send(response(b"no", 503))
        second = r.accept()
        assert second.received().endswith(b"x" * 5000)
        second.send(response())
        assert complete_responses(client.received(), ended=False) == [(200, b"ok")]


def test_a_body_that_is_not_all_sent_when_the_answer_begins_is_sent_on(tmp_path: Path) -> None:
    with rig(1, body_memory=1000, spool_dir=str(tmp_path)) as r:
        client = r.client()
        client.send(request(b"x" * 600_000))
        replica = r.keep(r.dial().accept(blocked=True))
        replica.send(CHUNKED_200, chunked(b"early", end=b""))
        replica.go_on_taking()
        assert replica.received().endswith(b"x" * 600_000)
        replica.send(chunked())
        assert complete_responses(client.received(), ended=False) == [(200, b"early")]


# ---------------------------------------------------------------------------------------------- upstream connections


@pytest.mark.parametrize("begun", [False, True])
def test_the_connection_of_a_cancelled_attempt_counts_as_discarded(begun: bool) -> None:
    with rig(1) as r:
        client = ask(r)
        replica = r.accept()
        if begun:
            replica.send(CHUNKED_200, chunked(b"x", end=b""))
        client.reset()
        assert {reason: n for reason, n in r.backends[0].evicted.items() if n} == {"discarded": 1}


def test_a_connection_that_its_peer_closes_in_use_counts_as_stale() -> None:
    with rig(1) as r:
        client = ask(r)
        first = r.accept()
        first.send(response())
        client.received()
        client.send(request(b"{}"))
        first.reset()
        r.accept().send(response())
        [backend] = r.backends
        assert r.endpoint.counters.retries["stale_connection"] == 1
        assert {reason: n for reason, n in backend.evicted.items() if n} == {"stale": 1}
        assert (backend.opened, len(backend.idle)) == (2, 1)


def test_a_connection_whose_peer_speaks_unasked_is_in_the_books() -> None:
    with rig(1, max_attempts=1) as r:
        ask(r)
        r.accept(early=b"HTTP/1.1 200 OK\r\n")
        [backend] = r.backends
        assert backend.opened == sum(backend.evicted.values()) == 1


# -------------------------------------------------------------------------------------------- backends that come back


def test_a_backend_that_is_added_again_while_it_is_being_removed_stays() -> None:
    with rig(1) as r:
        client = ask(r)
        replica = r.accept()
        [backend] = r.backends
        r.endpoint.remove_backend(backend, 5.0)
        assert r.endpoint.add_backend(backend.url, False) == (backend, False)
        r.loop.advance(10.0)
        assert r.backends == [backend]
        assert (backend.draining, backend.required) == (False, False)
        replica.send(response())
        assert complete_responses(client.received(), ended=False) == [(200, b"ok")]
