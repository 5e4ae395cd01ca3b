"""Reads the answers to health probes and queue samples a batch at a time, without an event of the loop for each.

Owns what all probes of a process share: the buffer that answers are read into, and the looks at their kept connections.
The loop does not read these (their transports are paused): one system call tells which of them have something, whether
an answer or what makes an idle one useless. After a request that look comes soon, then at growing distance; an answer
that has still not come, or came in part, is left to the loop. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import select
from typing import Protocol

BUFFER_BYTES = 256 * 1024
FIRST_LOOK_S = 0.005  # after a request; each further look comes twice as long after the one before
PATIENCE_S = 0.075  # of looking for one answer: four looks, when nothing else is asked meanwhile
READS = 16  # of one look, so that pages of metrics do not hold up the requests; then the loop has its turn


class Kept(Protocol):
    """A connection that the collector looks at; its descriptor is open until `forget`."""

    def readable(self) -> None:
        """Read what has come: an answer, bytes that nobody asked for, or the connection's end."""

    def overdue(self) -> None:
        """Give up on looks for the present answer."""


class Collector:
    """The looks at the kept connections of all probes; `buffer` holds what was read last, until the next read."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.buffer = bytearray(BUFFER_BYTES)
        self.dials: set[asyncio.Task[None]] = set()  # connections that are being made
        self._epoll = select.epoll()
        self._kept: dict[int, Kept] = {}
        self._asked: dict[Kept, float] = {}  # since when
        self._delay_s = 0.0
        self._timer: asyncio.Handle | None = None

    def keep(self, fd: int, connection: Kept) -> None:
        """Look at a connection from now on."""
        self._epoll.register(fd, select.EPOLLIN)
        self._kept[fd] = connection

    def forget(self, fd: int) -> None:
        """Look at a connection no more; to be called before its descriptor closes."""
        self._epoll.unregister(fd)
        self._asked.pop(self._kept.pop(fd), None)

    def expect(self, connection: Kept, now: float) -> None:
        """Look for the answer to a request that was sent `now` (in the loop's time) on a kept connection."""
        self._asked[connection] = now
        if self._timer is None or self._delay_s > FIRST_LOOK_S:
            self._look_in(FIRST_LOOK_S)

    def poll(self) -> None:
        """Have all kept connections read on which something stands; afterwards nothing stands unread on an idle one."""
        if self._kept:
            self._read_some(len(self._kept))

    def _read_some(self, most: int) -> int:
        events = self._epoll.poll(0, most)
        for fd, _ in events:
            connection = self._kept.get(fd)
            if connection is not None:
                self._asked.pop(connection, None)
                try:
                    connection.readable()
                except Exception as e:  # noqa: BLE001  (the others are read all the same)
                    self.loop.call_exception_handler({"message": "reading a probe's answer failed", "exception": e})
        return len(events)

    def _look_in(self, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._delay_s = delay_s
        self._timer = self.loop.call_later(delay_s, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._asked and self._read_some(READS) == READS:
            self._timer = self.loop.call_soon(self._look)
            return
        if not self._asked:
            return
        before = self.loop.time() - PATIENCE_S
        for connection in [c for c, asked_at in self._asked.items() if asked_at <= before]:
            del self._asked[connection]
            connection.overdue()
        if self._asked:
            self._look_in(self._delay_s * 2)

    async def close(self) -> None:
        """End for good, and wait for the dials, which must be cancelled; all connections must be closed before."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._epoll.close()
        await asyncio.gather(*self.dials, return_exceptions=True)
