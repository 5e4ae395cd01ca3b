"""A client that reads late gets its whole answer or a reset, never the ordinary end of a part; real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from proxy.config import parse_options
from proxy.downstream import Downstream
from proxy.endpoint import Endpoint
from tests.unit.kit import Log, chunked, complete_responses, request, response, rig
from tests.unit.sockets import hang, on_both_loops, serving
from tests.unit.stand_in import until

# More than the sockets hold, so that the end waits in the proxy; not so much that its upstream is held back.
LARGE = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(*[b"x" * 20_000] * 4)
SMALL_BUFFER = 16 * 1024  # of the client's and the proxy's socket


@asynccontextmanager
async def endpoint_before(
    port: int, *, buffer: int = SMALL_BUFFER, **options: object
) -> AsyncIterator[tuple[Endpoint, Log, Any]]:
    """Run an endpoint on a real port before one backend; gives its address too."""
    loop = asyncio.get_running_loop()
    config, errors = parse_options({"listen_port": 0, "backend": [f"http://127.0.0.1:{port}"]} | options, "test")
    assert config is not None, errors
    log = Log()
    endpoint = Endpoint(config, log.as_access_log(), loop)
    endpoint.start_sweeping()
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)  # its connections inherit it
    server = await loop.create_server(lambda: Downstream(endpoint), sock=sock)
    try:
        yield endpoint, log, sock.getsockname()
    finally:
        server.close()
        endpoint.cut_all()
        await until(lambda: not endpoint.downstreams)
        endpoint.stop_sweeping()
        endpoint.departures.close()


async def connect(address: Any) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, address)
    return sock


async def ask_and_read_nothing(sock: socket.socket, endpoint: Endpoint, log: Log) -> None:
    """Send a request as HTTP/1.0, and wait until the proxy is done with its answer, of which it still holds a part."""
    await asyncio.get_running_loop().sock_sendall(sock, b"GET / HTTP/1.0\r\n\r\n")
    await until(lambda: len(log.records) == 1)
    [downstream] = endpoint.downstreams
    assert downstream.transport.get_write_buffer_size() > 0, "the answer left the proxy too early for this test"


async def read_all(sock: socket.socket) -> int:
    """Read to an ordinary end; raises ConnectionResetError at another one."""
    loop, size = asyncio.get_running_loop(), 0
    async with asyncio.timeout(30):
        while data := await loop.sock_recv(sock, 65536):
            size += len(data)
    return size


@pytest.mark.parametrize("end", ["time", "drain"])
@on_both_loops
async def test_an_http10_client_that_reads_too_late_sees_a_reset(end: str) -> None:
    limit = 0.5 if end == "time" else 60
    async with serving(LARGE) as (_, port), endpoint_before(port, client_timeout=limit) as (endpoint, log, address):
        with await connect(address) as sock:
            await ask_and_read_nothing(sock, endpoint, log)
            if end == "drain":
                endpoint.begin_drain()
                endpoint.cut_all()
            await until(lambda: not endpoint.downstreams)
            with pytest.raises(ConnectionResetError):
                await read_all(sock)
            assert log.records[0]["final_status"] == 200


@on_both_loops
async def test_an_http10_client_that_reads_in_time_sees_an_ordinary_end() -> None:
    async with serving(LARGE) as (_, port), endpoint_before(port) as (endpoint, log, address):
        with await connect(address) as sock:
            await ask_and_read_nothing(sock, endpoint, log)
            assert await read_all(sock) > 80_000
            assert log.records[0]["complete"] is True


@on_both_loops
async def test_a_client_that_closes_behind_a_long_pipeline_is_noticed() -> None:
    async with serving(hang) as (server, port), endpoint_before(port, max_head=4096) as (endpoint, log, address):
        sock = await connect(address)
        await asyncio.get_running_loop().sock_sendall(sock, request(b"first"))
        await until(lambda: len(server.requests) == 1)
        await asyncio.get_running_loop().sock_sendall(sock, request(b"y" * 6000))
        [downstream] = endpoint.downstreams
        await until(lambda: not downstream.transport.is_reading())
        sock.close()
        await until(lambda: not server.open and len(log.records) == 1)
        assert [r["final_status"] for r in log.records] == [499]
        assert endpoint.active_requests() == 0


@on_both_loops
async def test_a_client_that_has_closed_already_when_its_pipeline_is_too_long_is_noticed() -> None:
    async with serving(hang) as (server, port), endpoint_before(port, max_head=4096) as (_, log, address):
        with await connect(address) as sock:
            await asyncio.get_running_loop().sock_sendall(sock, request(b"first") + request(b"y" * 6000))
        await until(lambda: len(log.records) == 1 and not server.open)
        assert [r["final_status"] for r in log.records] == [499]


@on_both_loops
async def test_a_client_that_reads_slowly_and_steadily_gets_its_whole_answer() -> None:
    """However long it takes, and although the end of its exchange lies back by more than the client timeout."""
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(*[b"x" * 20_000] * 9)
    async with serving(answer) as (_, port), endpoint_before(port, client_timeout=0.8) as (_, log, address):
        with await connect(address) as sock:
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(sock, b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
            received = b""
            async with asyncio.timeout(30):
                while not received.endswith(b"0\r\n\r\n"):
                    piece = await loop.sock_recv(sock, 4000)
                    assert piece
                    received += piece
                    await asyncio.sleep(0.1)
            assert log.records[0]["complete"] is True


@on_both_loops
async def test_a_client_that_reads_slowly_and_steadily_is_not_taken_for_silent() -> None:
    """The kernel tells of room only when a third of its buffer is free: until then this client seems to stand still."""
    endless = b"HTTP/1.1 200 OK\r\nContent-Length: 8000000\r\n\r\n" + b"x" * 8_000_000
    async with (
        serving(endless) as (_, port),
        endpoint_before(port, buffer=1 << 20, read_timeout=1.0) as (endpoint, log, address),
    ):
        with await connect(address) as sock:
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(sock, b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
            await until(lambda: any(downstream.paused for downstream in endpoint.downstreams))
            for _ in range(80):
                assert await loop.sock_recv(sock, 4000)
                await asyncio.sleep(0.02)
            assert log.records == []
        await until(lambda: len(log.records) == 1)


# ---------------------------------------------------------------------------------------------------------- in memory


@pytest.mark.parametrize("behind", [b"", b"\r\n", b"GET / HTTP/1.1\r\n"])
def test_bytes_behind_a_closing_request_do_not_cut_its_answer_short(behind: bytes) -> None:
    with rig(1, client_timeout=30) as r:
        client = r.client()
        client.stop_taking()
        client.send(request(b"{}", extra=b"Connection: close\r\n") + behind)
        r.accept().send(response(b"z" * 5000))
        r.loop.advance(20.0)
        client.go_on_taking()
        assert not client.transport.aborted
        assert complete_responses(client.received(), ended=True) == [(200, b"z" * 5000)]
        assert client.is_gone() or client.transport.half_closed


def test_a_refused_client_that_never_reads_is_let_go() -> None:
    with rig(1, client_timeout=30) as r:
        client = r.client()
        client.stop_taking()
        client.send(request(b"{}", extra=b"Connection: close\r\n") + b"\r\n")
        r.accept().send(response(b"z" * 5000))
        r.loop.advance(40.0)
        assert client.transport.aborted
        assert client.transport.socket.options != [], "not a reset"


def test_a_client_that_takes_nothing_is_the_one_to_blame() -> None:
    with rig(1, read_timeout=20) as r:
        client = r.client()
        client.send(request(b"{}"))
        replica = r.accept()
        client.stop_taking()
        replica.send(b"HTTP/1.1 200 OK\r\nContent-Length: 640000\r\n\r\n", b"x" * 200_000)
        r.loop.advance(25.0)
        assert replica.is_gone()
        counters = r.endpoint.counters
        assert {kind: n for kind, n in counters.timeouts.items() if n} == {"client": 1}
        assert (counters.incomplete["client"], counters.incomplete["upstream"]) == (1, 0)
        assert r.records[0]["upstreams"][0]["outcome"] == 200
        assert r.backends[0].failures == 0
