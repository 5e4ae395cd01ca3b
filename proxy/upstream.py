"""One backend: its address, what is known of it, and what was counted about it.

Owns the record and the health verdict. Who may be chosen is balancer.py's; sockets are connector.py's.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from proxy.breaker import Breaker
from proxy.config import BackendUrl
from proxy.outcome import Eviction


class Health:
    """Verdict of the health probes: the first decides alone, then `fall` bad or `rise` good ones in a row change it."""

    __slots__ = ("_fall", "_rise", "_streak", "healthy")

    def __init__(self, fall: int, rise: int) -> None:
        self._fall = fall
        self._rise = rise
        self._streak = 0
        self.healthy: bool | None = None

    def record(self, good: bool) -> bool:
        """Take the result of one probe; True when the verdict changed."""
        if good is self.healthy:
            self._streak = 0
            return False
        self._streak += 1
        if self.healthy is not None and self._streak < (self._rise if good else self._fall):
            return False
        self.healthy = good
        self._streak = 0
        return True


class Backend:
    """A replica of the model. Only balancer.Fleet changes `active`, `draining` and `removed`.

    `bit` is the backend's place in the fleet's sets, `idle` its idle connections (books kept by pool.Pool, most
    recently used last), times are seconds of the monotonic clock.
    """

    __slots__ = (
        *("active", "attempts", "authority", "bit", "breaker", "draining", "evicted", "failed", "failures", "health"),
        *("id", "idle", "opened", "penalty_until", "position", "queue_at", "queue_depth", "reads", "removed"),
        *("required", "responses", "reused", "url"),
    )

    def __init__(self, url: BackendUrl, *, required: bool, breaker: Breaker, health: Health) -> None:
        self.url = url
        self.id = url.authority
        self.authority = url.authority.encode("ascii")
        self.required = required
        self.breaker = breaker
        self.health = health
        self.position = -1
        self.bit = 0
        self.draining = False
        self.removed = False
        self.active = 0
        self.idle: list[Any] = []
        self.queue_depth: float | None = None
        self.queue_at = 0.0
        self.penalty_until = 0.0
        self.reads = 0  # what Attempt.reads said at the end of each attempt that has ended, in all
        self.attempts = 0
        self.failures = 0  # attempts without a usable response
        self.responses: defaultdict[int, int] = defaultdict(int)
        self.opened = 0
        self.reused = 0
        self.failed = 0
        self.evicted: dict[str, int] = dict.fromkeys(Eviction, 0)

    def __repr__(self) -> str:
        state = "removed" if self.removed else "draining" if self.draining else "active"
        return (
            f"<Backend {self.id} {state} healthy={self.health.healthy} active={self.active} "
            f"idle={len(self.idle)} {self.breaker!r}>"
        )
