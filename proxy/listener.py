"""Lets clients in, in bursts as well as one by one.

Owns the client port's listening socket. libuv accepts one connection in each turn of its loop, and with a thousand
streams a turn takes long: a burst of new clients would wait for seconds. So when one was let in, and the loop is busy
or another one came just before, those that wait behind it are accepted here, up to BURST in a turn.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from time import monotonic

BURST = 64
CLOSE_S = 0.001  # between two clients of a burst, while turns are short
# Also how many asyncio's own loop accepts in a row, which it calls backlog: without descriptors it tries as often.
ACCEPTS = 16


class Listener:
    """A listening client port; `made` makes the protocol of one connection, `busy` tells whether turns may take long.

    No more than one client a turn is let in while `has_room` says False: those who are here need descriptors as well.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        made: Callable[[], asyncio.Protocol],
        has_room: Callable[[], bool] = lambda: True,
        busy: Callable[[], bool] = lambda: False,
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._made = made
        self._has_room = has_room
        self._busy = busy
        self._let_in_at = 0.0
        self._server: asyncio.Server | None = None
        self._adopting: set[asyncio.Task[None]] = set()
        self._looking = False

    async def start(self, backlog: int) -> None:
        """Begin to accept; `backlog` is the length of the kernel's queue."""
        self._server = await self._loop.create_server(self._first, sock=self._sock, backlog=ACCEPTS)
        self._sock.listen(backlog)

    def close(self) -> None:
        """Accept nobody any more; new connections are refused from now on."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def _first(self) -> asyncio.Protocol:
        now = monotonic()
        if not self._looking and (now - self._let_in_at < CLOSE_S or self._busy()):
            self._looking = True
            self._loop.call_soon(self._accept_those_behind)
        self._let_in_at = now
        return self._made()

    def _accept_those_behind(self) -> None:
        self._looking = False
        for _ in range(BURST):
            if self._server is None or not self._has_room():
                return
            try:
                accepted, _ = self._sock.accept()
            except OSError:  # nobody waits, or no descriptor is left, which the loop deals with
                return
            accepted.setblocking(False)
            task = self._loop.create_task(self._adopt(accepted))
            self._adopting.add(task)
            task.add_done_callback(self._adopting.discard)

    async def _adopt(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._made, accepted)
        except OSError:  # the client has gone again
            accepted.close()
        except BaseException:  # cancelled, or what the loop will report: nothing may stay open
            accepted.close()
            raise
