"""What client connections may take their time for: the next head, the rest of a refused request, the last bytes.

Owns the books of these limits and what is done when one runs out. Waiting for a head begins and ends with each request,
so that costs one number in the connection: it stands in a bucket of those that may run out at about the same time, and
only when that time has come is it looked at whether it has waited since, or when it would run out now.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proxy.client_connection import ClientConnection

LINGER_S = 2.0  # a refused request's rest is read and thrown away for so long
BUCKETS = 64  # for the whole of the client timeout


class ClientLimits:
    """The limits of all client connections; times are seconds of `time.monotonic`."""

    def __init__(self, client_timeout_s: float) -> None:
        self._timeout_s = client_timeout_s
        self._width_s = client_timeout_s / BUCKETS
        self._buckets: dict[int, set[ClientConnection]] = {}  # by when one may run out first, in widths
        self._lingering: dict[ClientConnection, float] = {}  # since when, oldest first
        self._closing: dict[ClientConnection, float] = {}

    def waits(self, downstream: ClientConnection) -> None:
        """Begin to count the time in which a head must be complete, from its first byte on or without one."""
        downstream.waits_since = now = monotonic()
        if downstream.bucket is None:
            self._put(downstream, now)

    def _put(self, downstream: ClientConnection, since: float) -> None:
        number = int((since + self._timeout_s) / self._width_s)
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = set()
        bucket.add(downstream)
        downstream.bucket = bucket

    def lingers(self, downstream: ClientConnection) -> None:
        """Begin to count the time in which the rest of a refused request is read."""
        downstream.waits_since = None
        self._lingering[downstream] = monotonic()

    def closes(self, downstream: ClientConnection) -> None:
        """Begin to count the time in which a connection must have sent what it still holds."""
        downstream.waits_since = None
        self._lingering.pop(downstream, None)
        self._closing[downstream] = monotonic()

    def forget(self, downstream: ClientConnection) -> None:
        """Take a connection out of the books: it is closed."""
        if downstream.bucket is not None:
            downstream.bucket.discard(downstream)
            downstream.bucket = None
        self._lingering.pop(downstream, None)
        self._closing.pop(downstream, None)

    def sweep(self, now: float) -> None:
        """End what has run out of time."""
        for downstream in self._waited_too_long(now):
            downstream.head_timed_out()
        for downstream in _expired(self._lingering, now - LINGER_S):
            downstream.linger_timed_out()
        for downstream in _expired(self._closing, now - self._timeout_s):
            downstream.close_timed_out()

    def _waited_too_long(self, now: float) -> list[ClientConnection]:
        reached = now / self._width_s
        due = [d for number in [n for n in self._buckets if n <= reached] for d in self._buckets.pop(number)]
        found = []
        for downstream in due:
            downstream.bucket = None
            since = downstream.waits_since
            if since is None:
                continue  # it is put into a bucket when it waits again
            if now - since > self._timeout_s:
                found.append(downstream)
            else:
                self._put(downstream, since)
        return found


def _expired(books: dict[ClientConnection, float], limit: float) -> list[ClientConnection]:
    """Take those out of the books that stand in them since before `limit`."""
    found = []
    for downstream, since in books.items():
        if since > limit:
            break
        found.append(downstream)
    for downstream in found:
        del books[downstream]
    return found
