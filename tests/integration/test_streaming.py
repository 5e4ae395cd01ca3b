"""Streams: events arrive as they are made, a broken stream never looks whole, a departed client stops the replica."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.integration.support import (
    BODY,
    CHAT,
    StartProxy,
    at_once,
    chat,
    client,
    contacts,
    one_by_one,
    statuses,
    stream_tokens,
)
from tools.launch import Fake, wait_until

STREAM = {**BODY, "stream": True}


async def test_an_event_reaches_the_client_before_the_next_one_is_made(
    start_proxy: StartProxy, replicas: list[Fake], loop_command: tuple[str, ...]
) -> None:
    proxy = start_proxy(replicas, command=loop_command)
    async with client(proxy) as http, http.stream("POST", CHAT, json={**STREAM, "max_tokens": 1000}) as answer:
        received = ""
        async for piece in answer.aiter_text():
            if not received:
                assert sum(replica.routing()["tokens"] for replica in replicas) < 1000
            received += piece
    assert stream_tokens(received) == 1000


async def test_many_streams_at_once_arrive_whole_and_are_spread_evenly(
    start_proxy: StartProxy, replicas: list[Fake], loop_command: tuple[str, ...]
) -> None:
    proxy = start_proxy(replicas, command=loop_command)
    answers = await at_once(proxy, 120, stream=True, max_tokens=100)
    assert statuses(answers) == {200: 120}
    assert {stream_tokens(answer.text) for answer in answers} == {100}
    assert sum(contacts(replicas)) == 120
    metrics = proxy.metrics()
    assert metrics.total("retries_total") == 0
    assert metrics.total("incomplete_responses_total") == 0


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_a_stream_that_has_begun_is_never_begun_again(
    start_proxy: StartProxy, replicas: list[Fake], how: str, loop_command: tuple[str, ...]
) -> None:
    proxy = start_proxy(replicas, command=loop_command)
    for replica in replicas:
        replica.fault("cut", after=3, how=how)
    received = ""
    async with client(proxy) as http:
        with pytest.raises(httpx.HTTPError):
            async with http.stream("POST", CHAT, json={**STREAM, "max_tokens": 10}) as answer:
                assert answer.status_code == 200
                async for piece in answer.aiter_text():
                    received += piece
    assert received.count(" word") == 3
    assert "[DONE]" not in received
    assert sum(contacts(replicas)) == 1
    metrics = proxy.metrics()
    assert metrics.by("incomplete_responses_total", "side") == {"upstream": 1}
    assert metrics.total("retries_total") == 0


async def test_a_stream_that_dies_before_its_first_event_is_served_by_another_replica(
    start_proxy: StartProxy, replicas: list[Fake], loop_command: tuple[str, ...]
) -> None:
    proxy = start_proxy(replicas, command=loop_command)
    replicas[0].fault("cut", after=0, count=1)
    [answer] = await one_by_one(proxy, 1, stream=True)
    assert stream_tokens(answer.text) == 4
    assert contacts(replicas) == [1, 1] + [0] * 6
    assert proxy.metrics().by("retries_total", "reason") == {"closed": 1}


async def test_a_client_that_leaves_a_stream_stops_the_replica(
    start_proxy: StartProxy, replicas: list[Fake], loop_command: tuple[str, ...]
) -> None:
    proxy = start_proxy(replicas, command=loop_command)
    async with client(proxy) as http, http.stream("POST", CHAT, json={**STREAM, "max_tokens": 100_000}) as answer:
        await anext(answer.aiter_raw())
    wait_until(lambda: sum(r.routing()["cancelled"] for r in replicas) == 1, what="the replica to stop")
    assert sum(replica.routing()["tokens"] for replica in replicas) < 100_000
    assert sum(contacts(replicas)) == 1


async def test_a_client_that_leaves_before_the_answer_stops_the_replica(
    start_proxy: StartProxy, replicas: list[Fake], loop_command: tuple[str, ...]
) -> None:
    proxy = start_proxy(replicas, command=loop_command)
    for replica in replicas:
        replica.fault("hang")
    async with client(proxy) as http:
        call = asyncio.create_task(chat(http))
        await asyncio.to_thread(wait_until, lambda: sum(contacts(replicas)) == 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.to_thread(wait_until, lambda: sum(r.routing()["cancelled"] for r in replicas) == 1)
    assert sum(contacts(replicas)) == 1
    wait_until(lambda: proxy.metrics().by("responses_total", "code") == {"499": 1}, what="the request to be counted")


def test_a_stream_asks_the_replica_in_the_clients_own_words(start_proxy: StartProxy, replicas: list[Fake]) -> None:
    proxy = start_proxy(replicas[:1])
    headers = {"X-Request-Id": "tell-me-apart"}
    answer = httpx.post(proxy.url + CHAT, json=STREAM, headers=headers)
    assert '"id":"chatcmpl-tell-me-apart"' in answer.text
    assert "server" in answer.headers  # the replica's own; the proxy adds none
    assert answer.headers["x-replica"] == f"127.0.0.1:{replicas[0].port}"
