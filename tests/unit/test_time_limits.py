"""Every limit in time, upstream and downstream: which one runs out, what is counted, and what is tried next."""

from __future__ import annotations

import pytest

from proxy.handler import Exchange
from tests.unit.kit import Rig, ask, attempts, chunked, complete_responses, final, request, response, rig

LIMITS: dict[str, object] = {"connect_timeout": 2, "response_timeout": 10, "read_timeout": 20, "write_timeout": 5}
CHUNKED_200 = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def timeouts(r: Rig) -> dict[str, int]:
    return {kind: n for kind, n in r.endpoint.counters.timeouts.items() if n}


def test_connecting() -> None:
    with rig(2, **LIMITS) as r:
        ask(r)
        r.dial()
        r.loop.advance(1.9)
        assert timeouts(r) == {}
        r.loop.advance(0.5)
        assert timeouts(r) == {"connect": 1}
        assert [b.failed for b in r.backends] == [1, 0]
        r.accept().send(response())
        assert final(r) == (200, 2, True)


def test_waiting_for_the_head_counts_from_the_connection_on() -> None:
    with rig(2, **LIMITS) as r:
        ask(r)
        dial = r.dial()
        r.loop.advance(1.8)
        replica = r.keep(dial.accept())
        r.loop.advance(9.5)
        assert not replica.is_gone()
        r.loop.advance(1.5)
        assert replica.is_gone()
        assert timeouts(r) == {"response": 1}


@pytest.mark.parametrize("drip", [b"HTTP/1.1 102 Processing\r\n\r\n", b"H"])
def test_neither_interim_responses_nor_a_dripping_head_buy_time(drip: bytes) -> None:
    with rig(1, **LIMITS) as r:
        ask(r)
        replica = r.accept()
        for piece in (drip[:1], drip[1:4], drip[4:]):
            r.loop.advance(3.0)
            replica.send(*([piece] if piece else []))
        assert not replica.is_gone()
        r.loop.advance(2.0)
        assert replica.is_gone()
        assert timeouts(r) == {"response": 1}


def test_silence_before_the_first_body_byte_is_tried_elsewhere() -> None:
    with rig(2, **LIMITS) as r:
        ask(r)
        replica = r.accept()
        replica.send(CHUNKED_200)
        r.loop.advance(19.0)
        assert not replica.is_gone()
        r.loop.advance(3.0)
        assert replica.is_gone()
        assert timeouts(r) == {"read": 1}
        r.accept().send(response())
        assert attempts(r) == [("10.0.0.1", "read_timeout"), ("10.0.0.2", 200)]


def test_a_stream_may_be_silent_for_the_read_timeout_again_and_again() -> None:
    with rig(1, **LIMITS) as r:
        client = ask(r)
        replica = r.accept()
        replica.send(CHUNKED_200)
        for n in range(5):
            replica.send(chunked(b"%d" % n, end=b""))
            r.loop.advance(18.0)
        replica.send(chunked())
        assert complete_responses(client.received(), ended=False) == [(200, b"01234")]
        assert timeouts(r) == {}


def test_a_stream_that_falls_silent_is_broken_off() -> None:
    with rig(2, **LIMITS) as r:
        client = ask(r)
        replica = r.accept()
        replica.send(CHUNKED_200, chunked(b"1", end=b""))
        r.loop.advance(25.0)
        assert replica.is_gone()
        assert client.is_gone()
        assert final(r) == (200, 1, False)
        assert timeouts(r) == {"read": 1}
        assert r.no_dial()


def test_a_backend_that_takes_nothing_of_a_request_is_given_up() -> None:
    with rig(2, **LIMITS, body_memory=1000) as r:
        client = r.client()
        client.send(request(b"x" * 600_000))
        replica = r.keep(r.dial().accept(blocked=True))
        r.loop.advance(4.5)
        assert not replica.is_gone()
        r.loop.advance(1.5)
        assert replica.is_gone()
        assert timeouts(r) == {"write": 1}
        second = r.accept()
        assert second.received().endswith(b"x" * 600_000)
        second.send(response())
        assert attempts(r) == [("10.0.0.1", "response_timeout"), ("10.0.0.2", 200)]


def test_the_wait_for_the_head_begins_when_the_request_is_taken() -> None:
    with rig(1, **LIMITS, body_memory=1000) as r:
        client = r.client()
        client.send(request(b"x" * 600_000))
        replica = r.keep(r.dial().accept(blocked=True))
        r.loop.advance(4.0)
        replica.go_on_taking()
        r.loop.advance(9.0)
        assert not replica.is_gone()
        replica.send(response())
        assert complete_responses(client.received(), ended=False) == [(200, b"ok")]


def test_a_slow_client_is_no_fault_of_its_backend() -> None:
    with rig(1, **LIMITS) as r:
        client = ask(r)
        replica = r.accept()
        client.stop_taking()
        replica.send(CHUNKED_200, chunked(b"x" * 200_000, end=b""))
        for _ in range(4):  # it takes now and then
            r.loop.advance(15.0)
            client.go_on_taking()
            client.stop_taking()
            replica.send(chunked(b"x" * 200_000, end=b""))
        assert timeouts(r) == {}
        r.loop.advance(25.0)
        assert timeouts(r) == {"client": 1}
        assert r.backends[0].breaker.failures == 0
        assert r.backends[0].failures == 0


@pytest.mark.parametrize("idle_timeout", [1, 30])
def test_an_idle_upstream_connection_leaves_after_its_timeout(idle_timeout: int) -> None:
    with rig(1, idle_timeout=idle_timeout) as r:
        ask(r)
        replica = r.accept()
        replica.send(response())
        r.loop.advance(idle_timeout * 0.9)
        assert not replica.is_gone()
        r.loop.advance(idle_timeout * 0.5)
        assert replica.is_gone()
        assert r.backends[0].evicted["idle_timeout"] == 1


def test_a_client_that_does_not_take_its_last_bytes_is_closed_in_the_end() -> None:
    with rig(1, client_timeout=30) as r:
        client = r.client()
        client.stop_taking()
        client.send(b"GET / HTTP/1.0\r\n\r\n")
        r.accept().send(response(b"x" * 1000))
        assert final(r) == (200, 1, True)
        r.loop.advance(29.0)
        assert not client.transport.lost
        r.loop.advance(2.0)
        assert client.transport.lost


def test_a_fault_in_one_check_of_limits_leaves_those_of_the_others_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    with rig(3, **LIMITS, max_attempts=1) as r:
        clients = [ask(r) for _ in range(3)]
        replicas = [r.accept() for _ in range(3)]
        broken = clients[0].downstream.exchange
        check = Exchange.check

        def check_all_but_one(exchange: Exchange, now: float) -> None:
            if exchange is broken:
                raise RuntimeError("said by the test")
            check(exchange, now)

        monkeypatch.setattr(Exchange, "check", check_all_but_one)
        r.loop.advance(12.0)
        assert sorted(replica.is_gone() for replica in replicas) == [False, True, True]
        assert {str(e["exception"]) for e in r.loop.errors} == {"said by the test"}
        r.loop.errors.clear()


@pytest.mark.parametrize("gap_s", [0.3, 7.0, 29.0])
def test_a_client_is_closed_when_it_was_idle_for_the_timeout_since_its_last_answer(gap_s: float) -> None:
    with rig(1, client_timeout=30) as r:
        other = r.client()
        client = r.client()
        client.send(request())
        replica = r.accept()
        replica.send(response())
        for _ in range(10):
            r.loop.advance(gap_s)
            client.send(request())
            r.loop.advance(gap_s)  # a request is under way: that is no idle time
            replica.send(response())
        assert other.transport.lost == (20 * gap_s > 30)
        r.loop.advance(29.4)
        assert not client.transport.lost
        r.loop.advance(1.2)
        assert client.transport.lost


def test_many_clients_that_come_and_go_leave_nothing_in_the_books() -> None:
    with rig(1, client_timeout=30) as r:
        for _ in range(50):
            clients = [r.client() for _ in range(4)]
            clients[0].send(b"GET / HT")
            r.loop.advance(1.7)
            for client in clients:
                client.reset()
        r.loop.advance(60)
        books = r.endpoint.limits
        assert (books._buckets, books._lingering, books._closing) == ({}, {}, {})
