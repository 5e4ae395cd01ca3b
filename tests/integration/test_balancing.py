"""Normal traffic: every replica gets its share, on few connections, and nothing is tried twice."""

from __future__ import annotations

import asyncio

from tests.integration.support import (
    StartProxy,
    at_once,
    chat,
    client,
    contacts,
    label,
    one_by_one,
    request_events,
    statuses,
)
from tools.launch import Fake, wait_until


async def test_idle_replicas_take_turns_and_each_request_costs_one_attempt(
    start_proxy: StartProxy, replicas: list[Fake]
) -> None:
    proxy = start_proxy(replicas)
    assert statuses(await one_by_one(proxy, 80)) == {200: 80}
    assert contacts(replicas) == [10] * 8
    metrics = proxy.metrics()
    assert metrics.by("upstream_attempts_total", "backend") == {label(replica): 10 for replica in replicas}
    assert metrics.by("retries_total", "reason") == {}
    assert metrics.total("failovers_total") == 0
    assert metrics.by("responses_total", "code") == {"200": 80}


async def test_connections_to_replicas_are_used_again(start_proxy: StartProxy, replicas: list[Fake]) -> None:
    proxy = start_proxy(replicas)
    await one_by_one(proxy, 80)
    for replica in replicas:
        counts = replica.routing()
        assert (counts["connections"], counts["reused"]) == (1, 9)
    metrics = proxy.metrics()
    assert metrics.total("upstream_connections_opened_total") == 8
    assert metrics.total("upstream_connections_reused_total") == 72
    assert metrics.total("upstream_connections", state="idle") == 8


async def test_requests_that_come_at_once_are_spread_evenly(start_proxy: StartProxy, replicas: list[Fake]) -> None:
    proxy = start_proxy(replicas)
    for replica in replicas:
        replica.fault("hang")  # so that all 64 are under way at the same time
    async with client(proxy) as http:
        calls = asyncio.gather(*(chat(http) for _ in range(64)))
        await asyncio.to_thread(wait_until, lambda: sum(contacts(replicas)) == 64)
        assert contacts(replicas) == [8] * 8
        assert proxy.metrics().total("active_requests") == 64
        for replica in replicas:
            replica.clear()
        assert statuses(await calls) == {200: 64}


async def test_a_replica_that_is_busy_gets_nothing_while_others_are_idle(
    start_proxy: StartProxy, replicas: list[Fake]
) -> None:
    proxy = start_proxy(replicas)
    busy = replicas[0]
    busy.fault("hang", count=1)
    async with client(proxy) as http:
        held = asyncio.create_task(chat(http))  # ties go to the first in configured order
        await asyncio.to_thread(wait_until, lambda: busy.routing()["active"] == 1)
        assert statuses(await one_by_one(proxy, 70)) == {200: 70}
        assert contacts(replicas) == [1] + [10] * 7
        busy.clear()
        assert (await held).status_code == 200


async def test_the_log_and_the_metrics_tell_the_same_story_as_the_replicas(
    start_proxy: StartProxy, replicas: list[Fake]
) -> None:
    proxy = start_proxy(replicas)
    await at_once(proxy, 40)
    events = request_events(proxy, 40)
    assert len(events) == 40
    assert {event["final_status"] for event in events} == {200}
    assert all(event["complete"] and not event["failover"] and event["attempts"] == 1 for event in events)
    named = [event["upstreams"][0]["backend"] for event in events]
    assert [named.count(label(replica)) for replica in replicas] == contacts(replicas)
