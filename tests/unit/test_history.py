"""The last minutes are kept in bounded arrays, and rates and percentiles follow from them."""

from __future__ import annotations

import pytest

from proxy.counters import REQUEST_BOUNDS_S, Histogram
from proxy.history import INTERVAL_S, SAMPLES, History, Totals, quantile
from proxy.status import status
from tests.unit.stand_in import StandIn, stand_in


def sample(history: History, endpoint: StandIn, now: float) -> None:
    history.sample(Totals.of(endpoint.counters, endpoint.active_requests(), now), endpoint.fleet, 1.0)


def test_a_reader_gets_everything_first_and_then_only_what_is_new() -> None:
    endpoint, history = stand_in(1), History()
    for step in range(3):
        endpoint.counters.requests += 10
        endpoint.fleet.record_depth(next(iter(endpoint.fleet)), step, now=step * 2.0)
        sample(history, endpoint, step * 2.0)
    first = history.since(0)
    assert first["requests_per_s"] == [None, 5.0, 5.0]
    assert first["backends"] == {"127.0.0.1:8001": {"depth": [0.0, 1.0, 2.0]}}
    assert (first["from"], first["taken"]) == (0, 3)
    sample(history, endpoint, 6.0)
    more = history.since(3)
    assert (more["from"], more["requests_per_s"], more["active"]) == (3, [0.0], [0])
    assert more["backends"] == {"127.0.0.1:8001": {"depth": [None]}}, "a stale depth is not known"
    assert history.since(4)["requests_per_s"] == []


@pytest.mark.parametrize("position", [0, 1, 999_999])
def test_a_reader_of_another_process_or_from_long_ago_gets_all_that_is_kept(position: int) -> None:
    endpoint, history = stand_in(1), History()
    for step in range(SAMPLES + 20):
        sample(history, endpoint, step * INTERVAL_S)
    told = history.since(position)
    assert (told["from"], told["taken"]) == (20, SAMPLES + 20)
    assert isinstance(told["active"], list)
    assert len(told["active"]) == SAMPLES


def test_a_removed_backend_is_forgotten_and_a_new_one_begins_with_its_own_samples() -> None:
    endpoint, history = stand_in(2), History()
    sample(history, endpoint, 0.0)
    endpoint.fleet.remove(next(iter(endpoint.fleet)))
    endpoint.add_backend(stand_in(3).config.backends[2], True)
    sample(history, endpoint, 2.0)
    lengths = {name: len(track["depth"]) for name, track in history.since(0)["backends"].items()}  # type: ignore[attr-defined]
    assert lengths == {"127.0.0.1:8002": 2, "127.0.0.1:8003": 1}


def test_a_quantile_lies_within_its_bucket() -> None:
    histogram = Histogram(REQUEST_BOUNDS_S)
    assert quantile(histogram, histogram.counts, 0.5) is None
    for _ in range(100):
        histogram.observe(0.07)
    assert quantile(histogram, histogram.counts, 0.5) == pytest.approx(0.075)
    assert quantile(histogram, histogram.counts, 0.99) == pytest.approx(0.0995)
    histogram.observe(9999.0)
    assert quantile(histogram, histogram.counts, 1.0) == 3600.0


def test_latency_is_that_of_the_last_minute_not_of_all_time() -> None:
    endpoint, history = stand_in(1), History()
    for _ in range(1000):
        endpoint.counters.request_seconds.observe(100.0)
    for step in range(40):
        sample(history, endpoint, step * INTERVAL_S)
    endpoint.counters.request_seconds.observe(0.07)
    told = status(endpoint, history, "open", 0, 40 * INTERVAL_S)
    assert told["latency"]["request"]["count"] == 1
    assert told["latency"]["request"]["p99"] < 0.11


def test_rates_are_those_of_the_last_ten_seconds() -> None:
    endpoint, history = stand_in(1), History()
    backend = next(iter(endpoint.fleet))
    for step in range(20):
        endpoint.counters.requests += 100 if step < 10 else 20
        backend.attempts += 8
        sample(history, endpoint, step * INTERVAL_S)
    told = status(endpoint, history, "open", 0, 19 * INTERVAL_S)
    assert told["rates"]["requests"] == pytest.approx(10.0)
    assert told["backends"][0]["per_s"] == pytest.approx(4.0)
