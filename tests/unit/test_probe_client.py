"""Probes over real sockets: every framing, kept and dead connections, cancellation."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from proxy.balancer import Fleet
from proxy.config import parse_options
from proxy.connector import Connector
from proxy.probe_client import BUFFER_BYTES, ProbeClient, ProbeFailed
from tests.unit.kit import chunked
from tests.unit.sockets import OK, Behave, Server, close, hang, in_pieces, on_both_loops, reset, serving, then_close
from tests.unit.stand_in import until


def client_of(port: int) -> ProbeClient:
    config, _ = parse_options({"listen_port": 0, "backend": [f"http://127.0.0.1:{port}"]}, "test")
    assert config is not None
    backend = next(iter(Fleet(config)))
    return ProbeClient(backend, Connector(config, asyncio.get_running_loop()), bytearray(BUFFER_BYTES))


@asynccontextmanager
async def probing(*behaviours: bytes | Behave) -> AsyncIterator[tuple[ProbeClient, Server]]:
    async with serving(*behaviours) as (server, port):
        client = client_of(port)
        try:
            yield client, server
        finally:
            client.close()


async def get(client: ProbeClient) -> tuple[int, bytes]:
    """Get /x, whatever pieces its body comes in."""
    body = bytearray()
    async with asyncio.timeout(10):
        status = await client.get("/x", body.extend)
    return status, bytes(body)


@pytest.mark.parametrize("size", [1, 7, 100_000])
@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (OK, b"ok"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b""),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(b"hello ", b"world"), b"hello world"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(b"hello", end=b"0\r\nT: v\r\n\r\n"),
            b"hello",
        ),
        (b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\n" + OK, b"ok"),
    ],
)
@on_both_loops
async def test_a_kept_connection_serves_one_get_after_the_other(answer: bytes, body: bytes, size: int) -> None:
    async with probing(*[in_pieces(answer, size)] * 3) as (client, server):
        for _ in range(3):
            assert await get(client) == (200, body)
        assert server.connections == 1
        assert server.requests[0].startswith(b"GET /x HTTP/1.1\r\nHost: 127.0.0.1:")


@pytest.mark.parametrize("status", [200, 204, 304, 404, 503])
@on_both_loops
async def test_the_status_is_told(status: int) -> None:
    async with probing(b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % status) as (client, _):
        assert await get(client) == (status, b"")


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.0 200 OK\r\n\r\n"])
@on_both_loops
async def test_a_body_that_ends_with_its_connection(head: bytes) -> None:
    page = b"x" * 300_000
    async with probing(then_close(head + page), then_close(head + page)) as (client, server):
        assert await get(client) == (200, page)
        assert await get(client) == (200, page)
        assert server.connections == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        OK + b"more",
    ],
)
@on_both_loops
async def test_a_connection_that_must_not_be_kept_is_closed(answer: bytes) -> None:
    async with probing(answer, answer) as (client, server):
        assert await get(client) == (200, b"ok")
        assert await get(client) == (200, b"ok")
        assert server.connections == 2


@pytest.mark.parametrize("die", [close, reset])
@on_both_loops
async def test_a_kept_connection_that_proves_dead_is_replaced(die: Behave) -> None:
    async with probing(OK, die, OK) as (client, server):
        assert await get(client) == (200, b"ok")
        assert await get(client) == (200, b"ok")
        assert server.connections == 2


@on_both_loops
async def test_a_connection_that_was_closed_while_idle_is_replaced() -> None:
    async with probing(then_close(OK), OK) as (client, server):
        assert await get(client) == (200, b"ok")
        await until(lambda: not server.open)
        assert await get(client) == (200, b"ok")
        assert server.connections == 2


@pytest.mark.parametrize("die", [close, reset])
@on_both_loops
async def test_a_fresh_connection_that_dies_is_a_failure(die: Behave) -> None:
    async with probing(die) as (client, server):
        with pytest.raises((ProbeFailed, ConnectionError)):
            await get(client)
        assert server.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX : y\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000,
    ],
)
@on_both_loops
async def test_what_is_no_response_is_a_failure_and_closes(answer: bytes) -> None:
    async with probing(answer, OK) as (client, server):
        with pytest.raises(ProbeFailed):
            await get(client)
        assert await get(client) == (200, b"ok")
        assert server.connections == 2


@pytest.mark.parametrize(
    "answer", [OK[:-1], b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", b"HTTP/1.1 2"]
)
@on_both_loops
async def test_a_response_that_is_cut_is_a_failure(answer: bytes) -> None:
    async with probing(then_close(answer)) as (client, _):
        with pytest.raises((ProbeFailed, ConnectionError)):
            await get(client)


@on_both_loops
async def test_nobody_there_is_a_failure() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there, and nobody else can
        client = client_of(taken.getsockname()[1])
        with pytest.raises(OSError):
            await get(client)


@on_both_loops
async def test_after_cancellation_the_connection_is_closed_and_the_next_probe_is_clean() -> None:
    async with probing(hang, OK) as (client, server):
        task = asyncio.ensure_future(client.get("/x"))
        await until(lambda: len(server.requests) == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: not server.open)
        assert await get(client) == (200, b"ok")
        assert server.connections == 2


@on_both_loops
async def test_bytes_nobody_asked_for_close_an_idle_connection() -> None:
    async with probing(OK, OK) as (client, server):
        assert await get(client) == (200, b"ok")
        next(iter(server.open)).write(b"HTTP/1.1 408 Timeout\r\n\r\n")
        await until(lambda: not server.open)
        assert await get(client) == (200, b"ok")
        assert server.connections == 2


@pytest.mark.parametrize("number", [10, 30_000])
@on_both_loops
async def test_interim_responses_are_dropped_however_many(number: int) -> None:
    async with probing(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * number + OK) as (client, _):
        assert await get(client) == (200, b"ok")


@pytest.mark.parametrize(
    ("begins", "goes_on"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", b"a 1\n" * 10_000),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n1\r\n" * 10_000),
        (b"", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * 1000),
    ],
    ids=["to the end of file", "chunks", "interim responses"],
)
@on_both_loops
async def test_a_response_that_never_ends_is_given_up(begins: bytes, goes_on: bytes) -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(begins)
        while True:
            writer.write(goes_on)
            await writer.drain()

    async with probing(endless, OK) as (client, _):
        with pytest.raises(ProbeFailed, match="does not end"):
            await get(client)
        assert await get(client) == (200, b"ok")
