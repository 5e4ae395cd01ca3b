"""A backend on a real port whose answers a test lays out beforehand."""

from __future__ import annotations

import asyncio
import functools
import inspect
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import uvloop

from tests.unit.kit import cut
from tests.unit.stand_in import until

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Behave = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def on_both_loops(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test on both event loops that the proxy may run on."""

    @functools.wraps(test)
    def run(new_loop: Callable[[], asyncio.AbstractEventLoop], **fixtures: object) -> None:
        async def main() -> None:
            await test(**fixtures)

        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main())

    known = inspect.signature(test)
    added = inspect.Parameter("new_loop", inspect.Parameter.KEYWORD_ONLY)
    run.__dict__["__signature__"] = known.replace(parameters=[*known.parameters.values(), added])
    loops = [asyncio.new_event_loop, uvloop.new_event_loop]
    both: Callable[..., None] = pytest.mark.parametrize("new_loop", loops, ids=["asyncio", "uvloop"])(run)
    return both


class Server:
    """A backend on a real port; each request that comes is answered by the next behaviour."""

    def __init__(self, *behaviours: bytes | Behave) -> None:
        self.behaviours = list(behaviours)
        self.connections = 0
        self.requests: list[bytes] = []
        self.open: set[asyncio.StreamWriter] = set()

    def next_behaviour(self, request: bytes) -> bytes | Behave:
        """Say how a request is answered."""
        return self.behaviours.pop(0)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open.add(writer)
        try:
            while not writer.is_closing() and not reader.at_eof():
                self.requests.append(await reader.readuntil(b"\r\n\r\n"))
                behaviour = self.next_behaviour(self.requests[-1])
                if isinstance(behaviour, bytes):
                    writer.write(behaviour)
                else:
                    await behaviour(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open.discard(writer)
            writer.close()


async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    sock: socket.socket = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


def then_close(data: bytes) -> Behave:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        writer.close()

    return behave


def in_pieces(data: bytes, size: int) -> Behave:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in cut(data, [size]):
            writer.write(piece)
            await writer.drain()

    return behave


@asynccontextmanager
async def serving(*behaviours: bytes | Behave) -> AsyncIterator[tuple[Server, int]]:
    """Run a server; gives it and its port. It ends when all its connections have ended."""
    server = Server(*behaviours)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    try:
        yield server, listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
        await until(lambda: not server.open)
