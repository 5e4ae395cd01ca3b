"""What both sides' connections share: bytes that go to the socket at once, as long as the transport holds none back.

Owns the order of what is written. A transport does more for each write, and one of uvloop before 0.23 keeps what it is
given until the end of the loop's turn, in a list, a set and a handle of libuv: for an event of a stream that is a tenth
of what it costs to pass it on.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import sys
import termios
from typing import cast


class SocketWriter(asyncio.Protocol):
    """A connection that writes to its socket itself.

    The socket is the transport's, and open at least until `connection_lost` was called: both asyncio and uvloop close
    it behind that call. What the socket does not take goes to the transport: it waits, pauses its protocol and ends the
    connection as ever. So does what met an error: the transport meets the next one. With TLS everything goes there.
    """

    __slots__ = ("_fd", "_held", "_unsent", "transport")

    def connected(self, transport: asyncio.BaseTransport) -> socket.socket:
        """Take the transport, and give its socket, which is dear to ask for; TCP_NODELAY is set by both loops."""
        self.transport = cast(asyncio.Transport, transport)
        sock: socket.socket = transport.get_extra_info("socket")
        plain = transport.get_extra_info("ssl_object") is None
        self._fd = sock.fileno() if plain else -1
        self._held = not plain  # the transport may hold bytes back, behind which others have to wait
        self._unsent = -1  # bytes at the last look
        return sock

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self.connected(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """See asyncio.Protocol."""
        self._fd = -1
        self._held = True

    @property
    def holds_back(self) -> bool:
        """True while bytes that were sent have not reached the socket."""
        return self._held and self.transport.get_write_buffer_size() > 0

    def send(self, data: bytes) -> None:
        """Send bytes, behind all that were sent before; never blocks."""
        if self._held:
            if self._fd < 0 or self.transport.get_write_buffer_size():
                self.transport.write(data)
                return
            self._held = False
        try:
            sent = os.write(self._fd, data)
        except OSError:
            sent = 0
        if sent != len(data):
            self._held = True
            self.transport.write(data[sent:])

    def queue(self, data: bytes) -> None:
        """Send bytes by the transport, which may join what it is given in one turn of the loop."""
        self._held = True
        self.transport.write(data)

    def moves(self) -> bool:
        """Tell whether less, or more, is unsent than when this was asked last: whether the peer takes anything.

        What the kernel holds counts too: it tells a transport of room only when a third of its buffer is free, until
        when a peer that reads slowly and steadily seems to stand still.
        """
        before, self._unsent = self._unsent, self.transport.get_write_buffer_size()
        sock = self.transport.get_extra_info("socket")
        if sock is not None and sock.fileno() >= 0:
            queued = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
            self._unsent += int.from_bytes(queued, sys.byteorder)
        return self._unsent != before
