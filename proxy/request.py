"""Hand a request over to a backend's connection: in one piece, or, from a file, as the connection takes it.

Owns the order of the bytes; knows nothing of responses and attempts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from proxy.body import RequestBody, SpoolError
from proxy.connector import UpstreamConnection
from proxy.headers import RequestHead

JOINED_BODY_BYTES = 64 * 1024  # a smaller body is sent in one piece with its head
TURN_BYTES = 4 << 20  # of a body in a file, in one turn of the loop, for a millisecond or two; then others have theirs


class SpooledSender:
    """Sends a body that is in a file, piece by piece; `failed` is told why it cannot.

    `done` is True once all of it was handed to the connection.
    """

    __slots__ = ("_body", "_connection", "_failed", "_loop", "_sent", "_stopped", "_turn_is_due")

    def __init__(
        self,
        connection: UpstreamConnection,
        body: RequestBody,
        loop: asyncio.AbstractEventLoop,
        failed: Callable[[SpoolError], None],
    ) -> None:
        self._connection = connection
        self._body = body
        self._loop = loop
        self._failed = failed
        self._sent = 0
        self._turn_is_due = False
        self._stopped = False

    @property
    def done(self) -> bool:
        """True once all of the body was handed over."""
        return self._sent >= self._body.size

    def go_on(self) -> None:
        """Send until the connection takes no more; to be called again once it does."""
        if not self._turn_is_due:
            self._turn()

    def stop(self) -> None:
        """Send no more."""
        self._stopped = True

    def _turn(self) -> None:
        self._turn_is_due = False
        until = min(self._sent + TURN_BYTES, self._body.size)
        try:
            while self._sent < until and self._may_send():
                piece = self._body.read(self._sent)
                self._sent += len(piece)
                self._connection.queue(piece)
        except SpoolError as e:
            self._failed(e)
            return
        if not self.done and self._may_send():
            self._turn_is_due = True
            self._loop.call_soon(self._turn)

    def _may_send(self) -> bool:
        connection = self._connection  # one that was lost takes everything, and sends nothing
        return not (self._stopped or connection.paused or connection.transport.is_closing())


def send_request(
    connection: UpstreamConnection,
    head: RequestHead,
    body: bytes | RequestBody | None,
    loop: asyncio.AbstractEventLoop,
    failed: Callable[[SpoolError], None],
) -> SpooledSender | None:
    """Send a request; returns what still has to send a body that is in a file, None when all was handed over."""
    authority = connection.backend.authority
    if body is None:
        connection.send(head.upstream_bytes(authority, 0))
    elif isinstance(body, RequestBody):
        connection.queue(head.upstream_bytes(authority, body.size))
        return SpooledSender(connection, body, loop, failed)
    elif len(body) <= JOINED_BODY_BYTES:
        connection.send(head.upstream_bytes(authority, len(body)) + body)
    else:
        connection.queue(head.upstream_bytes(authority, len(body)))
        connection.queue(body)
    return None
