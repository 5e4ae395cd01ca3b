"""Hand a request over to a backend's connection: in one piece, or, from a file, as the connection takes it.

Owns the order of the bytes; knows nothing of responses and attempts.
"""

from __future__ import annotations

from proxy.body import RequestBody
from proxy.connector import UpstreamConnection
from proxy.headers import RequestHead

JOINED_BODY_BYTES = 64 * 1024  # a smaller body is sent in one piece with its head


class SpooledSender:
    """Sends a body that is in a file, piece by piece."""

    __slots__ = ("_body", "_connection", "_sent")

    def __init__(self, connection: UpstreamConnection, body: RequestBody) -> None:
        self._connection = connection
        self._body = body
        self._sent = 0

    def go_on(self) -> bool:
        """Send until the connection takes no more or all is sent; True in the latter case. Raises SpoolError."""
        body, connection = self._body, self._connection
        while self._sent < body.size and not connection.paused:
            piece = body.read(self._sent)
            self._sent += len(piece)
            connection.queue(piece)
        return self._sent >= body.size


def send_request(
    connection: UpstreamConnection, head: RequestHead, body: bytes | RequestBody | None
) -> SpooledSender | None:
    """Send a request; returns what still has to send a body that is in a file, None when all was handed over."""
    authority = connection.backend.authority
    if body is None:
        connection.send(head.upstream_bytes(authority, 0))
    elif isinstance(body, RequestBody):
        connection.queue(head.upstream_bytes(authority, body.size))
        return SpooledSender(connection, body)
    elif len(body) <= JOINED_BODY_BYTES:
        connection.send(head.upstream_bytes(authority, len(body)) + body)
    else:
        connection.queue(head.upstream_bytes(authority, len(body)))
        connection.queue(body)
    return None
