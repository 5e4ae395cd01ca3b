"""What the integration tests share: requests, their answers, and what replicas and proxy counted.

Each test says what a client saw and what it cost: who was contacted how often.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import httpx

from tools.launch import DdProxy, Fake, wait_until

CHAT = "/v1/chat/completions"
BODY = {"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": "hello"}]}

StartProxy = Callable[..., DdProxy]
StartReplicas = Callable[..., list[Fake]]


def client(proxy: DdProxy, timeout_s: float = 30.0) -> httpx.AsyncClient:
    """Return a client of the endpoint that puts no limit on its connections."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx.AsyncClient(base_url=proxy.url, timeout=timeout_s, limits=limits)


async def chat(http: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    """Send one chat request."""
    return await http.post(CHAT, json={**BODY, **fields})


async def one_by_one(proxy: DdProxy, number: int, **fields: Any) -> list[httpx.Response]:
    """Send requests one after the other on one client connection."""
    async with client(proxy) as http:
        return [await chat(http, **fields) for _ in range(number)]


async def at_once(proxy: DdProxy, number: int, **fields: Any) -> list[httpx.Response]:
    """Send requests all at once."""
    async with client(proxy) as http:
        return list(await asyncio.gather(*(chat(http, **fields) for _ in range(number))))


def statuses(answers: Sequence[httpx.Response]) -> dict[int, int]:
    """Return how often each status came."""
    return dict(Counter(answer.status_code for answer in answers))


def contacts(replicas: Sequence[Fake]) -> list[int]:
    """Return how many requests each replica was sent."""
    return [replica.routing()["requests"] for replica in replicas]


def label(replica: Fake) -> str:
    """Return the replica's name in metrics and in the admin API."""
    return f"127.0.0.1:{replica.port}"


def events(text: str) -> list[Any]:
    """Return the payloads of a whole event stream, which [DONE] must close."""
    payloads = [event.removeprefix("data: ") for event in text.split("\n\n") if event]
    assert payloads[-1] == "[DONE]", f"the stream is not whole: it ends with {payloads[-1]!r}"
    return [json.loads(payload) for payload in payloads[:-1]]


def stream_tokens(text: str) -> int:
    """Return the number of tokens in a whole event stream."""
    return sum(bool(e["choices"] and e["choices"][0]["delta"].get("content")) for e in events(text))


def wait_depth(proxy: DdProxy, depths: dict[str, float]) -> None:
    """Wait until the proxy has sampled these queue depths."""
    wait_until(
        lambda: all(proxy.metrics().total("backend_queue_depth", backend=name) == n for name, n in depths.items()),
        what=f"queue depths {depths}",
    )


def wait_healthy(proxy: DdProxy, replica: Fake, healthy: bool) -> None:
    """Wait until the proxy has this opinion of a replica."""
    wait_until(
        lambda: proxy.backends()[label(replica)]["healthy"] is healthy, what=f"healthy={healthy} for {label(replica)}"
    )


def free_ports(number: int) -> int:
    """Return the first of a run of ports that are free now."""
    for first in range(21000, 30000, number):
        try:
            for port in range(first, first + number):
                with socket.socket() as sock:
                    sock.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise AssertionError("no free ports")


def request_events(proxy: DdProxy, number: int) -> list[dict[str, Any]]:
    """Return the log's request events, once there are so many."""
    wait_until(lambda: len(_requests(proxy)) >= number, what=f"{number} request events in the log")
    return _requests(proxy)


def _requests(proxy: DdProxy) -> list[dict[str, Any]]:
    return [event for event in proxy.events() if event["event"] == "request"]
