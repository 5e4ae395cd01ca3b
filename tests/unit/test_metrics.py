"""The exposition says what was counted, in the names of the contract, and nothing of what is gone."""

from __future__ import annotations

import re
import subprocess
import sys
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from proxy.metrics import METRICS, Exposition
from proxy.outcome import Verdict
from tests.unit.stand_in import StandIn, stand_in

CONTRACT = {
    "counter": "requests responses upstream_attempts upstream_responses retries failovers rejected final_429 final_5xx "
    "timeouts incomplete_responses upstream_connections_opened upstream_connections_reused upstream_connections_failed "
    "upstream_connections_evicted backend_breaker_trips log_events_dropped",
    "gauge": "active_requests upstream_connections backend_healthy backend_queue_depth backend_breaker_state "
    "backend_draining",
    "histogram": "connect_seconds response_header_seconds request_seconds",
}


async def exposition(endpoint: StandIn, now: float | None = None) -> str:
    return (await Exposition(endpoint).render(time.monotonic() if now is None else now)).decode()


async def samples(endpoint: StandIn, now: float | None = None) -> dict[str, float]:
    """Every sample by `name{label=value,…}`."""
    found = {}
    for family in text_string_to_metric_families(await exposition(endpoint, now)):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


async def test_every_metric_of_the_contract_has_its_name_and_type() -> None:
    text = await exposition(stand_in())
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
    for kind, names in CONTRACT.items():
        for name in names.split():
            assert types[f"dd_proxy_{name}{'_total' if kind == 'counter' else ''}"] == kind
    assert {name for name in types if name.startswith("dd_proxy_")} == {metric.name for metric in METRICS}
    assert "_created" not in text


async def test_the_process_tells_its_memory_and_cpu() -> None:
    found = await samples(stand_in())
    assert found["process_resident_memory_bytes"] > 1e6
    assert {"process_cpu_seconds_total", "process_open_fds", "process_start_time_seconds"} <= set(found)


async def test_counters_are_told_as_they_are() -> None:
    endpoint = stand_in()
    c = endpoint.counters
    c.requests, c.failovers, c.final_429, c.final_5xx, c.active_requests = 9, 2, 1, 3, 4
    c.responses[200] = 5
    c.retries["http_503"] = 2
    c.rejected["spool"] = 1
    c.timeouts["read"] = 1
    c.incomplete["client"] = 6
    endpoint.log.dropped = 7
    endpoint.memo_requests.hits = 8
    backend = next(iter(endpoint.fleet))
    endpoint.fleet.lease(backend, 0.0)
    backend.responses[503] = 2
    backend.evicted["stale"] = 3
    backend.opened, backend.reused, backend.failed, backend.idle = 1, 2, 3, [object()]
    found = await samples(endpoint)
    expected = {
        "requests_total": 9,
        "responses_total{code=200}": 5,
        "active_requests": 4,
        "retries_total{reason=http_503}": 2,
        "retries_total{reason=closed}": 0,
        "failovers_total": 2,
        "rejected_total{reason=spool}": 1,
        "rejected_total{reason=queue_depth}": 0,
        "final_429_total": 1,
        "final_5xx_total": 3,
        "timeouts_total{kind=read}": 1,
        "timeouts_total{kind=connect}": 0,
        "incomplete_responses_total{side=client}": 6,
        "log_events_dropped_total": 7,
        "head_memo_hits_total{side=request}": 8,
        "upstream_attempts_total{backend=127.0.0.1:8001}": 1,
        "upstream_responses_total{backend=127.0.0.1:8001,code=503}": 2,
        "upstream_connections{backend=127.0.0.1:8001,state=active}": 1,
        "upstream_connections{backend=127.0.0.1:8001,state=idle}": 1,
        "upstream_connections_opened_total{backend=127.0.0.1:8001}": 1,
        "upstream_connections_reused_total{backend=127.0.0.1:8001}": 2,
        "upstream_connections_failed_total{backend=127.0.0.1:8001}": 3,
        "upstream_connections_evicted_total{backend=127.0.0.1:8001,reason=stale}": 3,
        "upstream_connections_evicted_total{backend=127.0.0.1:8001,reason=drain}": 0,
    }
    assert {name: found[f"dd_proxy_{name}"] for name in expected} == expected


async def test_histograms_are_cumulative_and_end_with_the_count() -> None:
    endpoint = stand_in()
    for seconds in (0.0005, 0.003, 0.003, 7000.0):
        endpoint.counters.request_seconds.observe(seconds)
    found = await samples(endpoint)
    name = "dd_proxy_request_seconds"
    assert [found[f"{name}_bucket{{le={le}}}"] for le in ("0.001", "0.0025", "0.005", "3600.0", "+Inf")] == [
        1,
        1,
        3,
        3,
        4,
    ]
    assert found[f"{name}_count"] == 4
    assert found[f"{name}_sum"] == pytest.approx(7000.0065)


async def test_gauges_of_a_backend_follow_health_breaker_and_drain() -> None:
    endpoint = stand_in(2, breaker_failure_threshold=1)
    one, two = endpoint.fleet
    endpoint.fleet.record_probe(one, True)
    endpoint.fleet.record_verdict(two, Verdict.FAILURE, False, 0.0)
    endpoint.fleet.set_draining(two, True)
    found = await samples(endpoint)
    told = {
        name: [found[f"dd_proxy_backend_{name}{{backend={b.id}}}"] for b in (one, two)]
        for name in ("healthy", "breaker_state", "draining", "breaker_trips_total")
    }
    assert told == {"healthy": [1, 0], "breaker_state": [0, 2], "draining": [0, 1], "breaker_trips_total": [0, 1]}


async def test_a_queue_depth_that_is_not_known_is_absent_not_zero() -> None:
    endpoint = stand_in(2)
    one, _ = endpoint.fleet
    endpoint.fleet.record_depth(one, 17, now=100.0)
    depths = {name: value for name, value in (await samples(endpoint, 101.0)).items() if "queue_depth{" in name}
    assert depths == {"dd_proxy_backend_queue_depth{backend=127.0.0.1:8001}": 17}
    assert not [name for name in await samples(endpoint, 120.0) if "queue_depth{" in name], "an old sample is no fact"


async def test_metrics_of_a_removed_backend_vanish() -> None:
    endpoint = stand_in(2)
    endpoint.fleet.remove(next(iter(endpoint.fleet)))
    assert set(re.findall(r'backend="([^"]*)"', await exposition(endpoint))) == {"127.0.0.1:8002"}


async def test_readiness_is_the_verdict_of_health() -> None:
    endpoint = stand_in(1)
    assert (await samples(endpoint))["dd_proxy_ready"] == 0
    endpoint.fleet.record_probe(next(iter(endpoint.fleet)), True)
    assert (await samples(endpoint))["dd_proxy_ready"] == 1
    endpoint.draining = True
    assert (await samples(endpoint))["dd_proxy_ready"] == 0


def test_the_client_library_costs_no_memory_before_the_first_scrape() -> None:
    code = "import sys, proxy.side_port; print([m for m in sys.modules if m.startswith('prometheus_client')])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
