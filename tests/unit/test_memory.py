"""The connections in memory behave as those of asyncio and uvloop do, in all that the data path relies on."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import uvloop

from tests.unit.memory import Loop, Peer, Transport
from tests.unit.stand_in import until


class Recorder(asyncio.Protocol):
    """Writes down what happens to it; `keep_open` is its answer to an end of file."""

    def __init__(self, keep_open: bool) -> None:
        self.keep_open = keep_open
        self.events: list[str] = []
        self.data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.data += data

    def eof_received(self) -> bool:
        self.events.append("eof")
        return self.keep_open

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, exc: BaseException | None) -> None:
        self.events.append(f"lost {type(exc).__name__}")

    def lost(self) -> bool:
        return self.events != [] and self.events[-1].startswith("lost")


class Wire:
    """The peer's end of a connection to a Recorder."""

    def __init__(self, near: Recorder) -> None:
        self.near = near

    async def settle(self, done: Callable[[], bool]) -> None:
        await until(done)

    async def send(self, data: bytes) -> None: ...

    async def eof(self) -> None: ...

    async def reset(self) -> None: ...

    async def read_all(self) -> bytes:
        """Read until the end of file."""
        raise NotImplementedError


class MemoryWire(Wire):
    def __init__(self, near: Recorder) -> None:
        super().__init__(near)
        self.peer = Peer(Transport(Loop(), near))
        near.connection_made(self.peer.transport)
        self.peer.stop_taking()

    async def settle(self, done: Callable[[], bool]) -> None:
        self.peer.loop.run()
        assert done(), self.near.events

    async def send(self, data: bytes) -> None:
        self.peer.send(data)

    async def eof(self) -> None:
        self.peer.eof()

    async def reset(self) -> None:
        self.peer.reset()

    async def read_all(self) -> bytes:
        self.peer.go_on_taking()
        return self.peer.received()


class SocketWire(Wire):
    def __init__(self, near: Recorder, far: socket.socket) -> None:
        super().__init__(near)
        self.far = far
        self.loop = asyncio.get_running_loop()

    async def send(self, data: bytes) -> None:
        await self.loop.sock_sendall(self.far, data)

    async def eof(self) -> None:
        self.far.shutdown(socket.SHUT_WR)

    async def reset(self) -> None:
        self.far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.far.close()

    async def read_all(self) -> bytes:
        data = b""
        while piece := await self.loop.sock_recv(self.far, 1 << 20):
            data += piece
        return data


@asynccontextmanager
async def wire(kind: str, keep_open: bool) -> AsyncIterator[Wire]:
    near = Recorder(keep_open)
    if kind == "memory":
        yield MemoryWire(near)
        return
    with socket.create_server(("127.0.0.1", 0)) as server:
        far = socket.create_connection(server.getsockname())
        sock, _ = server.accept()
    far.setblocking(False)
    sock.setblocking(False)
    await asyncio.get_running_loop().connect_accepted_socket(lambda: near, sock)
    try:
        yield SocketWire(near, far)
    finally:
        far.close()
        if not near.lost():
            near.transport.abort()
            await until(near.lost)


Scenario = Callable[[Wire], Awaitable[None]]


async def bytes_then_end(w: Wire) -> None:
    await w.send(b"hello")
    await w.eof()
    await w.settle(lambda: "lost NoneType" in w.near.events)
    assert (w.near.data, w.near.events) == (b"hello", ["eof", "lost NoneType"])


async def answer_after_the_end(w: Wire) -> None:
    w.near.keep_open = True
    await w.eof()
    await w.settle(lambda: w.near.events == ["eof"])
    w.near.transport.write(b"late")
    w.near.transport.close()
    assert await w.read_all() == b"late"
    await w.settle(lambda: w.near.events == ["eof", "lost NoneType"])


async def reset(w: Wire) -> None:
    await w.reset()
    await w.settle(lambda: w.near.events == ["lost ConnectionResetError"])
    assert w.near.transport.is_closing()


async def abort(w: Wire) -> None:
    w.near.transport.write(b"x")
    w.near.transport.abort()
    w.near.transport.abort()
    w.near.transport.write(b"never")  # is no error yet
    await w.settle(lambda: w.near.events == ["lost NoneType"])


async def writing_after_the_loss_is_an_error_at_most(w: Wire) -> None:
    w.near.transport.abort()
    await w.settle(lambda: w.near.events == ["lost NoneType"])
    acts: list[Callable[[], None]] = [lambda: w.near.transport.write(b"never"), w.near.transport.write_eof]
    for act in acts:
        try:
            act()
        except RuntimeError:
            continue
        assert not isinstance(w, MemoryWire), "the strictest of the three stands for all"


async def close_sends_what_is_buffered(w: Wire) -> None:
    w.near.transport.write(b"x" * 20_000_000)
    await w.settle(lambda: w.near.events == ["pause"])
    assert w.near.transport.get_write_buffer_size() > 0
    w.near.transport.close()
    assert len(await w.read_all()) == 20_000_000
    await w.settle(lambda: w.near.events[-1] == "lost NoneType")


async def writing_resumes_when_the_peer_has_taken_it(w: Wire) -> None:
    w.near.transport.write(b"x" * 20_000_000)
    reading: Any = asyncio.ensure_future(w.read_all())
    if isinstance(w, MemoryWire):
        await reading
    await w.settle(lambda: w.near.events == ["pause", "resume"])
    reading.cancel()


async def nothing_arrives_while_reading_is_paused(w: Wire) -> None:
    w.near.transport.pause_reading()
    await w.send(b"hello")
    assert w.near.data == b""
    w.near.transport.resume_reading()
    await w.settle(lambda: w.near.data == b"hello")


async def half_closing_lets_bytes_in(w: Wire) -> None:
    w.near.transport.write(b"answer")
    w.near.transport.write_eof()
    await w.send(b"more")
    await w.settle(lambda: w.near.data == b"more")
    assert w.near.events == []


SCENARIOS = [
    *(bytes_then_end, answer_after_the_end, reset, abort, writing_after_the_loss_is_an_error_at_most),
    *(close_sends_what_is_buffered, writing_resumes_when_the_peer_has_taken_it),
    *(nothing_arrives_while_reading_is_paused, half_closing_lets_bytes_in),
]
LOOPS = {"memory": asyncio.new_event_loop, "asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("kind", LOOPS)
def test_every_kind_of_connection_does_the_same(scenario: Scenario, kind: str) -> None:
    async def main() -> None:
        async with wire(kind, keep_open=False) as w:
            await scenario(w)

    with asyncio.Runner(loop_factory=LOOPS[kind]) as runner:
        runner.run(main())
