"""The last requests, kept as the log wrote them: for `GET /requests/{id}`, the status page and `dd-proxy why`.

Owns two bounded rings and nothing else. A request's line is kept as bytes and never parsed here, so that keeping it
costs the data path one append.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from proxy.events import Choice, RequestEntry

MAX_RECENT = 1000
MAX_NOTABLE = 200
MAX_BYTES = 1 << 20  # of either ring: a path may be as long as a head, and 1,000 of those would be 64 MB


@dataclass(frozen=True, slots=True)
class Kept:
    """One request: the line of its log event, and who was left out of the choice of each attempt (None: nobody)."""

    request_id: str
    line: bytes
    choices: Sequence[Choice | None] | None


class RecentRequests:
    """Keep the last requests, and for longer those that failed over or ended badly."""

    def __init__(
        self, max_recent: int = MAX_RECENT, max_notable: int = MAX_NOTABLE, max_bytes: int = MAX_BYTES
    ) -> None:
        self._recent = _Ring(max_recent, max_bytes)
        self._notable = _Ring(max_notable, max_bytes)

    def __repr__(self) -> str:
        return f"<RecentRequests recent={len(self._recent)} notable={len(self._notable)}>"

    def add(self, entry: RequestEntry, line: bytes, choices: Sequence[Choice | None] | None) -> None:
        """Keep one request that has ended; `line` is what went to the log for `entry`."""
        self.extend([(entry, line, choices)])

    def extend(self, ended: Iterable[tuple[RequestEntry, bytes, Sequence[Choice | None] | None]]) -> None:
        """Keep several requests, in the order in which they ended; see `add`."""
        kept = []
        for entry, line, choices in ended:
            one = (entry["request_id"], line, choices, len(line) + _weight(choices) if choices else len(line))
            kept.append(one)
            status = entry["final_status"]
            if status >= 500 or status == 429 or entry["failover"] or not entry["complete"]:
                self._notable.extend([one])
        self._recent.extend(kept)

    def find(self, request_id: str) -> Kept | None:
        """Find the latest request of this id, or None when it was never seen or is forgotten."""
        for ring in (self._recent, self._notable):
            for kept in ring.newest_first():
                if kept[0] == request_id:
                    return Kept(*kept[:3])
        return None

    def lines(self, limit: int, *, notable: bool = False) -> list[bytes]:
        """Give the log lines of the last `limit` requests, the newest first."""
        ring = self._notable if notable else self._recent
        return [kept[1].rstrip() for kept, _ in zip(ring.newest_first(), range(limit), strict=False)]


_Entry = tuple[str, bytes, Sequence[Choice | None] | None, int]  # the last one: bytes, about


def _weight(choices: Sequence[Choice | None]) -> int:
    """Estimate the bytes of who was left out: with hundreds of backends it is more than the line."""
    return sum(300 + 8 * sum(map(len, choice.values())) for choice in choices if choice)


class _Ring:
    """The last entries, bounded in number and in bytes."""

    __slots__ = ("_bytes", "_entries", "_max_bytes", "_max_entries")

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self._entries: deque[_Entry] = deque()
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def extend(self, kept: list[_Entry]) -> None:
        entries = self._entries
        entries.extend(kept)
        size = self._bytes + sum([entry[3] for entry in kept])
        for _ in range(len(entries) - self._max_entries):
            size -= entries.popleft()[3]
        while size > self._max_bytes:
            size -= entries.popleft()[3]
        self._bytes = size

    def newest_first(self) -> Iterator[_Entry]:
        return reversed(self._entries)
