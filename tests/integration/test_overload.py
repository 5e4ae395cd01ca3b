"""Overload: a busy replica is spared, a busy deployment says so at once, and both recover."""

from __future__ import annotations

import asyncio
import time

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
    statuses,
    wait_depth,
)
from tools.launch import Fake


async def test_a_replica_with_a_long_queue_is_not_contacted_at_all(
    start_proxy: StartProxy, replicas: list[Fake]
) -> None:
    proxy = start_proxy(replicas)
    for replica in replicas[:3]:
        replica.fault("waiting", value=500)
    wait_depth(proxy, {label(replica): 500 for replica in replicas[:3]})
    assert statuses(await at_once(proxy, 50)) == {200: 50}
    assert contacts(replicas)[:3] == [0, 0, 0]
    assert proxy.metrics().total("upstream_attempts_total") == 50


async def test_the_threshold_itself_is_not_overload(start_proxy: StartProxy, replicas: list[Fake]) -> None:
    proxy = start_proxy(replicas[:2])
    replicas[0].fault("waiting", value=128)
    replicas[1].fault("waiting", value=129)
    wait_depth(proxy, {label(replicas[0]): 128, label(replicas[1]): 129})
    assert statuses(await one_by_one(proxy, 10)) == {200: 10}
    assert contacts(replicas[:2]) == [10, 0]


async def test_when_every_queue_is_long_the_client_hears_429_and_no_replica_is_contacted(
    start_proxy: StartProxy, replicas: list[Fake]
) -> None:
    proxy = start_proxy(replicas, "--retry-after-seconds", "3")
    for replica in replicas:
        replica.fault("waiting", value=500)
    wait_depth(proxy, {label(replica): 500 for replica in replicas})
    answers = await at_once(proxy, 20)
    assert statuses(answers) == {429: 20}
    assert {answer.headers["retry-after"] for answer in answers} == {"3"}
    assert answers[0].json()["error"]["code"] == 429
    assert contacts(replicas) == [0] * 8
    metrics = proxy.metrics()
    assert metrics.by("rejected_total", "reason") == {"queue_depth": 20}
    assert metrics.total("final_429_total") == 20
    assert metrics.total("upstream_attempts_total") == 0
    for replica in replicas:
        replica.clear()
    wait_depth(proxy, {label(replica): 0 for replica in replicas})
    assert statuses(await one_by_one(proxy, 8)) == {200: 8}
    assert contacts(replicas) == [1] * 8


async def test_a_replica_that_refuses_with_429_draws_no_extra_load(
    start_proxy: StartProxy, replicas: list[Fake]
) -> None:
    proxy = start_proxy(replicas)
    replicas[0].fault("status", status=429, retry_after=5)
    began = time.monotonic()
    assert statuses(await one_by_one(proxy, 100)) == {200: 100}
    refused = contacts(replicas)[0]
    assert 1 <= refused <= 1 + (time.monotonic() - began) / 5
    metrics = proxy.metrics()
    assert metrics.by("retries_total", "reason") == {"http_429": refused}
    assert metrics.total("upstream_attempts_total") == 100 + refused
    assert metrics.total("final_429_total") == 0
    assert metrics.total("backend_breaker_state") == 0  # busy is not broken


@pytest.mark.parametrize("attempts", [1, 3, 8])
async def test_when_all_refuse_each_request_asks_that_many_and_passes_the_last_refusal_on(
    start_proxy: StartProxy, replicas: list[Fake], attempts: int
) -> None:
    proxy = start_proxy(replicas, "--max-attempts", str(attempts))
    for replica in replicas:
        replica.fault("status", status=429, retry_after=7.5)
    answers = await one_by_one(proxy, 8)
    assert statuses(answers) == {429: 8}
    assert {answer.headers["retry-after"] for answer in answers} == {"7.5"}
    assert answers[0].json()["error"]["message"] == "The replica was told to answer so"
    assert sum(contacts(replicas)) == 8 * attempts
    metrics = proxy.metrics()
    assert metrics.total("final_429_total") == 8
    assert metrics.total("retries_total", reason="http_429") == 8 * (attempts - 1)


async def test_requests_that_really_wait_in_a_replica_turn_others_away_from_it(
    start_proxy: StartProxy, start_replicas: StartReplicas
) -> None:
    replicas = start_replicas(2, "--max-concurrency", "1")
    proxy = start_proxy(replicas, "--max-waiting-requests", "1")
    busy = replicas[0]
    async with httpx.AsyncClient(base_url=busy.urls[0], timeout=30) as direct:  # load that the proxy did not send
        endless = {**BODY, "stream": True, "max_tokens": 1_000_000}
        async with direct.stream("POST", CHAT, json=endless) as holds_the_slot:
            waiting = [asyncio.create_task(direct.post(CHAT, json=BODY)) for _ in range(2)]
            await asyncio.to_thread(wait_depth, proxy, {label(busy): 2})
            assert statuses(await one_by_one(proxy, 10)) == {200: 10}
            assert contacts(replicas) == [3, 10]
            await holds_the_slot.aclose()
        assert [answer.status_code for answer in await asyncio.gather(*waiting)] == [200, 200]


@pytest.mark.parametrize("how", ["missing", "garbage", "hang"])
async def test_unreadable_queue_samples_reject_nobody(start_proxy: StartProxy, replicas: list[Fake], how: str) -> None:
    for replica in replicas:
        replica.fault("metrics", how=how)
    proxy = start_proxy(replicas, "--max-waiting-requests", "0")
    assert statuses(await at_once(proxy, 16)) == {200: 16}
    assert contacts(replicas) == [2] * 8
