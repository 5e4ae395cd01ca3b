"""Watch the side port of dd-proxy during a run: who got how much, who was healthy, what was retried.

Owns one polling task and the few series it reads; parses no more of the page than it needs, since it shares a core with
the load. A side port that does not answer costs a note, never the run.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from dataclasses import dataclass, field
from time import monotonic

from tools.load.client import Client, Manners, Target
from tools.load.wire import Outcome, ResponseReader

INTERVAL = 0.5
_SERIES = re.compile(r"dd_proxy_([a-z0-9_]+)(?:\{([^}]*)\})? ([^ ]+)")
_LABEL = re.compile(r'([a-z_]+)="([^"]*)"')
_BY_BACKEND = {
    "upstream_attempts_total": "attempts",
    "backend_healthy": "healthy",
    "backend_breaker_state": "breaker",
    "backend_draining": "draining",
    "backend_queue_depth": "queue",
}


@dataclass
class Snapshot:
    """The side port at one moment: `at` in seconds since the start; values by backend, or by reason."""

    at: float
    attempts: dict[str, float] = field(default_factory=dict)
    healthy: dict[str, float] = field(default_factory=dict)
    breaker: dict[str, float] = field(default_factory=dict)
    draining: dict[str, float] = field(default_factory=dict)
    queue: dict[str, float] = field(default_factory=dict)
    answers: dict[str, dict[str, float]] = field(default_factory=dict)
    retries: dict[str, float] = field(default_factory=dict)

    def state(self, backend: str) -> str:
        """Return one word for a backend: draining, unhealthy, open, half_open, healthy or unknown."""
        if backend not in self.attempts and backend not in self.healthy:
            return "absent"
        if self.draining.get(backend):
            return "draining"
        if self.healthy.get(backend) == 0.0:
            return "unhealthy"
        breaker = self.breaker.get(backend, 0.0)
        if breaker:
            return "open" if breaker == 2.0 else "half_open"
        return "healthy" if self.healthy.get(backend) == 1.0 else "unknown"


def read_page(text: str, at: float) -> Snapshot | None:
    """Read a Prometheus page; None when it holds nothing of dd-proxy."""
    snapshot = Snapshot(at)
    answers: dict[str, dict[str, float]] = defaultdict(dict)
    seen = False
    for line in text.splitlines():
        found = _SERIES.match(line)
        if found is None:
            continue
        seen = True
        name, labels, value = found[1], dict(_LABEL.findall(found[2] or "")), float(found[3])
        if name in _BY_BACKEND:
            getattr(snapshot, _BY_BACKEND[name])[labels.get("backend", "")] = value
        elif name == "upstream_responses_total":
            answers[labels.get("backend", "")][labels.get("code", "")] = value
        elif name == "retries_total":
            snapshot.retries[labels.get("reason", "")] = value
    snapshot.answers = dict(answers)
    return snapshot if seen else None


class Watcher:
    """Poll the side port until it is cancelled."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.snapshots: list[Snapshot] = []
        self.complaint = ""

    async def look(self, client: Client, at: float) -> None:
        """Take one snapshot, or remember why there is none."""
        head = f"GET /metrics HTTP/1.1\r\nHost: {self.target.authority}\r\nAccept: text/plain\r\n\r\n".encode()
        page: list[bytes] = []
        answer = await client.exchange(head, lambda: _PageReader(page), Manners(timeout=5.0))
        if answer.outcome is not Outcome.OK:
            self.complaint = f"the side port did not answer: {answer.reason or answer.status}"
            return
        snapshot = read_page(b"".join(page).decode("utf-8", "replace"), at)
        if snapshot is None:
            self.complaint = "the metrics page holds no dd_proxy_ series"
            return
        self.snapshots.append(snapshot)

    async def run(self) -> None:
        """Take snapshots twice a second until cancelled."""
        client = Client(self.target)
        start = monotonic()
        try:
            while True:
                await asyncio.sleep(INTERVAL)
                await self.look(client, monotonic() - start)
        finally:
            client.close()

    async def once(self, at: float) -> None:
        """Take one snapshot on a connection of its own: before the first request, and after the last."""
        client = Client(self.target)
        try:
            await self.look(client, at)
        finally:
            client.close()


class _PageReader(ResponseReader):
    """Keep the whole body, which a page of metrics needs."""

    __slots__ = ("page",)

    def __init__(self, page: list[bytes]) -> None:
        super().__init__()
        self.page = page
        page.clear()

    def _take(self, piece: bytes, now: float) -> None:
        self.page.append(piece)
        super()._take(piece, now)
