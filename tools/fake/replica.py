"""The state of one fake replica: what it was sent, what it runs, what waits, what is wrong with it.

Owns the counts, the queue in front of the slots and the metrics page. Does no I/O: connections and jobs call it.

Every request that a replica counts ends in exactly one way, so that at any moment
`requests = active + completed + errors + cancelled + broken` (active includes those that wait or hang).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from tools.fake.faults import Fault, Faults
from tools.fake.metrics import Load, MetricsPage
from tools.fake.openai import MODEL


@dataclass(frozen=True, slots=True)
class Settings:
    """How a replica behaves when nothing is wrong; times in seconds."""

    engine: str = "vllm"
    series: int = 2
    metrics_bytes: int = 60_000
    tokens: int = 16
    token_interval: float = 0.0
    max_concurrency: int = 256
    startup_delay_s: float = 0.0
    keep_alive_s: float = 5.0
    fail_first: int = 0
    fail_status: int = 500
    seed: int = 0


class End(Enum):
    """How a request ended; the values are names of counters."""

    COMPLETED = "completed"
    ERROR = "errors"  # answered with an error status
    CANCELLED = "cancelled"  # the client left
    BROKEN = "broken"  # broken off on purpose


@dataclass(slots=True)
class Counts:
    """What a replica was sent, in numbers."""

    requests: int = 0
    streams: int = 0
    completed: int = 0
    errors: int = 0
    cancelled: int = 0
    broken: int = 0
    connections: int = 0  # that carried at least one request
    reused: int = 0  # requests that were not the first on their connection
    peak: int = 0  # most requests at once
    tokens: int = 0
    prompt_tokens: int = 0
    body_bytes: int = 0
    probes: int = 0
    samples: int = 0
    statuses: Counter[int] = field(default_factory=Counter)


class Waiter(Protocol):
    """A job that waits for a slot."""

    def start(self) -> None:
        """Begin to generate: a slot is free."""


class Replica:
    """One replica; `clock` returns seconds that only grow."""

    def __init__(self, name: str, settings: Settings, clock: Callable[[], float]) -> None:
        self.name = name
        self.settings = settings
        self.counts = Counts()
        self.faults = Faults(settings.seed)
        self.active = 0
        self.running = 0
        self._waiting: OrderedDict[int, Waiter] = OrderedDict()
        self._starting = False
        self._clock = clock
        self._born = clock()
        self._page = MetricsPage(settings.engine, settings.series, settings.metrics_bytes, MODEL)
        if settings.fail_first:
            self.faults.active["status"] = Fault("status", status=settings.fail_status, count=settings.fail_first)

    @property
    def started(self) -> bool:
        """Tell whether the start-up delay has passed."""
        return self._clock() - self._born >= self.settings.startup_delay_s

    @property
    def waiting(self) -> int:
        """Return the depth of the queue as the metrics report it."""
        fault = self.faults.active.get("waiting")
        return len(self._waiting) if fault is None else fault.value

    @property
    def keep_alive_s(self) -> float:
        """Return after how many idle seconds a connection is closed; 0 means never."""
        fault = self.faults.active.get("idle_close")
        return self.settings.keep_alive_s if fault is None else fault.seconds

    def arrived(self, *, reused: bool) -> None:
        """Count a request that has been read."""
        self.counts.requests += 1
        self.counts.reused += reused
        self.counts.connections += not reused
        self.active += 1
        self.counts.peak = max(self.counts.peak, self.active)

    def ended(self, end: End, status: int | None = None) -> None:
        """Count the end of a request, with the status that was sent, if one was."""
        self.active -= 1
        setattr(self.counts, end.value, getattr(self.counts, end.value) + 1)
        if status is not None:
            self.counts.statuses[status] += 1

    def admit(self, job: Waiter) -> None:
        """Start a job now, or when those before it have left a slot free."""
        if self.running < self.settings.max_concurrency:
            self.running += 1
            job.start()
        else:
            self._waiting[id(job)] = job

    def leave(self, job: Waiter) -> None:
        """Give back the place of an admitted job, in the queue or in a slot, and let the next one start."""
        if self._waiting.pop(id(job), None) is not None:
            return
        self.running -= 1
        if self._starting:  # a started job ended at once: the loop below goes on, instead of one call inside another
            return
        self._starting = True
        while self._waiting and self.running < self.settings.max_concurrency:
            self.running += 1
            _, following = self._waiting.popitem(last=False)
            following.start()
        self._starting = False

    def metrics(self) -> bytes:
        """Return the metrics page."""
        counts = self.counts
        return self._page.render(
            Load(
                waiting=self.waiting,
                running=self.running,
                prompt_tokens=counts.prompt_tokens,
                tokens=counts.tokens,
                completed=counts.completed,
                capacity=self.settings.max_concurrency,
            )
        )

    def routing(self) -> dict[str, Any]:
        """Return what the replica was sent: counts, never content."""
        counts = self.counts
        numbers = {name: getattr(counts, name) for name in counts.__dataclass_fields__ if name != "statuses"}
        return {
            "name": self.name,
            **numbers,
            "active": self.active,
            "running": self.running,
            "waiting": len(self._waiting),
            "statuses": {str(status): n for status, n in sorted(counts.statuses.items())},
            "faults": sorted(self.faults.active),
            "struck": dict(self.faults.struck),
        }

    def reset_counts(self) -> None:
        """Begin to count anew; what is active now counts as one request each."""
        self.counts = Counts(requests=self.active, peak=self.active)
        self.faults.struck.clear()
