"""The little HTTP client of health probes, against real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from runtime.probe import get, split_authority
from runtime.services import authority
from tests.runtime.lifecycle import free_ports

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def answer_of(serve: Serve, timeout_s: float = 5, *, body: bool = False) -> tuple[int | None, str, bytes, bool]:
    """Probe a server that behaves as `serve` says."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        answer = await get(f"127.0.0.1:{port}", "/health", timeout_s, body=body)
    return answer.status, answer.reason, answer.body, answer.timed_out


def saying(response: bytes) -> Serve:
    """Serve one fixed response."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1:")
        writer.write(response)
        await writer.drain()
        writer.close()

    return serve


@pytest.mark.parametrize(
    ("response", "status", "reason"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", 200, "status 200"),
        (b"HTTP/1.0 503 Busy\r\n\r\n", 503, "status 503"),
        (b"HTTP/1.1 204\r\n\r\n", 204, "status 204"),
        (b"SSH-2.0-OpenSSH\r\n", None, "the answer is not HTTP"),
        (b"\r\n", None, "the answer is not HTTP"),
        (b"", None, "connection closed"),
        (b"HTTP/1.1 2", None, "connection closed"),
    ],
)
async def test_every_answer_becomes_a_status_or_a_reason(response: bytes, status: int | None, reason: str) -> None:
    assert (await answer_of(saying(response)))[:2] == (status, reason)


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello and more",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nhello",
    ],
)
async def test_a_body_is_read_however_it_is_framed(response: bytes) -> None:
    assert (await answer_of(saying(response), body=True))[2] == b"hello"


async def test_silence_is_told_from_refusal() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    assert (await answer_of(silent, 0.2))[1:] == ("no answer within 0.2 s", b"", True)
    refused = await get(f"127.0.0.1:{free_ports(1)}", "/health", 5)
    assert (refused.status, refused.reason, refused.timed_out) == (None, "connection refused", False)


def test_addresses_are_split_and_joined() -> None:
    for text, parts in (("10.0.0.1:80", ("10.0.0.1", 80)), ("[::1]:80", ("::1", 80)), ("node1:80", ("node1", 80))):
        assert split_authority(text) == parts
        assert authority(*parts) == text
