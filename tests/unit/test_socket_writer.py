"""Bytes that a connection writes to its socket itself: in order, none lost, and never to a socket that is another's."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from proxy.socket_writer import SocketWriter
from tests.unit.sockets import on_both_loops
from tests.unit.stand_in import until

PIECE = 100_000


class Connection(SocketWriter):
    """A connection that remembers whether it was told to pause, and that it was lost."""

    def __init__(self) -> None:
        self.paused = self.lost = self.was_paused = False

    def pause_writing(self) -> None:
        self.paused = self.was_paused = True

    def resume_writing(self) -> None:
        self.paused = False

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self.lost = True


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Connection, socket.socket]]:
    """Give a connection and its peer, over TCP."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        peer, _ = server.accept()
    with peer:
        _, connection = await loop.create_connection(Connection, sock=ours)
        yield connection, peer
        connection.transport.abort()


async def read(peer: socket.socket, size: int) -> bytes:
    """Read so many bytes while the loop runs."""
    peer.setblocking(False)
    got = b""
    while len(got) < size:
        piece = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(peer, 1 << 20), 5)
        assert piece
        got += piece
    return got


@on_both_loops
async def test_what_is_sent_is_on_its_way_before_the_loop_turns() -> None:
    async with connected() as (connection, peer):
        connection.send(b"now")
        assert peer.recv(16) == b"now"


@on_both_loops
async def test_what_the_socket_does_not_take_waits_in_order_and_pauses_the_writer() -> None:
    async with connected() as (connection, peer):
        pieces = [bytes([number]) * PIECE for number in range(100)]
        for number, piece in enumerate(pieces):
            connection.queue(piece) if number % 7 == 3 else connection.send(piece)
        assert connection.paused
        assert await read(peer, 100 * PIECE) == b"".join(pieces)
        await until(lambda: not connection.paused)
        connection.send(b"at once again")
        assert peer.recv(16) == b"at once again"


@on_both_loops
async def test_a_queued_piece_goes_before_one_that_is_sent_after_it() -> None:
    async with connected() as (connection, peer):
        connection.queue(b"1")
        connection.send(b"2")
        connection.send(b"3")
        assert await read(peer, 3) == b"123"


@on_both_loops
async def test_a_peer_that_is_gone_ends_the_connection_and_raises_nothing() -> None:
    async with connected() as (connection, peer):
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        peer.close()
        for _ in range(3):
            connection.send(b"x")
        await until(lambda: connection.lost)


@on_both_loops
async def test_nothing_is_written_to_the_descriptor_once_the_connection_is_lost() -> None:
    async with connected() as (connection, _):
        fd = connection.transport.get_extra_info("socket").fileno()
        connection.transport.abort()
        await until(lambda: connection.lost)
        await asyncio.sleep(0.01)
        files = [os.memfd_create("another")]
        while files[-1] < fd:  # the lowest free number is given away first
            files.append(os.memfd_create("another"))
        assert fd in files
        with contextlib.suppress(RuntimeError):  # uvloop's transport says that it is closed
            connection.send(b"stray")
        assert os.fstat(fd).st_size == 0
        for file in files:
            os.close(file)


@on_both_loops
async def test_a_peer_that_takes_anything_moves_and_one_that_does_not_stands_still() -> None:
    async with connected() as (connection, peer):
        while not connection.paused:
            connection.send(b"x" * PIECE)
        await asyncio.sleep(0.1)
        connection.moves()
        assert not connection.moves()
        peer.recv(2 * PIECE)
        await until(connection.moves)
        await asyncio.sleep(0.1)
        connection.moves()
        assert not connection.moves()
