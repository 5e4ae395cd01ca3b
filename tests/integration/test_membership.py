"""Replicas come and go while the endpoint serves: lost, back, added, drained, removed; and the proxy itself stops."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import httpx

from tests.integration.support import (
    BODY,
    CHAT,
    StartProxy,
    StartReplicas,
    at_once,
    chat,
    client,
    contacts,
    label,
    one_by_one,
    request_events,
    statuses,
    stream_tokens,
    wait_healthy,
)
from tools.launch import Fake, ask, wait_until


async def test_a_replica_that_dies_costs_a_few_attempts_and_no_request(
    start_proxy: StartProxy, start_replicas: StartReplicas
) -> None:
    replicas = start_replicas(8)
    proxy = start_proxy(replicas, "--breaker-cooldown-s", "600", "--breaker-max-cooldown-s", "600")
    proxy.wait_ready()
    assert statuses(await one_by_one(proxy, 16)) == {200: 16}
    dead, *others = replicas
    dead.kill()
    assert statuses(await at_once(proxy, 100)) == {200: 100}
    wait_healthy(proxy, dead, False)
    before = proxy.metrics().total("upstream_attempts_total", backend=label(dead))
    assert statuses(await at_once(proxy, 100)) == {200: 100}
    assert proxy.metrics().total("upstream_attempts_total", backend=label(dead)) == before
    assert sum(contacts(others)) == 14 + 200
    status, body = ask(proxy.port, "GET", "/health")
    assert (status, json.loads(body)) == (503, {"status": "unavailable", "backends_ready": 7, "backends": 8})


async def test_a_replica_that_comes_back_gets_traffic_again(
    start_proxy: StartProxy, start_replicas: StartReplicas, tmp_path: Path
) -> None:
    replicas = start_replicas(3)
    proxy = start_proxy(replicas, "--health-interval", "0.1")
    lost = replicas[0]
    lost.kill()
    wait_healthy(proxy, lost, False)
    with Fake(tmp_path / "again.log", "--port", str(lost.port)) as again:
        wait_healthy(proxy, again, True)
        assert statuses(await one_by_one(proxy, 30)) == {200: 30}
        assert again.routing()["requests"] == 10
    assert proxy.process.poll() is None


async def test_an_added_replica_gets_its_share(start_proxy: StartProxy, replicas: list[Fake]) -> None:
    proxy = start_proxy(replicas[:7])
    added = replicas[7]
    assert proxy.admin("POST", "/backends", {"url": added.urls[0]}) == 201
    assert proxy.admin("POST", "/backends", {"url": added.urls[0]}) == 200
    wait_healthy(proxy, added, True)
    assert statuses(await one_by_one(proxy, 80)) == {200: 80}
    assert contacts(replicas) == [10] * 8


async def test_a_draining_replica_finishes_its_stream_and_gets_nothing_new(
    start_proxy: StartProxy, replicas: list[Fake]
) -> None:
    proxy = start_proxy(replicas)
    proxy.wait_ready()
    async with client(proxy) as http:
        async with http.stream("POST", CHAT, json={**BODY, "stream": True, "max_tokens": 1500}) as answer:
            pieces = answer.aiter_text()
            received = await anext(pieces)
            [busy] = [replica for replica in replicas if replica.routing()["active"]]
            assert proxy.admin("POST", f"/backends/{label(busy)}/drain") == 200
            assert statuses(await one_by_one(proxy, 70)) == {200: 70}
            assert busy.routing()["requests"] == 1
            async for piece in pieces:
                received += piece
    assert stream_tokens(received) == 1500
    assert json.loads(ask(proxy.port, "GET", "/health")[1])["backends"] == 7
    assert proxy.admin("POST", f"/backends/{label(busy)}/resume") == 200
    assert statuses(await one_by_one(proxy, 16)) == {200: 16}
    assert busy.routing()["requests"] == 3


async def test_a_removed_replica_is_gone_and_costs_nothing(start_proxy: StartProxy, replicas: list[Fake]) -> None:
    proxy = start_proxy(replicas)
    await one_by_one(proxy, 8)
    removed = replicas[3]
    assert proxy.admin("DELETE", f"/backends/{label(removed)}?timeout=5") == 202
    wait_until(lambda: label(removed) not in proxy.backends(), what="the removal")
    assert statuses(await one_by_one(proxy, 70)) == {200: 70}
    assert contacts(replicas) == [11, 11, 11, 1, 11, 11, 11, 11]


async def test_replicas_that_close_idle_connections_lose_no_request(
    start_proxy: StartProxy, replicas: list[Fake]
) -> None:
    proxy = start_proxy(replicas)
    for replica in replicas:
        replica.fault("idle_close", seconds=0.005)
    async with client(proxy) as http:

        async def user(number: int) -> list[httpx.Response]:
            answers = []
            for turn in range(40):
                answers.append(await chat(http, max_tokens=1))
                await asyncio.sleep(0.004 + (number * 7 + turn) % 5 / 1000)  # around the moment of the close
            return answers

        answers = [answer for user in await asyncio.gather(*(user(i) for i in range(16))) for answer in user]
    assert statuses(answers) == {200: 640}
    assert sum(contacts(replicas)) == 640
    metrics = proxy.metrics()
    assert set(metrics.by("retries_total", "reason")) <= {"stale_connection"}
    assert metrics.total("backend_breaker_trips_total") == 0
    assert metrics.total("upstream_connections_evicted_total", reason="stale") > 0


async def test_sigterm_lets_active_streams_finish_and_leaves_final_counts(
    start_proxy: StartProxy, replicas: list[Fake], tmp_path: Path
) -> None:
    stats = tmp_path / "stats.json"
    proxy = start_proxy(replicas, "--stats-file", str(stats))
    async with client(proxy) as http:
        async with http.stream("POST", CHAT, json={**BODY, "stream": True, "max_tokens": 700}) as answer:
            pieces = answer.aiter_text()
            received = await anext(pieces)
            proxy.process.terminate()
            wait_until(lambda: ask(proxy.side_port, "GET", "/healthz")[0] == 503, what="the drain")
            async for piece in pieces:
                received += piece
    assert stream_tokens(received) == 700
    assert proxy.wait() == 0
    final = json.loads(stats.read_text())
    assert (final["requests"], final["responses"]) == (1, {"200": 1})
    assert not final["incomplete"]


async def test_sigquit_ends_at_once_and_leaves_final_counts(
    start_proxy: StartProxy, replicas: list[Fake], tmp_path: Path
) -> None:
    stats = tmp_path / "stats.json"
    proxy = start_proxy(replicas, "--stats-file", str(stats), "--drain-timeout", "600")
    assert statuses(await one_by_one(proxy, 3)) == {200: 3}
    async with client(proxy) as http:
        async with http.stream("POST", CHAT, json={**BODY, "stream": True, "max_tokens": 100_000}) as answer:
            await anext(answer.aiter_text())
            proxy.process.send_signal(signal.SIGQUIT)
            assert await asyncio.to_thread(proxy.wait) == 131
    final = json.loads(stats.read_text())
    assert (final["requests"], final["responses"]) == (4, {"200": 4})


async def test_a_client_that_waits_when_the_drain_ends_hears_503(
    start_proxy: StartProxy, start_replicas: StartReplicas
) -> None:
    [replica] = start_replicas(1)
    replica.fault("hang")
    proxy = start_proxy([replica], "--drain-timeout", "0.5")
    async with client(proxy) as http:
        waiting = asyncio.create_task(chat(http))
        await asyncio.to_thread(wait_until, lambda: contacts([replica]) == [1], what="the request at the replica")
        proxy.process.terminate()
        answer = await waiting
    assert (answer.status_code, answer.headers["connection"]) == (503, "close")
    assert proxy.wait() == 0
    assert [event["final_status"] for event in request_events(proxy, 1)] == [503]
