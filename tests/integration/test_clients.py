"""The clients that people really use, each against the running process, on uvloop and on plain asyncio."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import openai
import pytest

from tests.integration.support import BODY, CHAT, StartProxy, contacts, stream_tokens
from tools.launch import DdProxy, Fake, wait_until

BIG = "x" * 3_000_000  # does not fit in memory kept for a body (1 MiB): it is spooled
MESSAGES: Any = [{"role": "user", "content": "hello"}]


@pytest.fixture
def proxy(start_proxy: StartProxy, replicas: list[Fake], loop_command: tuple[str, ...]) -> DdProxy:
    """Give a proxy before eight replicas, the first of which fails its first request."""
    replicas[0].fault("status", status=503, count=1)
    return start_proxy(replicas, command=loop_command)


@pytest.fixture
async def sdk(proxy: DdProxy) -> AsyncIterator[openai.AsyncOpenAI]:
    """Give an OpenAI client that repeats nothing by itself."""
    async with openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def left(replicas: list[Fake]) -> int:
    """Return how many generations were stopped because their client left."""
    return sum(replica.routing()["cancelled"] for replica in replicas)


# httpx -------------------------------------------------------------------------------------------------------------


async def test_httpx_unary_stream_and_uploads(proxy: DdProxy, replicas: list[Fake]) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b'{"model": "m", "max_tokens": 3, "messages": [{"role": "user", '
        yield b'"content": "in chunks"}]}'

    async with httpx.AsyncClient(base_url=proxy.url, timeout=30) as http:
        unary = await http.post(CHAT, json=BODY)
        stream = await http.post(CHAT, json={**BODY, "stream": True, "max_tokens": 50})
        chunked = await http.post(CHAT, content=pieces())
        big = await http.post(CHAT, json={**BODY, "messages": [{"role": "user", "content": BIG}]})
        models = await http.get("/v1/models")
    assert unary.json()["usage"]["completion_tokens"] == 4
    assert stream_tokens(stream.text) == 50
    assert chunked.json()["usage"]["completion_tokens"] == 3
    assert big.json()["usage"]["prompt_tokens"] > 700_000
    assert models.json()["object"] == "list"
    assert sum(contacts(replicas)) == 5  # four requests that replicas count, one of them twice
    assert proxy.metrics().by("retries_total", "reason") == {"http_503": 1}


def test_httpx_keeps_one_connection_for_many_requests(proxy: DdProxy) -> None:
    with httpx.Client(base_url=proxy.url, timeout=30) as http:
        assert {http.post(CHAT, json=BODY).status_code for _ in range(20)} == {200}
        assert {answer.headers.get("connection") for answer in (http.post(CHAT, json=BODY),)} == {None}


# aiohttp -----------------------------------------------------------------------------------------------------------


async def test_aiohttp_unary_stream_and_departure(proxy: DdProxy, replicas: list[Fake]) -> None:
    async with aiohttp.ClientSession(proxy.url) as http:
        async with http.post(CHAT, json=BODY) as unary:
            assert (await unary.json())["usage"]["completion_tokens"] == 4
        async with http.post(CHAT, json={**BODY, "stream": True, "max_tokens": 50}) as stream:
            assert stream_tokens(await stream.text()) == 50
        async with http.post(CHAT, data=_slowly(json.dumps(BODY).encode())) as chunked:
            assert chunked.status == 200
        answers = await asyncio.gather(*(_aiohttp_status(http) for _ in range(50)))
        assert set(answers) == {200}
        async with http.post(CHAT, json={**BODY, "stream": True, "max_tokens": 100_000}) as departed:
            await departed.content.readany()
            departed.close()
        await asyncio.to_thread(wait_until, lambda: left(replicas) == 1)
    assert sum(contacts(replicas)) == 55


async def _slowly(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), 10):
        yield body[start : start + 10]


async def _aiohttp_status(http: aiohttp.ClientSession) -> int:
    async with http.post(CHAT, json=BODY) as answer:
        await answer.read()
        return answer.status


# openai ------------------------------------------------------------------------------------------------------------


async def test_openai_unary(sdk: openai.AsyncOpenAI, proxy: DdProxy) -> None:
    answers = await asyncio.gather(
        *(sdk.chat.completions.create(model="m", messages=MESSAGES, max_tokens=7) for _ in range(20))
    )
    assert {answer.choices[0].message.content for answer in answers} == {" word" * 7}
    assert [model.id async for model in sdk.models.list()]
    text = await sdk.completions.create(model="m", prompt="hello", max_tokens=2)
    assert text.choices[0].text == " word word"
    assert proxy.metrics().total("final_5xx_total") == 0


async def test_openai_stream(sdk: openai.AsyncOpenAI) -> None:
    stream = await sdk.chat.completions.create(
        model="m", messages=MESSAGES, max_tokens=40, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    words = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
    assert "".join(word or "" for word in words) == " word" * 40
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 40


async def test_openai_cancelled_stream_stops_the_replica(
    sdk: openai.AsyncOpenAI, proxy: DdProxy, replicas: list[Fake]
) -> None:
    stream = await sdk.chat.completions.create(model="m", messages=MESSAGES, max_tokens=100_000, stream=True)
    async for _ in stream:
        break
    await stream.close()
    await asyncio.to_thread(wait_until, lambda: left(replicas) == 1)
    wait_until(lambda: proxy.metrics().by("incomplete_responses_total", "side") == {"client": 1}, what="the count")


async def test_openai_hears_of_overload_as_a_rate_limit_with_its_delay(
    sdk: openai.AsyncOpenAI, replicas: list[Fake]
) -> None:
    for replica in replicas:
        replica.fault("status", status=429, retry_after=2)
    with pytest.raises(openai.RateLimitError) as caught:
        await sdk.chat.completions.create(model="m", messages=MESSAGES)
    assert caught.value.response.headers["retry-after"] == "2"
    assert sum(contacts(replicas)) == 3


# curl --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def body_file(tmp_path: Path) -> Iterator[Path]:
    """Give a body that is long enough for curl to ask first (Expect: 100-continue)."""
    path = tmp_path / "body.json"
    path.write_text(json.dumps({**BODY, "messages": [{"role": "user", "content": BIG}]}))
    yield path


def curl(*args: str) -> subprocess.CompletedProcess[str]:
    """Run curl, which must be there."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    argv = ["curl", "--silent", "--show-error", "--max-time", "30", *args]
    return subprocess.run(argv, capture_output=True, text=True)


@pytest.mark.parametrize(
    "options",
    [
        ("--header", "Expect: 100-continue", "--expect100-timeout", "25", "--verbose"),
        ("--header", "Expect:"),
        ("--http1.0",),
        ("--header", "Transfer-Encoding: chunked"),
    ],
    ids=["expect", "no-expect", "http10", "chunked"],
)
def test_curl_uploads(proxy: DdProxy, replicas: list[Fake], body_file: Path, options: tuple[str, ...]) -> None:
    done = curl(*options, "--data-binary", f"@{body_file}", proxy.url + CHAT)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["usage"]["completion_tokens"] == 4
    if "--verbose" in options:
        assert "100 Continue" in done.stderr
    assert sum(contacts(replicas)) == 2  # one failed, the next one took it


@pytest.mark.parametrize("version", ["--http1.1", "--http1.0"])
def test_curl_streams(proxy: DdProxy, version: str) -> None:
    request = json.dumps({**BODY, "stream": True, "max_tokens": 50})
    done = curl(version, "--no-buffer", "--data", request, proxy.url + CHAT)
    assert done.returncode == 0, done.stderr
    assert stream_tokens(done.stdout) == 50


def test_curl_sees_that_a_broken_stream_is_broken(proxy: DdProxy, replicas: list[Fake]) -> None:
    for replica in replicas:
        replica.clear()
        replica.fault("cut", after=2)
    request = json.dumps({**BODY, "stream": True, "max_tokens": 50})
    for version in ("--http1.1", "--http1.0"):
        done = curl(version, "--data", request, proxy.url + CHAT)
        assert done.returncode != 0, f"curl {version} took a broken stream for a whole one"
    assert sum(contacts(replicas)) == 2
