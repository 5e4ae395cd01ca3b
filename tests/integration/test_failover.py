"""Failures of replicas: the client gets an answer from another one, at a cost that is counted."""

from __future__ import annotations

import httpx
import pytest

from tests.integration.support import (
    BODY,
    CHAT,
    StartProxy,
    StartReplicas,
    at_once,
    contacts,
    label,
    one_by_one,
    request_events,
    statuses,
    wait_healthy,
)
from tools.launch import Fake, wait_until

NO_BREAKER = ("--breaker-failure-threshold", "0")
OPEN_FOR_LONG = ("--breaker-cooldown-s", "600", "--breaker-max-cooldown-s", "600")


@pytest.mark.parametrize("status", [500, 502, 503, 504])
async def test_a_5xx_is_answered_by_another_replica_with_one_more_attempt(
    start_proxy: StartProxy, replicas: list[Fake], status: int
) -> None:
    proxy = start_proxy(replicas, *NO_BREAKER)
    replicas[0].fault("status", status=status)
    assert statuses(await one_by_one(proxy, 16)) == {200: 16}
    failed = contacts(replicas)[0]
    assert failed >= 2
    assert sum(contacts(replicas)) == 16 + failed
    metrics = proxy.metrics()
    assert metrics.by("retries_total", "reason") == {f"http_{status}": failed}
    assert metrics.total("failovers_total") == failed
    assert metrics.total("upstream_responses_total", code=str(status), backend=label(replicas[0])) == failed
    assert metrics.total("final_5xx_total") == 0


async def test_the_breaker_ends_the_cost_of_a_replica_that_keeps_failing(
    start_proxy: StartProxy, replicas: list[Fake]
) -> None:
    proxy = start_proxy(replicas, *OPEN_FOR_LONG)
    replicas[0].fault("status", status=500)
    assert statuses(await one_by_one(proxy, 100)) == {200: 100}
    assert contacts(replicas)[0] == 3
    metrics = proxy.metrics()
    assert metrics.total("upstream_attempts_total") == 103
    assert metrics.total("backend_breaker_state", backend=label(replicas[0])) == 2
    assert metrics.total("backend_breaker_trips_total") == 1


async def test_a_client_error_is_passed_on_and_tried_once(start_proxy: StartProxy, replicas: list[Fake]) -> None:
    proxy = start_proxy(replicas)
    for replica in replicas:
        replica.fault("status", status=422)
    answers = await one_by_one(proxy, 8)
    assert statuses(answers) == {422: 8}
    assert contacts(replicas) == [1] * 8
    assert proxy.metrics().by("retries_total", "reason") == {}


async def test_five_replicas_that_fail_in_five_ways_lose_no_request(
    start_proxy: StartProxy, replicas: list[Fake]
) -> None:
    proxy = start_proxy(replicas, "--max-attempts", "8", "--response-timeout", "1")
    replicas[0].fault("status", status=500)
    replicas[1].fault("status", status=503)
    replicas[2].fault("status", status=429, retry_after=1)
    replicas[3].fault("reset")
    replicas[4].fault("cut", after=0)
    assert statuses(await at_once(proxy, 60)) == {200: 60}
    assert statuses(await at_once(proxy, 20, stream=True)) == {200: 20}
    events = request_events(proxy, 80)
    tried = [[attempt["backend"] for attempt in event["upstreams"]] for event in events]
    assert all(len(set(backends)) == len(backends) <= 8 for backends in tried)
    for replica in replicas[:3] + replicas[5:]:
        assert sum(backends.count(label(replica)) for backends in tried) == replica.routing()["requests"]
    assert set(proxy.metrics().by("retries_total", "reason")) <= {"http_500", "http_503", "http_429", "closed"}


async def test_three_attempts_are_the_limit_and_go_to_three_replicas(
    start_proxy: StartProxy, replicas: list[Fake]
) -> None:
    proxy = start_proxy(replicas, *NO_BREAKER)
    for replica in replicas:
        replica.fault("status", status=503)
    [answer] = await one_by_one(proxy, 1)
    assert answer.status_code == 503
    assert answer.json()["error"]["message"] == "The replica was told to answer so"
    assert contacts(replicas) == [1, 1, 1, 0, 0, 0, 0, 0]
    assert proxy.metrics().total("final_5xx_total") == 1


async def test_refused_connections_cost_attempts_but_no_request(start_proxy: StartProxy, replicas: list[Fake]) -> None:
    proxy = start_proxy(replicas, "--health-interval", "600")
    for replica in replicas:
        wait_healthy(proxy, replica, True)
    for replica in replicas[:2]:
        replica.fault("refuse")
    assert statuses(await at_once(proxy, 60)) == {200: 60}
    assert contacts(replicas)[:2] == [0, 0]
    metrics = proxy.metrics()
    assert set(metrics.by("retries_total", "reason")) == {"connect_error"}
    retried = metrics.total("retries_total")
    assert metrics.total("upstream_attempts_total") == 60 + retried
    for replica in replicas[:2]:  # a refused attempt asks the health path at once
        wait_healthy(proxy, replica, False)
    assert statuses(await one_by_one(proxy, 30)) == {200: 30}
    assert proxy.metrics().total("retries_total") == retried


async def test_when_every_replica_refuses_the_client_gets_502_after_three_attempts(
    start_proxy: StartProxy, replicas: list[Fake]
) -> None:
    proxy = start_proxy(replicas)
    for replica in replicas:
        replica.fault("refuse")
    [answer] = await one_by_one(proxy, 1)
    assert answer.status_code == 502
    assert answer.json()["error"]["code"] == 502
    assert proxy.metrics().total("upstream_attempts_total") == 3


async def test_a_reset_before_the_answer_is_repaired(start_proxy: StartProxy, replicas: list[Fake]) -> None:
    proxy = start_proxy(replicas)
    replicas[0].fault("reset", count=2)
    assert statuses(await one_by_one(proxy, 24)) == {200: 24}
    assert contacts(replicas)[0] >= 2
    metrics = proxy.metrics()
    assert metrics.total("upstream_attempts_total") == 26
    assert metrics.total("retries_total") == 2


async def test_a_replica_that_says_nothing_is_given_up_and_told_so(
    start_proxy: StartProxy, replicas: list[Fake]
) -> None:
    proxy = start_proxy(replicas, "--response-timeout", "0.5")
    replicas[0].fault("hang", count=1)
    assert statuses(await one_by_one(proxy, 8)) == {200: 8}
    wait_until(lambda: replicas[0].routing()["cancelled"] == 1, what="the replica to see the departure")
    metrics = proxy.metrics()
    assert metrics.by("retries_total", "reason") == {"response_timeout": 1}
    assert metrics.by("timeouts_total", "kind") == {"response": 1}
    assert metrics.total("upstream_attempts_total") == 9


async def test_when_every_replica_says_nothing_the_client_gets_504_after_three_attempts(
    start_proxy: StartProxy, replicas: list[Fake]
) -> None:
    proxy = start_proxy(replicas, "--response-timeout", "0.3")
    for replica in replicas:
        replica.fault("hang")
    [answer] = await one_by_one(proxy, 1)
    assert answer.status_code == 504
    assert sorted(contacts(replicas)) == [0] * 5 + [1] * 3


async def test_a_connect_timeout_moves_on(start_proxy: StartProxy, start_replicas: StartReplicas) -> None:
    paused, well = start_replicas(2)
    proxy = start_proxy([paused, well], "--response-timeout", "0.5", "--health-timeout", "0.5", *NO_BREAKER)
    paused.pause()  # the kernel accepts for it, and nobody answers
    assert statuses(await one_by_one(proxy, 3)) == {200: 3}
    assert proxy.metrics().total("upstream_attempts_total", backend=label(well)) == 3
    wait_healthy(proxy, paused, False)


async def test_post_is_not_repeated_when_the_user_says_so(start_proxy: StartProxy, replicas: list[Fake]) -> None:
    proxy = start_proxy(replicas, "--no-retry-post")
    replicas[0].fault("status", status=503, count=1)
    async with httpx.AsyncClient(base_url=proxy.url) as http:
        assert (await http.post(CHAT, json=BODY)).status_code == 503
        assert (await http.get("/v1/models")).status_code == 200
    assert contacts(replicas) == [1] + [0] * 7
