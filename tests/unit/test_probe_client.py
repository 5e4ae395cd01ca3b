"""Probes over real sockets: every framing, kept and dead connections, late answers, limits."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trustme

from proxy import collector as collecting
from proxy.balancer import Fleet
from proxy.collector import BUFFER_BYTES, PATIENCE_S, Collector
from proxy.config import parse_options
from proxy.connector import Connector
from proxy.probe_client import MIN_COLLECTED_LIMIT_S, ProbeClient, ProbeFailed, _Connection
from proxy.probe_response import ResponseReader
from tests.unit.kit import chunked
from tests.unit.sockets import OK, Behave, Server, close, hang, in_pieces, on_both_loops, reset, serving, then_close
from tests.unit.stand_in import until

LIMIT_S = 10.0


class Client(ProbeClient):
    """Counts how often the loop had to limit the time of a request, since the collector could not answer it."""

    lates = 0

    def overdue(self) -> None:
        self.lates += self._timer is None
        super().overdue()


class Asking:
    """A client with its collector, and an asker that remembers what it was told."""

    def __init__(
        self, port: int, limit_s: float = LIMIT_S, collector: Collector | None = None, scheme: str = "http"
    ) -> None:
        options = {"listen_port": 0, "upstream_insecure": True, "backend": [f"{scheme}://127.0.0.1:{port}"]}
        config, _ = parse_options(options, "test")
        assert config is not None
        loop = asyncio.get_running_loop()
        self.collector = collector or Collector(loop)
        backend = next(iter(Fleet(config)))
        self.client = Client(backend, "/x", limit_s, self, Connector(config, loop), self.collector)
        self.page = bytearray()
        self.results: list[int | Exception] = []

    def body(self, piece: memoryview) -> None:
        self.page += piece

    def answered(self, result: int | Exception) -> None:
        self.results.append(result)

    def ask(self) -> None:
        self.page.clear()
        self.results.clear()
        self.client.lates = 0
        self.collector.poll()
        self.client.start(asyncio.get_running_loop().time())

    async def close(self) -> None:
        self.client.close()
        await self.collector.close()


@asynccontextmanager
async def probing(*behaviours: bytes | Behave, limit_s: float = LIMIT_S) -> AsyncIterator[tuple[Asking, Server]]:
    async with serving(*behaviours) as (server, port):
        asking = Asking(port, limit_s)
        try:
            yield asking, server
        finally:
            await asking.close()


async def get(asking: Asking) -> tuple[int, bytes]:
    """Get /x, whatever pieces its body comes in."""
    asking.ask()
    await until(lambda: bool(asking.results))
    [result] = asking.results
    if isinstance(result, Exception):
        raise result
    return result, bytes(asking.page)


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
        asking = Asking(taken.getsockname()[1])
        with pytest.raises(OSError):
            await get(asking)
        await asking.close()


@on_both_loops
async def test_after_a_close_nothing_is_told_and_the_next_probe_is_clean() -> None:
    async with probing(hang, OK) as (client, server):
        client.ask()
        await until(lambda: len(server.requests) == 1)
        client.client.close()
        await until(lambda: not server.open)
        assert client.results == []
        assert await get(client) == (200, b"ok")
        assert server.connections == 2


@on_both_loops
async def test_bytes_nobody_asked_for_close_an_idle_connection() -> None:
    async with probing(OK, OK) as (client, server):
        assert await get(client) == (200, b"ok")
        next(iter(server.open)).write(b"HTTP/1.1 408 Timeout\r\n\r\n")

        def gone() -> bool:
            client.collector.poll()
            return not server.open

        await until(gone)
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


# ---------------------------------------------------------------------- kept connections, which the collector reads


def then(*answers: bytes | float) -> Behave:
    """Write bytes, with pauses of so many seconds."""

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            if isinstance(answer, float):
                await asyncio.sleep(answer)
            else:
                writer.write(answer)
                await writer.drain()

    return behave


def sized(page: bytes, status: int = 200) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(page), page)


@on_both_loops
async def test_a_prompt_answer_on_a_kept_connection_is_read_by_the_collector() -> None:
    async with probing(OK, OK, sized(b"another"), OK) as (client, server):
        assert await get(client) == (200, b"ok")
        assert client.client.lates == 1  # it had to be dialled
        for page in (b"ok", b"another", b"ok"):
            assert await get(client) == (200, page)
            assert client.client.lates == 0
        assert server.connections == 1


@pytest.mark.parametrize("stale", [b"HTTP/1.1 408 Timeout\r\nContent-Length: 0\r\n\r\n", b"x", None])
@on_both_loops
async def test_what_came_on_an_idle_connection_is_never_taken_for_an_answer(stale: bytes | None) -> None:
    async with probing(OK, OK) as (client, server):
        assert await get(client) == (200, b"ok")
        [writer] = server.open
        if stale is None:
            writer.close()
            await writer.wait_closed()
        else:
            writer.write(stale)
            await writer.drain()
        assert await get(client) == (200, b"ok")
        assert server.connections == 2


@on_both_loops
async def test_an_answer_that_comes_after_all_looks() -> None:
    async with probing(OK, then(PATIENCE_S * 2, OK), OK) as (client, server):
        assert await get(client) == (200, b"ok")
        assert await get(client) == (200, b"ok")
        assert client.client.lates == 1
        assert await get(client) == (200, b"ok")
        assert client.client.lates == 0  # the collector reads it again
        assert server.connections == 1


@pytest.mark.parametrize("first", [b"", b"HTTP/1.1 2", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no"])
@on_both_loops
async def test_an_answer_of_which_a_look_finds_a_part(first: bytes) -> None:
    async with probing(OK, then(first, PATIENCE_S / 2, OK[len(first) :]), OK) as (client, server):
        for _ in range(3):
            assert await get(client) == (200, b"ok")
        assert server.connections == 1


@on_both_loops
async def test_a_page_that_is_larger_than_the_buffer() -> None:
    pages = [bytes([n]) * (3 * BUFFER_BYTES + n) for n in (1, 2, 3)]
    async with probing(*[sized(page) for page in pages]) as (client, server):
        for page in pages:
            assert await get(client) == (200, page)
        assert server.connections == 1


@pytest.mark.parametrize("part", [b"", OK[:-1]])
@on_both_loops
async def test_a_kept_connection_that_ends_late_or_within_an_answer(part: bytes) -> None:
    """Without a byte of the answer another connection is made; with one, the probe has failed."""
    async with probing(OK, then(part, PATIENCE_S * 2, b""), OK) as (client, server):
        assert await get(client) == (200, b"ok")
        [writer] = server.open
        client.ask()
        await until(lambda: len(server.requests) == 2)
        await asyncio.sleep(PATIENCE_S * 1.5)
        writer.transport.abort()
        await until(lambda: bool(client.results))
        if part:
            assert isinstance(client.results[0], (ProbeFailed, ConnectionError))
        else:
            assert client.results == [200]


@on_both_loops
async def test_a_request_that_the_socket_takes_in_part_is_sent_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    async with probing(OK, OK, OK) as (client, server):
        assert await get(client) == (200, b"ok")
        monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:5]))
        assert await get(client) == (200, b"ok")
        monkeypatch.undo()
        assert await get(client) == (200, b"ok")
        assert server.connections == 1
        assert len(set(server.requests)) == 1


@on_both_loops
async def test_a_request_that_the_socket_refuses_goes_to_another_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async with probing(OK, OK) as (client, server):
        assert await get(client) == (200, b"ok")
        [writer] = server.open
        monkeypatch.setattr(client.collector, "poll", lambda: None)  # so that the end is not seen before
        writer.transport.abort()
        await until(lambda: not server.open)
        assert await get(client) == (200, b"ok")
        assert server.connections == 2


@pytest.mark.parametrize("limit_s", [0.05, MIN_COLLECTED_LIMIT_S + 0.05])
@pytest.mark.parametrize("kept", [False, True])
@on_both_loops
async def test_an_answer_that_takes_too_long_is_given_up_in_time(limit_s: float, kept: bool) -> None:
    async with probing(*[OK] * kept, hang, OK, limit_s=limit_s) as (client, server):
        if kept:
            assert await get(client) == (200, b"ok")
        began = asyncio.get_running_loop().time()
        with pytest.raises(TimeoutError):
            await get(client)
        assert asyncio.get_running_loop().time() - began >= limit_s - 0.002
        await until(lambda: not server.open)
        assert await get(client) == (200, b"ok")


@on_both_loops
async def test_a_failing_asker_does_not_keep_the_others_from_their_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: seen.append(context["exception"]))
    async with serving(OK, OK, OK, OK) as (_, port):
        first = Asking(port)
        second = Asking(port, collector=first.collector)
        await get(first)
        await get(second)
        error = RuntimeError("said by the test")

        def fail(result: int | Exception) -> None:
            raise error

        monkeypatch.setattr(first, "answered", fail)
        first.ask()
        second.ask()
        await until(lambda: second.results == [200])
        assert seen == [error]
        first.client.close()
        await second.close()


@on_both_loops
async def test_many_answers_are_read_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "READS", 2)
    async with serving(*[OK] * 10) as (_, port):
        shared = Collector(asyncio.get_running_loop())
        clients = [Asking(port, collector=shared) for _ in range(5)]
        for _ in range(2):
            for client in clients:
                client.ask()
            await until(lambda: all(client.results == [200] for client in clients))
        for client in clients:
            client.client.close()
        await shared.close()


@on_both_loops
async def test_an_answer_that_cannot_be_read_ends_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    async with probing(OK, OK, OK) as (client, _):
        assert await get(client) == (200, b"ok")
        reported: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        with monkeypatch.context() as patch:
            patch.setattr(ResponseReader, "feed", lambda self, nbytes: 1 / 0)
            with pytest.raises(ProbeFailed):
                await get(client)
        assert isinstance(reported[0]["exception"], ZeroDivisionError)
        assert await get(client) == (200, b"ok")


@on_both_loops
async def test_a_process_that_was_held_up_reads_what_has_come_before_it_gives_up() -> None:
    async with probing(OK, OK, limit_s=0.2) as (client, server):
        assert await get(client) == (200, b"ok")
        peer = next(iter(server.open))
        client.ask()
        peer.write(OK)
        time.sleep(0.5)
        await until(lambda: bool(client.results))
        assert client.results == [200]


@on_both_loops
async def test_a_tls_connection_that_has_ended_is_freed_without_the_collector_of_cycles() -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
        client = Asking(server.sockets[0].getsockname()[1], scheme="https")
        gc.collect()
        gc.disable()
        try:
            assert await get(client) == (200, b"ok")
            await until(lambda: not any(isinstance(one, _Connection) for one in gc.get_objects()))
        finally:
            gc.enable()
        await client.close()
