"""What a request leaves behind and meets, without a socket: pooled connections, breakers, removal, spooled bodies."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.config import BackendUrl
from proxy.outcome import Verdict
from tests.unit.kit import Rig, ask, attempts, complete_responses, final, request, response, rig
from tests.unit.memory import Client, Replica

# ------------------------------------------------------------------------------ pooled connections that are dead


def pooled(r: Rig) -> tuple[Client, Replica]:
    """One client and one connection that has served a request and is idle now."""
    client = ask(r)
    replica = r.accept()
    replica.send(response())
    client.received()
    replica.received()
    return client, replica


@pytest.mark.parametrize("end", [Replica.eof, Replica.reset])
def test_a_stale_connection_is_replaced_by_a_fresh_one_to_the_same_backend(end: object) -> None:
    assert callable(end)
    with rig(1) as r:
        client, stale = pooled(r)
        client.send(request(b"again"))
        assert stale.received()
        end(stale)
        fresh = r.accept()
        assert fresh.received().endswith(b"again")
        fresh.send(response(b"yes"))
        assert complete_responses(client.received(), ended=False) == [(200, b"yes")]
        assert attempts(r) == [("10.0.0.1", "stale_connection"), ("10.0.0.1", 200)]
        assert [a["reused"] for a in r.records[-1]["upstreams"]] == [True, False]
        assert r.backends[0].breaker.failures == 0
        assert r.endpoint.counters.retries == {"stale_connection": 1}


def test_a_stale_connection_costs_an_attempt() -> None:
    with rig(1, max_attempts=1) as r:
        client, stale = pooled(r)
        client.send(request(b"again"))
        stale.eof()
        assert r.no_dial()
        assert [s for s, _ in complete_responses(client.received(), ended=False)] == [502]


def test_a_stale_connection_is_not_replayed_for_a_post_that_must_not_be_retried() -> None:
    with rig(1, no_retry_post=True) as r:
        client, stale = pooled(r)
        client.send(request(b"again"))
        stale.eof()
        assert r.no_dial()
        assert final(r) == (502, 1, True)


def test_a_stale_probe_gives_the_slot_to_the_fresh_connection() -> None:
    with rig(1, breaker_failure_threshold=1, breaker_cooldown_s=1) as r:
        client, stale = pooled(r)
        backend = r.backends[0]
        r.endpoint.fleet.record_verdict(backend, Verdict.FAILURE, False, r.loop.now)
        r.loop.advance(1.5)
        client.send(request(b"again"))
        assert backend.breaker.probing
        stale.eof()
        assert backend.breaker.state.value == "half_open"
        r.accept().send(response())
        assert backend.breaker.state.value == "closed"


def test_a_connection_that_answered_part_of_a_head_was_not_stale() -> None:
    with rig(1) as r:
        client, replica = pooled(r)
        client.send(request(b"again"))
        replica.send(b"HTTP/1.1 2")
        replica.eof()
        assert r.no_dial()
        assert attempts(r) == [("10.0.0.1", "closed")]
        assert r.backends[0].breaker.failures == 1


@pytest.mark.parametrize(
    ("happens", "reason"),
    [
        (lambda r, u: u.eof(), "stale"),
        (lambda r, u: u.reset(), "stale"),
        (lambda r, u: u.send(b"HTTP/1.1 408 Too Late\r\n\r\n"), "stale"),
        (lambda r, u: r.loop.advance(66.0), "idle_timeout"),
        (lambda r, u: r.endpoint.drain_backend(r.backends[0]), "drain"),
    ],
)
def test_an_idle_connection_is_evicted_when_it_becomes_useless(happens: object, reason: str) -> None:
    assert callable(happens)
    with rig(1) as r:
        _, replica = pooled(r)
        assert len(r.endpoint.pool) == 1
        happens(r, replica)
        r.loop.run()
        assert len(r.endpoint.pool) == 0
        assert replica.is_gone()
        assert {k: v for k, v in r.backends[0].evicted.items() if v} == {reason: 1}


def test_the_least_recently_used_idle_connection_makes_room_for_another() -> None:
    with rig(2, max_idle=1) as r:
        first, second = ask(r), ask(r)
        one, two = r.accept(), r.accept()
        one.send(response())
        two.send(response())
        assert (one.is_gone(), two.is_gone()) == (True, False)
        assert r.backends[0].evicted["pool_full"] == 1
        assert first.received() and second.received()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n",
    ],
)
def test_a_connection_that_must_not_be_used_again_is_closed(answer: bytes) -> None:
    with rig(1) as r:
        client = ask(r)
        replica = r.accept()
        replica.send(answer)
        assert complete_responses(client.received(), ended=False) == [(200, b"ok")]
        assert replica.is_gone()
        assert len(r.endpoint.pool) == 0


# ----------------------------------------------------------------------------------------- breaker, from outside


@pytest.mark.parametrize(
    ("answer", "failures"),
    [
        (response(b"x", 500), 3),
        (response(b"x", 503), 3),
        (response(b"x", 503, b"Retry-After: 2\r\n"), 2),
        (response(b"x", 429), 2),
        (response(b"x", 404), 2),
        (response(b"x", 200), 0),
        (response(b"", 200), 0),
        (response(b"x", 501), 0),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 0),
    ],
)
def test_what_an_answer_does_to_the_count_of_faults(answer: bytes, failures: int) -> None:
    with rig(1, breaker_failure_threshold=9) as r:
        backend = r.backends[0]
        for _ in range(2):
            r.endpoint.fleet.record_verdict(backend, Verdict.FAILURE, False, r.loop.now)
        ask(r)
        r.accept().send(answer)
        assert backend.breaker.failures == failures


def test_a_backend_whose_breaker_opened_is_left_out_until_a_probe_succeeds() -> None:
    with rig(2, breaker_failure_threshold=1, breaker_cooldown_s=5, max_attempts=1) as r:
        ask(r)
        r.dial().refuse()
        assert ("breaker_open", {"backend": "10.0.0.1:80"}) in r.log.events
        for _ in range(3):
            ask(r)
            assert r.accept().address == "10.0.0.2:80"
        r.loop.advance(5.1)
        ask(r)
        probe = r.accept()
        assert probe.address == "10.0.0.1:80"  # fewest leases
        ask(r)
        assert r.accept().address == "10.0.0.2:80"  # one probe at a time
        probe.send(response())
        assert r.log.events[-1] == ("breaker_closed", {"backend": "10.0.0.1:80"})


# ------------------------------------------------------------------------------------------ removal and draining


def test_a_request_that_has_not_begun_is_tried_elsewhere_when_its_backend_is_removed() -> None:
    with rig(2) as r:
        client = ask(r)
        replica = r.accept()
        r.endpoint.remove_backend(r.backends[0], 3.0)
        r.loop.advance(2.9)
        assert not replica.is_gone()
        r.loop.advance(0.2)
        assert replica.is_gone()
        r.accept().send(response(b"yes"))
        assert complete_responses(client.received(), ended=False) == [(200, b"yes")]
        assert [b.id for b in r.backends] == ["10.0.0.2:80"]


def test_a_removed_backend_goes_as_soon_as_its_last_response_has_ended() -> None:
    with rig(2) as r:
        client = ask(r)
        replica = r.accept()
        r.endpoint.remove_backend(r.backends[0], 30.0)
        replica.send(response())
        assert client.received()
        r.loop.run()
        assert [b.id for b in r.backends] == ["10.0.0.2:80"]
        assert replica.is_gone()


def test_a_new_backend_in_the_place_of_a_removed_one_is_not_taken_for_tried() -> None:
    with rig(2) as r:
        client = ask(r)
        r.accept().send(response(b"no", 503))
        second = r.accept()
        r.endpoint.remove_backend(r.backends[0], 1.0)
        r.loop.run()
        assert len(r.backends) == 1
        r.endpoint.add_backend(BackendUrl("http", "10.0.0.9", 80), True)
        second.send(response(b"no", 503))
        third = r.accept()
        assert third.address == "10.0.0.9:80"
        third.send(response(b"yes"))
        assert complete_responses(client.received(), ended=False) == [(200, b"yes")]


def test_a_draining_endpoint_refuses_new_requests_and_finishes_the_others() -> None:
    with rig(1) as r:
        busy, idle = ask(r), r.client()
        replica = r.accept()
        late = r.client()
        late.send(b"POST / HTTP/1.1\r\n")
        r.endpoint.begin_drain()
        r.loop.run()
        assert idle.is_gone()
        late.send(b"Host: x\r\nContent-Length: 0\r\n\r\n")
        assert complete_responses(late.received(), ended=True)[0][0] == 503
        replica.send(response())
        answer = busy.received()
        assert b"\r\nConnection: close\r\n" in answer
        assert complete_responses(answer, ended=True) == [(200, b"ok")]
        assert busy.is_gone()


# ---------------------------------------------------------------------------------------------- the spooled body


def test_a_spooled_body_is_replayed_byte_for_byte(tmp_path: Path) -> None:
    body = bytes(range(256)) * 4096
    with rig(3, body_memory=1000, spool_dir=str(tmp_path)) as r:
        client = r.client()
        client.send(*[request(body)[i : i + 65_536] for i in range(0, len(body) + 500, 65_536)])
        for _ in range(2):
            replica = r.accept()
            assert replica.received().endswith(b"\r\n\r\n" + body)
            replica.send(response(b"no", 502))
        assert r.accept().received().endswith(b"\r\n\r\n" + body)


def test_a_spooled_body_is_handed_over_no_faster_than_it_is_taken(tmp_path: Path) -> None:
    body = b"0123456789abcdef" * 200_000
    with rig(1, body_memory=1000, spool_dir=str(tmp_path)) as r:
        client = r.client()
        client.send(request(body))
        replica = r.keep(r.dial().accept(blocked=True))
        assert replica.transport.get_write_buffer_size() < 1_000_000
        replica.go_on_taking()
        assert replica.received().endswith(b"\r\n\r\n" + body)
        replica.send(response())
        assert client.received()
        assert len(r.endpoint.pool) == 1


def test_the_rest_of_a_spooled_body_follows_when_the_response_begins_early(tmp_path: Path) -> None:
    body = b"0123456789abcdef" * 200_000
    with rig(1, body_memory=1000, spool_dir=str(tmp_path)) as r:
        client = r.client()
        client.send(request(body))
        replica = r.keep(r.dial().accept(blocked=True))
        replica.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab")
        replica.go_on_taking()
        assert replica.received().endswith(b"\r\n\r\n" + body)
        replica.send(b"cd")
        assert complete_responses(client.received(), ended=False) == [(200, b"abcd")]


def test_a_spool_that_cannot_be_written_is_503_and_the_client_can_read_it() -> None:
    with rig(1, body_memory=1000, spool_dir="/proc/none") as r:
        client = r.client()
        client.send(request(b"z" * 5000)[:-10], b"z" * 10)
        assert complete_responses(client.received(), ended=True)[0][0] == 503
        assert r.endpoint.counters.rejected["spool"] == 1
        assert r.no_dial()


# ------------------------------------------------------------------------------------------------------- /health


@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
@pytest.mark.parametrize("target", [b"/health", b"/health?x=1", b"http://dd/health"])
@pytest.mark.parametrize("body", [b"", b"{}"])
def test_health_is_answered_here_and_counted_nowhere(method: bytes, target: bytes, body: bytes) -> None:
    with rig(1) as r:
        for healthy, status in ((False, 503), (True, 200)):
            r.endpoint.fleet.record_probe(r.backends[0], healthy)
            client = r.client()
            client.send(request(body, method=method, target=target))
            assert client.received().startswith(b"HTTP/1.1 %d " % status)
            assert r.endpoint.counters.requests == 0
            assert r.no_dial()


def test_heads_with_credentials_are_forgotten_within_a_minute() -> None:
    with rig(1) as r:
        client = r.client()
        client.send(request(b"{}", extra=b"Authorization: Bearer sesame\r\n"))
        r.accept().send(response(b"ok", 200, b"Set-Cookie: sesame\r\n"))
        assert (r.endpoint.memo_requests.size, r.endpoint.memo_responses.size) == (1, 1)
        r.loop.advance(60.0)
        assert (r.endpoint.memo_requests.size, r.endpoint.memo_responses.size) == (0, 0)
        assert client.received()
