"""Clients that come in a burst are let in together, and nobody is after the end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest
import uvloop

from proxy.listener import BURST, Listener

CLIENTS = 200


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def loop_factory(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    factory: Callable[[], asyncio.AbstractEventLoop] = request.param
    return factory


class Counted(asyncio.Protocol):
    """A protocol that counts itself."""

    made = 0
    lost = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        type(self).made += 1

    def connection_lost(self, exc: BaseException | None) -> None:
        type(self).lost += 1


def test_a_burst_of_clients_is_let_in_within_a_few_turns_of_the_loop(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    Counted.made = Counted.lost = 0
    with (
        socket.create_server(("127.0.0.1", 0), backlog=CLIENTS) as sock,
        asyncio.Runner(loop_factory=loop_factory) as r,
    ):
        sock.setblocking(False)
        clients = [socket.create_connection(sock.getsockname()) for _ in range(CLIENTS)]

        async def let_in() -> int:
            listener = Listener(asyncio.get_running_loop(), sock, Counted)
            await listener.start(CLIENTS)
            turns = 0
            while Counted.made < CLIENTS:
                turns += 1
                await asyncio.sleep(0)
            listener.close()
            for client in clients:
                client.close()
            while Counted.lost < CLIENTS:  # noqa: ASYNC110 - a turn at a time, as above
                await asyncio.sleep(0)
            return turns

        async def bounded() -> int:
            async with asyncio.timeout(30):
                return await let_in()

        turns = r.run(bounded())
    assert turns < CLIENTS / 4, f"{turns} turns for {CLIENTS} clients, {BURST} in a burst"


def test_nobody_is_let_in_after_the_end(loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock, asyncio.Runner(loop_factory=loop_factory) as runner:
        sock.setblocking(False)
        address = sock.getsockname()

        async def start_and_close() -> None:
            listener = Listener(asyncio.get_running_loop(), sock, Counted)
            await listener.start(8)
            listener.close()
            await asyncio.sleep(0)

        runner.run(start_and_close())
        with pytest.raises(OSError, match=r"refused|reset|timed out"):
            socket.create_connection(address, timeout=1).recv(1)
