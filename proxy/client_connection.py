"""A client connection as far as its end goes: closed behind what was sent, half-closed, broken off, or given up.

Owns its state, and that no answer is lost to a reset while it may still arrive, nor looks whole when it is not. What is
read from it, and why it ends, is downstream.py's; when an end takes too long, client_limits.py's.
"""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING

from proxy.socket_writer import SocketWriter

if TYPE_CHECKING:
    from proxy.endpoint import Endpoint
    from proxy.handler import Exchange
    from proxy.upload import Upload


class Phase(Enum):
    """What the connection is doing; only the connection itself changes it."""

    HEAD = "head"  # idle, or a head is coming
    BODY = "body"
    BUSY = "busy"  # the request is whole, its exchange runs
    NEXT = "next"  # what was pipelined is read soon, or once the client has taken more of the answers
    LINGER = "linger"  # answered early: the rest of the request is thrown away
    CLOSED = "closed"


HEAD, BODY, BUSY, NEXT, LINGER, CLOSED = Phase  # as globals they are found in a fraction of the time


class ClientConnection(SocketWriter):
    """The state of one client connection; `paused`: the client takes no more bytes for now."""

    __slots__ = (
        *("_buffer", "_eof", "_phase", "_reading_stopped", "_upload"),
        *("bucket", "endpoint", "exchange", "paused", "waits_since"),
    )

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.exchange: Exchange | None = None
        self.paused = False
        self.waits_since: float | None = None  # for a head; this and `bucket` are client_limits.ClientLimits's
        self.bucket: set[ClientConnection] | None = None
        self._phase = HEAD
        self._buffer = b""
        self._upload: Upload | None = None
        self._eof = False
        self._reading_stopped = False

    def _read_on(self) -> None:
        """Read again, once what was pipelined is no longer more than a head may be."""
        if self._reading_stopped and len(self._buffer) <= self.endpoint.config.max_head_bytes:
            self._reading_stopped = False
            if self._phase is not CLOSED:
                self.transport.resume_reading()

    def _linger(self) -> None:
        """Half-close, and throw away what still comes, so that the answer is not lost to a reset."""
        if self._upload is not None:
            self._upload.body.close()
            self._upload = None
        self._buffer = b""
        self._phase = LINGER
        self.endpoint.limits.lingers(self)
        if self._eof:
            self._close()
        else:
            self._read_on()
            with suppress(OSError):  # the client is gone, and the loop has not seen it yet
                self.transport.write_eof()

    def _close(self) -> None:
        """Close once everything is sent."""
        self._phase = CLOSED
        self._buffer = b""
        self.endpoint.limits.closes(self)
        if self.transport.get_write_buffer_size():
            self.moves()  # from now on
        self.transport.close()

    def close_timed_out(self) -> None:
        """Give up a connection that should have closed long ago, unless the client still takes what it is sent."""
        if self.moves():
            self.endpoint.limits.closes(self)
        else:
            self.give_up()

    def give_up(self) -> None:
        """End the connection now; the client sees a reset when it has not got all of an answer."""
        self._phase = CLOSED
        if self.transport.get_write_buffer_size():
            self._end_with_reset()
        self.transport.abort()

    def close_answered(self) -> None:
        """Close once the answer is sent, without waiting for what a client may still send."""
        if self._phase is LINGER:
            self._close()

    def _end_with_reset(self) -> None:
        sock = self.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def linger_timed_out(self) -> None:
        """Stop throwing away what a refused client sends; the answer, when it is not all sent, gets more time."""
        if self.transport.get_write_buffer_size():
            self.moves()  # from now on
            self.endpoint.limits.closes(self)
        else:
            self.transport.abort()

    def break_off(self, *, reset: bool) -> None:
        """End the connection in the middle of a response; with `reset` where the framing cannot show the truncation."""
        self.exchange = None
        if self._phase is CLOSED:
            return
        if reset:
            self._end_with_reset()
            if self.transport.get_write_buffer_size() == 0:
                self._phase = CLOSED
                self.transport.abort()
                return
        if not reset and (self._buffer or self._reading_stopped):  # unread, it would reset what was sent before
            self._linger()
        else:
            self._close()

    def head_timed_out(self) -> None:
        """End a connection that was idle, or whose head was incomplete, for too long."""
        raise NotImplementedError
