"""One request through the real data path, without a socket: what is tried elsewhere, and which answer is final."""

from __future__ import annotations

import errno

import pytest

from proxy.outcome import RETRYABLE_STATUSES
from tests.unit.kit import Rig, ask, attempts, chunked, complete_responses, final, request, response, rig

# ----------------------------------------------------------------------------------------- what leads to a retry


@pytest.mark.parametrize("status", sorted(RETRYABLE_STATUSES))
def test_a_retryable_status_is_tried_elsewhere_with_the_same_bytes(status: int) -> None:
    with rig(3) as r:
        client = ask(r)
        first = r.accept()
        asked = first.received()
        first.send(response(b"no", status))
        second = r.accept()
        assert second.address != first.address
        assert second.received() == asked.replace(b"10.0.0.1", b"10.0.0.2")
        second.send(response(b"yes"))
        assert complete_responses(client.received(), ended=False) == [(200, b"yes")]
        assert attempts(r) == [("10.0.0.1", status), ("10.0.0.2", 200)]
        assert r.endpoint.counters.retries == {f"http_{status}": 1}
        assert r.endpoint.counters.failovers == 1


@pytest.mark.parametrize("status", [200, 204, 301, 304, 400, 401, 404, 408, 413, 422, 499, 501, 505, 507, 599])
def test_any_other_status_is_final(status: int) -> None:
    with rig(3) as r:
        client = ask(r)
        bodyless = status in (204, 304)
        r.accept().send(b"HTTP/1.1 %d X\r\n\r\n" % status if bodyless else response(b"final", status))
        assert complete_responses(client.received(), ended=False) == [(status, b"" if bodyless else b"final")]
        assert final(r) == (status, 1, True)
        assert r.no_dial()


def fail_to_connect(r: Rig) -> None:
    r.dial().refuse()


def fail_to_connect_in_time(r: Rig) -> None:
    r.dial()
    r.loop.advance(6.0)


def fail_by_silence(r: Rig) -> None:
    r.accept()
    r.loop.advance(11.0)


def fail_by_silence_before_the_body(r: Rig) -> None:
    r.accept().send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
    r.loop.advance(21.0)


def fail_by_closing(r: Rig) -> None:
    r.accept().eof()


def fail_by_closing_in_the_head(r: Rig) -> None:
    replica = r.accept()
    replica.send(b"HTTP/1.1 200 OK\r\nContent")
    replica.eof()


def fail_by_closing_before_the_body(r: Rig) -> None:
    replica = r.accept()
    replica.send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
    replica.eof()


def fail_by_a_reset(r: Rig) -> None:
    r.accept().reset()


def fail_by_garbage(r: Rig) -> None:
    r.accept().send(b"SSH-2.0-OpenSSH\r\n")


def fail_by_a_bad_chunk(r: Rig) -> None:
    r.accept().send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")


def fail_by_a_long_head(r: Rig) -> None:
    r.accept().send(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000)


def fail_by_an_upgrade(r: Rig) -> None:
    r.accept().send(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n")


FAILURES = {
    fail_to_connect: "connect_error",
    fail_to_connect_in_time: "connect_timeout",
    fail_by_silence: "response_timeout",
    fail_by_silence_before_the_body: "read_timeout",
    fail_by_closing: "closed",
    fail_by_closing_in_the_head: "closed",
    fail_by_closing_before_the_body: "closed",
    fail_by_a_reset: "closed",
    fail_by_garbage: "protocol_error",
    fail_by_a_bad_chunk: "protocol_error",
    fail_by_a_long_head: "protocol_error",
    fail_by_an_upgrade: "protocol_error",
}
LIMITS = {"connect_timeout": 5, "response_timeout": 10, "read_timeout": 20}
by_name = pytest.mark.parametrize(("fail", "reason"), FAILURES.items(), ids=lambda v: getattr(v, "__name__", ""))


@by_name
def test_every_failure_before_the_first_body_byte_is_tried_elsewhere(fail: object, reason: str) -> None:
    assert callable(fail)
    with rig(3, **LIMITS) as r:
        client = ask(r)
        fail(r)
        r.accept().send(response(b"yes"))
        assert complete_responses(client.received(), ended=False) == [(200, b"yes")]
        assert attempts(r) == [("10.0.0.1", reason), ("10.0.0.2", 200)]
        assert r.endpoint.counters.retries == {reason: 1}
        assert [b.failures for b in r.backends] == [1, 0, 0]
        assert [b.breaker.failures for b in r.backends] == [1, 0, 0]
        at_once = reason in ("connect_error", "closed")
        assert r.probes.asked == (["10.0.0.1:80"] if at_once else [])


@by_name
def test_three_failures_end_in_the_proxys_own_answer(fail: object, reason: str) -> None:
    assert callable(fail)
    with rig(5, **LIMITS) as r:
        client = ask(r)
        for _ in range(3):
            fail(r)
        status = 504 if reason.endswith("timeout") else 502
        assert [s for s, _ in complete_responses(client.received(), ended=False)] == [status]
        assert final(r) == (status, 3, True)
        assert r.no_dial()
        assert sum(b.attempts for b in r.backends) == 3


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 9])
def test_no_more_attempts_than_allowed_and_each_on_another_backend(limit: int) -> None:
    with rig(5, max_attempts=limit) as r:
        ask(r)
        for _ in range(min(limit, 5)):
            r.accept().send(response(b"no", 503))
        assert r.no_dial()
        assert final(r) == (503, min(limit, 5), True)
        asked = [backend for backend, _ in attempts(r)]
        assert len(set(asked)) == len(asked)


@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"PUT", b"DELETE", b"OPTIONS", b"TRACE", b"POST", b"PATCH"])
def test_no_retry_post_limits_retries_to_idempotent_methods(method: bytes) -> None:
    with rig(2, no_retry_post=True) as r:
        client = r.client()
        client.send(request(method=method))
        r.accept().send(b"HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n")
        if method in (b"POST", b"PATCH"):
            assert r.no_dial()
            assert final(r) == (503, 1, True)
        else:
            r.accept().send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            assert final(r) == (200, 2, True)


def test_trouble_of_this_machine_says_nothing_about_the_backend() -> None:
    with rig(2) as r:
        ask(r)
        r.dial().refuse(OSError(errno.EMFILE, "Too many open files"))
        r.accept().send(response())
        assert attempts(r) == [("10.0.0.1", "connect_error"), ("10.0.0.2", 200)]
        assert r.backends[0].breaker.failures == 0
        assert r.probes.asked == []


def test_bytes_that_come_before_anything_was_asked_make_a_connection_useless() -> None:
    with rig(2) as r:
        client = ask(r)
        r.accept(early=b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nold")
        r.accept().send(response(b"new"))
        assert complete_responses(client.received(), ended=False) == [(200, b"new")]


# ------------------------------------------------------------------------------------- which answer is passed on


def test_the_last_answer_is_passed_on_whole_when_the_limit_is_reached() -> None:
    with rig(3) as r:
        client = ask(r)
        for n in range(3):
            r.accept().send(response(b"answer %d" % n, 500 + n * 2, b"X-Which: %d\r\n" % n))
        assert client.received() == response(b"answer 2", 504, b"X-Which: 2\r\n")
        assert final(r) == (504, 3, True)


def test_an_answer_outlives_later_attempts_that_give_none() -> None:
    with rig(3) as r:
        client = ask(r)
        r.accept().send(response(b"said no", 500, b"X-Which: 0\r\n"))
        r.accept().eof()
        r.dial().refuse()
        assert client.received() == response(b"said no", 500, b"X-Which: 0\r\n")
        assert attempts(r) == [("10.0.0.1", 500), ("10.0.0.2", "closed"), ("10.0.0.3", "connect_error")]


def test_a_final_429_keeps_the_upstreams_retry_after() -> None:
    with rig(2) as r:
        client = ask(r)
        r.accept().send(response(b"busy", 429, b"Retry-After: 7\r\n"))
        r.accept().send(response(b"busy too", 429, b"Retry-After: 9\r\n"))
        assert client.received() == response(b"busy too", 429, b"Retry-After: 9\r\n")
        assert r.endpoint.counters.final_429 == 1


@pytest.mark.parametrize(("option", "expected"), [(3, [b"Retry-After: 3"]), ("none", [])])
def test_a_final_429_without_retry_after_gets_ours(option: object, expected: list[bytes]) -> None:
    with rig(1, retry_after_seconds=option) as r:
        client = ask(r)
        r.accept().send(response(b"busy", 429))
        lines = client.received().split(b"\r\n")
        assert [line for line in lines if line.lower().startswith(b"retry-after")] == expected
        assert lines[-1] == b"busy"


@pytest.mark.parametrize(
    ("kept", "status"),
    [
        (
            b"HTTP/1.1 500 X\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(b"he", b"llo", end=b"0\r\nT: 1\r\n\r\n"),
            500,
        ),
        (b"HTTP/1.1 503 X\r\nContent-Length: 5\r\n\r\nhello", 503),
        (b"HTTP/1.1 503 X\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello", 503),
    ],
)
@pytest.mark.parametrize("cut", [1, 7, 1000])
def test_a_kept_answer_reaches_the_client_whatever_its_framing(kept: bytes, status: int, cut: int) -> None:
    with rig(2) as r:
        client = ask(r)
        r.accept().send(*[kept[i : i + cut] for i in range(0, len(kept), cut)])
        r.dial().refuse()
        assert complete_responses(client.received(), ended=False) == [(status, b"hello")]


def test_a_kept_answer_that_ends_with_its_connection_reaches_the_client() -> None:
    with rig(2) as r:
        client = ask(r)
        replica = r.accept()
        replica.send(b"HTTP/1.1 500 X\r\n\r\nhel", b"lo")
        replica.eof()
        r.dial().refuse()
        assert complete_responses(client.received(), ended=False) == [(500, b"hello")]


def test_a_kept_answer_of_more_than_a_mebibyte_counts_as_none() -> None:
    with rig(2) as r:
        client = ask(r)
        replica = r.accept()
        replica.send(b"HTTP/1.1 500 X\r\nContent-Length: 2000000\r\n\r\n", b"x" * 1_048_577)
        assert replica.is_gone()
        r.dial().refuse()
        assert [s for s, _ in complete_responses(client.received(), ended=False)] == [502]
        assert r.backends[0].breaker.failures == 1


def test_a_kept_answer_that_takes_more_than_five_seconds_counts_as_none() -> None:
    with rig(2) as r:
        client = ask(r)
        replica = r.accept()
        replica.send(b"HTTP/1.1 500 X\r\nContent-Length: 20\r\n\r\n")
        for _ in range(12):  # it trickles, which is no excuse
            replica.send(b"x") if not replica.is_gone() else None
            r.loop.advance(0.5)
        assert replica.is_gone()
        r.accept().send(response())
        assert complete_responses(client.received(), ended=False) == [(200, b"ok")]


def test_a_retryable_answer_is_streamed_when_nobody_else_is_left() -> None:
    with rig(1) as r:
        client = ask(r)
        replica = r.accept()
        replica.send(b"HTTP/1.1 500 X\r\nContent-Length: 2000000\r\n\r\n", b"x" * 10)
        assert client.received().endswith(b"x" * 10)
        replica.send(b"x" * 1_999_990)
        assert final(r) == (500, 1, True)


# ----------------------------------------------------------------------------------- no candidate, and admission


def test_no_backend_at_all_is_503() -> None:
    with rig(1) as r:
        r.endpoint.drain_backend(r.backends[0])
        client = ask(r)
        assert [s for s, _ in complete_responses(client.received(), ended=False)] == [503]
        assert r.endpoint.counters.rejected["no_backend"] == 1
        assert final(r) == (503, 0, True)


def test_too_deep_queues_are_429_at_once_and_nobody_is_asked() -> None:
    with rig(2) as r:
        for backend in r.backends:
            r.endpoint.fleet.record_depth(backend, 129, r.loop.now)
        client = ask(r)
        answer = client.received()
        assert answer.startswith(b"HTTP/1.1 429 ")
        assert b"\r\nRetry-After: 1\r\n" in answer
        assert r.no_dial()
        assert r.endpoint.counters.rejected["queue_depth"] == 1


def test_full_backends_are_429_at_once_and_one_ending_makes_room() -> None:
    with rig(1, max_connections_per_backend=1) as r:
        first = ask(r)
        replica = r.accept()
        second = ask(r)
        assert second.received().startswith(b"HTTP/1.1 429 ")
        assert r.endpoint.counters.rejected["connection_limit"] == 1
        replica.send(response())
        assert first.received()
        replica.received()
        second.send(request(b"again"))
        assert replica.received().endswith(b"again")
        replica.send(response())
        assert final(r) == (200, 1, True)


def test_a_busy_backend_that_was_tried_after_all_does_not() -> None:
    with rig(2) as r:
        r.endpoint.fleet.record_depth(r.backends[1], 500, r.loop.now)
        client = ask(r)
        r.endpoint.fleet.record_depth(r.backends[1], 0, r.loop.now)
        r.dial().refuse()
        r.dial().refuse()
        assert client.received().startswith(b"HTTP/1.1 502 ")
        assert final(r) == (502, 2, True)


def test_a_busy_backend_that_was_left_out_makes_the_failure_a_429() -> None:
    with rig(2) as r:
        r.endpoint.fleet.record_depth(r.backends[1], 500, r.loop.now)
        client = ask(r)
        r.dial().refuse()
        assert client.received().startswith(b"HTTP/1.1 429 ")
        assert final(r) == (429, 1, True)
