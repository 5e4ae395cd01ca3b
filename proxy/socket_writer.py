"""What both sides' connections share: bytes that go to the socket at once, as long as the transport holds none back.

Owns the order of what is written. A transport of uvloop keeps what it is given until the end of the loop's turn, in a
list, a set and a handle of libuv; for an event of a stream that is a tenth of what it costs to pass it on.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import cast


class SocketWriter(asyncio.Protocol):
    """A connection that writes to its socket itself.

    The socket is the transport's, and open at least until `connection_lost` was called: both asyncio and uvloop close
    it behind that call. What the socket does not take, and every error, goes to the transport: it waits, pauses its
    protocol and ends the connection as ever. With TLS everything goes there.
    """

    __slots__ = ("_fd", "_held", "transport")

    def connected(self, transport: asyncio.BaseTransport) -> socket.socket:
        """Take the transport, and give its socket, which is dear to ask for; TCP_NODELAY is set by both loops."""
        self.transport = cast(asyncio.Transport, transport)
        sock: socket.socket = transport.get_extra_info("socket")
        plain = transport.get_extra_info("ssl_object") is None
        self._fd = sock.fileno() if plain else -1
        self._held = not plain  # the transport may hold bytes back, behind which others have to wait
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
        except OSError:  # the transport meets it again
            sent = 0
        if sent != len(data):
            self._held = True
            self.transport.write(data[sent:])

    def queue(self, data: bytes) -> None:
        """Send bytes at the end of the loop's turn, together with what else is queued in it."""
        self._held = True
        self.transport.write(data)
