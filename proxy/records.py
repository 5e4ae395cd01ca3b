"""Ended requests on their way to the log and to the recent ones: told in batches, a moment after they ended.

Owns those that wait. To tell of one request costs a quarter of serving it when the code for it has left the
processor's caches, and half as much in a row; besides, no client then waits for what is told of another one.
"""

from __future__ import annotations

import asyncio
from time import monotonic

from proxy.access_log import AccessLog
from proxy.events import RequestEntry, RequestRecord, request_entry
from proxy.recent import RecentRequests

BATCH = 32
DELAY_S = 0.05


class Records:
    """Tells of requests that have ended, in their order, at most DELAY_S late; each line bears the time of the end.

    Nobody sees that they wait: whoever asks for `recent`, and every other event of the log, has them told first.
    """

    def __init__(self, log: AccessLog, loop: asyncio.AbstractEventLoop) -> None:
        self._log = log
        self._loop = loop
        self._recent = RecentRequests()
        self._waiting: list[RequestRecord] = []
        self._timer: asyncio.TimerHandle | None = None
        log.before_event = self.tell

    def __repr__(self) -> str:
        return f"<Records waiting={len(self._waiting)} {self._recent!r}>"

    @property
    def recent(self) -> RecentRequests:
        """The last requests, up to now."""
        self.tell()
        return self._recent

    def add(self, record: RequestRecord) -> None:
        """Take a request that has ended."""
        self._waiting.append(record)
        if len(self._waiting) >= BATCH:
            self.tell()
        elif self._timer is None:
            self._timer = self._loop.call_later(DELAY_S, self._due)

    def add_entry(self, entry: RequestEntry) -> None:
        """Take a request of which there is nothing but its entry, and tell of it at once."""
        self.tell()
        self._recent.add(entry, self._log.request(entry), None)

    def _due(self) -> None:
        self._timer = None
        self.tell()

    def tell(self) -> None:
        """Tell of all that wait."""
        waiting = self._waiting
        if not waiting:
            return
        self._waiting = []
        to_wall_clock = self._log.clock() - monotonic()
        entries = [request_entry(record) for record in waiting]
        lines = self._log.requests(entries, [record[0] + to_wall_clock for record in waiting])
        self._recent.extend(zip(entries, lines, [record[-1] for record in waiting], strict=True))
