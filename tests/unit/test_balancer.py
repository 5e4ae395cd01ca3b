"""Selection: least connections among those that may be chosen, in the same order every time (INTERFACE section 3)."""

from __future__ import annotations

from collections import Counter

import pytest

from proxy.balancer import Fleet
from proxy.breaker import BreakerState
from proxy.config import BackendUrl
from proxy.outcome import Rejection, Verdict
from proxy.upstream import Backend
from tests.unit.kit import make_config


def fleet(backends: int = 3, **options: object) -> Fleet:
    return Fleet(make_config(backends, **options))


def choose(f: Fleet, now: float = 0.0, tried: int = 0) -> int:
    """Choose, and give the position of who was chosen."""
    found = f.choose(now, tried)
    assert isinstance(found, Backend), found
    return found.position


def lease(f: Fleet, now: float = 0.0) -> int:
    """Choose and take a lease, as the data path does."""
    position = choose(f, now)
    f.lease(list(f)[position], now)
    return position


def trip(f: Fleet, backend: Backend, now: float = 0.0) -> None:
    for _ in range(3):
        f.record_verdict(backend, Verdict.FAILURE, False, now)


def make_unhealthy(f: Fleet, backend: Backend) -> None:
    f.record_probe(backend, False)


def test_ties_go_round_robin_in_configured_order_from_the_first() -> None:
    f = fleet(3)
    assert [choose(f) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_the_fewest_leases_win_whoevers_turn_it_is() -> None:
    f = fleet(3)
    assert [lease(f) for _ in range(6)] == [0, 1, 2, 0, 1, 2]
    f.release(list(f)[1])
    assert [lease(f), lease(f)] == [1, 2]


def test_the_same_calls_give_the_same_choices() -> None:
    def run() -> list[int]:
        f, chosen = fleet(5), []
        for n in range(300):
            chosen.append(lease(f, n * 0.01))
            busy = [b for b in f if b.active]
            if n % 3:
                f.release(busy[(n * 7) % len(busy)])
        return chosen

    assert run() == run()


@pytest.mark.parametrize("backends", [1, 2, 63, 64, 65, 250])
def test_load_is_even_over_any_number_of_backends(backends: int) -> None:
    f = fleet(backends)
    chosen = Counter(lease(f) for _ in range(backends * 3))
    assert set(chosen.values()) == {3}
    assert len(chosen) == backends


def test_tried_backends_are_left_out() -> None:
    f = fleet(3)
    assert choose(f, tried=0b001) == 1
    assert choose(f, tried=0b011) == 2
    assert f.choose(0.0, 0b111) is Rejection.NO_BACKEND
    assert f.left_out == 0


def test_asking_whether_somebody_is_left_takes_no_turn() -> None:
    f = fleet(3)
    assert [f.refusal(0.0) for _ in range(5)] == [None] * 5
    assert choose(f) == 0
    assert f.refusal(0.0, 0b111) is Rejection.NO_BACKEND


# ------------------------------------------------------------------------------------------------------------- limits


def test_a_full_backend_is_left_out_until_a_lease_comes_back() -> None:
    f = fleet(2, max_connections_per_backend=2)
    assert [lease(f) for _ in range(4)] == [0, 1, 0, 1]
    assert f.choose(0.0) is Rejection.CONNECTION_LIMIT
    assert f.left_out == 0b11
    f.release(list(f)[1])
    assert lease(f) == 1
    assert f.choose(0.0) is Rejection.CONNECTION_LIMIT


def test_a_lease_beyond_the_limit_does_not_open_the_door_when_one_comes_back() -> None:
    """A dead pooled connection is replaced on the same backend, whatever its limit says by then."""
    f = fleet(1, max_connections_per_backend=1)
    backend = next(iter(f))
    f.lease(backend, 0.0)
    f.lease(backend, 0.0)
    f.release(backend)
    assert f.choose(0.0) is Rejection.CONNECTION_LIMIT
    f.release(backend)
    assert choose(f) == 0


# -------------------------------------------------------------------------------------------------- queue admission


@pytest.mark.parametrize(("depth", "overloaded"), [(0, False), (128, False), (128.5, True), (129, True), (1e9, True)])
def test_a_backend_is_overloaded_above_the_threshold_only(depth: float, overloaded: bool) -> None:
    f = fleet(1)
    f.record_depth(next(iter(f)), depth, 0.0)
    expected = Rejection.QUEUE_DEPTH if overloaded else next(iter(f))
    assert f.choose(0.0) is expected
    assert f.left_out == (0b1 if overloaded else 0)


def test_a_stale_sample_rejects_nobody_and_a_fresh_one_counts_again() -> None:
    f = fleet(1, queue_stale_after=1.0)
    backend = next(iter(f))
    f.record_depth(backend, 500, 10.0)
    assert f.choose(11.0) is Rejection.QUEUE_DEPTH
    assert choose(f, 11.001) == 0
    f.record_depth(backend, 500, 12.0)
    assert f.choose(12.0) is Rejection.QUEUE_DEPTH
    f.record_depth(backend, 128, 12.1)
    assert choose(f, 12.1) == 0


def test_a_missing_sample_rejects_nobody() -> None:
    assert choose(fleet(1)) == 0


def test_overload_of_some_sends_everything_to_the_others() -> None:
    f = fleet(3)
    first, second, _ = f
    f.record_depth(first, 200, 0.0)
    f.record_depth(second, 200, 0.0)
    assert [lease(f) for _ in range(4)] == [2, 2, 2, 2]
    assert f.left_out == 0b011


def test_full_and_overloaded_together_say_connection_limit_or_queue_depth() -> None:
    f = fleet(2, max_connections_per_backend=1)
    first, second = f
    f.lease(first, 0.0)
    f.record_depth(second, 200, 0.0)
    assert f.choose(0.0) is Rejection.QUEUE_DEPTH
    assert f.left_out == 0b11
    f.lease(second, 0.0)
    assert f.choose(0.0) is Rejection.CONNECTION_LIMIT


# ----------------------------------------------------------------------------------------------- illness


@pytest.mark.parametrize("rule_out", [trip, make_unhealthy])
def test_health_and_breakers_rule_out_some_but_never_everybody(rule_out: object) -> None:
    assert callable(rule_out)
    f = fleet(3)
    first, second, third = f
    rule_out(f, first)
    assert [choose(f) for _ in range(4)] == [1, 2, 1, 2]
    rule_out(f, second)
    assert [choose(f) for _ in range(2)] == [2, 2]
    rule_out(f, third)
    assert [choose(f) for _ in range(4)] == [0, 1, 2, 0]


def test_fail_open_looks_at_the_remaining_backends_only() -> None:
    f = fleet(2)
    first, second = f
    trip(f, second)
    assert choose(f, tried=first.bit) == 1


def test_fail_open_does_not_open_queues_or_limits() -> None:
    f = fleet(2)
    first, second = f
    trip(f, first)
    make_unhealthy(f, second)
    f.record_depth(first, 200, 0.0)
    f.record_depth(second, 200, 0.0)
    assert f.choose(0.0) is Rejection.QUEUE_DEPTH


def test_a_backend_is_a_candidate_before_its_first_verdict_but_not_ready() -> None:
    f = fleet(1)
    assert choose(f) == 0
    assert (f.readiness().ok, f.readiness().ready) == (False, 0)
    f.record_probe(next(iter(f)), True)
    assert (f.readiness().ok, f.readiness().ready) == (True, 1)


def test_readiness_asks_every_required_backend_that_does_not_drain() -> None:
    f = fleet(2)
    first, second = f
    extra = f.add(BackendUrl("http", "10.0.0.9", 80), required=False)
    f.record_probe(first, True)
    f.record_probe(extra, False)
    assert not f.readiness().ok
    f.record_probe(second, True)
    assert (f.readiness().ok, f.readiness().ready, f.readiness().backends) == (True, 2, 3)
    f.record_probe(second, False)
    f.record_probe(second, False)
    f.set_draining(second, True)
    assert (f.readiness().ok, f.readiness().ready, f.readiness().backends) == (True, 1, 2)
    f.set_draining(first, True)
    assert not f.readiness().ok


def test_a_probe_is_one_at_a_time_and_told_when_the_state_changes() -> None:
    changes: list[tuple[str, BreakerState]] = []
    f = Fleet(make_config(2), lambda b, state: changes.append((b.id, state)))
    first, _ = f
    trip(f, first)
    assert [lease(f) for _ in range(3)] == [1, 1, 1]
    assert choose(f, 5.0) == 0
    assert f.lease(first, 5.0)
    assert choose(f, 6.0) == 1
    f.record_verdict(first, Verdict.SUCCESS, True, 7.0)
    assert choose(f, 7.0) == 0
    states = [BreakerState.OPEN, BreakerState.HALF_OPEN, BreakerState.CLOSED]
    assert changes == [(first.id, state) for state in states]


# ----------------------------------------------------------------------------------------------------------- penalties


@pytest.mark.parametrize(
    ("retry_after", "lasts"), [(None, 1.0), (0.5, 0.5), (3.0, 3.0), (60.0, 5.0), (float("inf"), 5.0)]
)
def test_a_backend_that_answered_429_ranks_behind_until_its_time_has_passed(
    retry_after: float | None, lasts: float
) -> None:
    f = fleet(2)
    first, second = f
    for _ in range(5):
        f.lease(second, 0.0)
    f.penalize(first, retry_after, 0.0)
    assert choose(f, lasts - 0.01) == 1
    assert choose(f, lasts) == 0


def test_a_retry_after_of_nought_or_less_is_no_penalty() -> None:
    f = fleet(2)
    f.penalize(next(iter(f)), 0.0, 0.0)
    f.penalize(next(iter(f)), -3.0, 0.0)
    assert choose(f) == 0


def test_penalties_rule_nobody_out() -> None:
    f = fleet(2)
    for backend in f:
        f.penalize(backend, 5.0, 0.0)
    assert [choose(f, 1.0) for _ in range(3)] == [0, 1, 0]


# ---------------------------------------------------------------------------------------------------------- membership


def test_a_draining_backend_gets_nothing_and_comes_back_when_resumed() -> None:
    f = fleet(2)
    first, _ = f
    f.set_draining(first, True)
    assert [choose(f) for _ in range(3)] == [1, 1, 1]
    f.set_draining(first, False)
    assert sorted([choose(f), choose(f)]) == [0, 1]


def test_a_removed_backend_still_takes_its_leases_back() -> None:
    f = fleet(2, max_connections_per_backend=1)
    first, second = f
    f.lease(first, 0.0)
    f.remove(first)
    f.remove(first)
    assert [b.id for b in f] == [second.id]
    f.release(first)
    f.record_verdict(first, Verdict.FAILURE, False, 0.0)
    f.record_depth(first, 500, 0.0)
    f.penalize(first, 5.0, 0.0)
    f.record_probe(first, False)
    f.set_draining(first, True)
    assert first.active == 0
    new = f.add(first.url, required=True)
    assert sorted([choose(f), choose(f)]) == sorted([second.position, new.position])


def test_the_same_address_cannot_be_added_twice() -> None:
    f = fleet(1)
    with pytest.raises(ValueError, match=r"10\.0\.0\.1:80 is a backend already"):
        f.add(next(iter(f)).url, required=True)


def test_a_new_backend_does_not_inherit_the_place_that_requests_under_way_have_tried() -> None:
    f = fleet(2)
    first, second = f
    tried = first.bit | second.bit
    f.remove(first)
    new = f.add(BackendUrl("http", "10.0.0.9", 80), required=True)
    assert f.choose(0.0, tried) is new


def test_masks_stay_small_however_often_backends_come_and_go() -> None:
    f = fleet(3)
    for n in range(2000):
        f.remove(f.add(BackendUrl("http", f"10.1.{n // 250}.{n % 250}", 80), required=True))
    assert f.add(BackendUrl("http", "10.2.0.1", 80), required=True).position < 80


def test_who_was_left_out_is_named_by_reason() -> None:
    f = fleet(7, max_connections_per_backend=1)
    a, b, c, d, e, g, h = f
    f.set_draining(a, True)
    f.lease(b, 0.0)
    make_unhealthy(f, c)
    trip(f, d)
    f.record_depth(e, 200, 0.0)
    f.penalize(g, 2.0, 0.0)
    expected = {"draining": [a.id], "connection_limit": [b.id], "unhealthy": [c.id], "breaker": [d.id]}
    expected |= {"queue_depth": [e.id], "retry_after": [g.id], "tried": [h.id]}
    assert f.excluded(0.5, h.bit) == expected
    assert fleet(2).excluded(0.0) is None
