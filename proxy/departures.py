"""Notices that a half-closed client is gone for good, which its transport, no longer reading, cannot.

Owns one epoll object for the process. A descriptor registered there with no events wakes it for a hang-up or an error
only: the reset with which a closed socket answers what is written to it (RFC 9293 section 3.10.7.4).
"""

from __future__ import annotations

import asyncio
import contextlib
import select
from collections.abc import Callable


class Departures:
    """Watch descriptors for a reset; each is reported once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._epoll = select.epoll()
        self._watched: dict[int, tuple[object, Callable[[], None], Callable[[], None] | None]] = {}
        self._fd_of: dict[object, int] = {}
        loop.add_reader(self._epoll.fileno(), self._wake)

    def watch(self, fd: int, owner: object, gone: Callable[[], None], ended: Callable[[], None] | None = None) -> None:
        """Call `gone` once when the peer of `fd` has reset the connection.

        `ended` is called once when the peer's end of file comes, for a connection that is not read for now.
        """
        self._watched[fd] = (owner, gone, ended)
        self._fd_of[owner] = fd
        events = 0 if ended is None else select.EPOLLRDHUP
        try:
            self._epoll.register(fd, events)
        except FileExistsError:
            self._epoll.modify(fd, events)

    def forget_owner(self, owner: object) -> None:
        """Stop watching for an owner; its descriptor may be closed, or another's by now."""
        fd = self._fd_of.pop(owner, None)
        if fd is None:
            return
        entry = self._watched.get(fd)
        if entry is not None and entry[0] is owner:
            del self._watched[fd]
            with contextlib.suppress(OSError):
                self._epoll.unregister(fd)

    def close(self) -> None:
        """Free the epoll object."""
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()
        self._watched.clear()
        self._fd_of.clear()

    def _wake(self) -> None:
        for fd, events in self._epoll.poll(0):
            entry = self._watched.pop(fd, None)
            if entry is not None and not events & (select.EPOLLERR | select.EPOLLHUP):
                owner, gone, ended = entry
                self.watch(fd, owner, gone)
                if ended is not None:
                    ended()
                continue
            with contextlib.suppress(OSError):
                self._epoll.unregister(fd)
            if entry is not None:
                self._fd_of.pop(entry[0], None)
                entry[1]()
