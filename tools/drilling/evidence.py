"""What a drill leaves behind: the counts of clients, proxy and replicas as plain records.

Pure. Owns the arithmetic that makes the three comparable, and no opinion on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tools.launch import Metrics


@dataclass(frozen=True)
class ClientFacts:
    """What the clients of all loads saw. `tries` counts every try by (outcome, status)."""

    requests: int
    lost: int
    tries: Mapping[tuple[str, int], int]
    bare_refusals: int
    looked_whole: int
    resent: int
    reasons: Mapping[str, int]
    limits: tuple[int, int, int] | None = None

    @property
    def tried(self) -> int:
        """Requests that went out on a connection, retries by the client included."""
        return sum(count for (outcome, _), count in self.tries.items() if outcome != "connect_error")

    def by_outcome(self, *outcomes: str) -> int:
        """Return how many tries ended so."""
        return sum(count for (outcome, _), count in self.tries.items() if outcome in outcomes)

    def statuses(self) -> dict[int, int]:
        """Return how many tries got each status; 0 stands for none."""
        found: Counter[int] = Counter()
        for (_, status), count in self.tries.items():
            found[status] += count
        return dict(found)


@dataclass(frozen=True)
class ReplicaFacts:
    """What one replica counted, restarts included. `complete` is false when a kill took counts with it."""

    backend: str
    counts: Mapping[str, int]
    active: int
    complete: bool


@dataclass(frozen=True)
class ProxyFacts:
    """What the proxy counted (before and after), logged, used, and how it ended. A missing log is None."""

    after: Metrics
    before: Metrics
    requests: Sequence[Mapping[str, Any]] | None
    strangers: Sequence[str] = ()
    peak_rss_bytes: int | None = None
    exit_code: int | None = None

    def total(self, name: str, **labels: str) -> int:
        """Return how much `dd_proxy_NAME` grew during the drill."""
        return round(self.after.total(name, **labels) - self.before.total(name, **labels))

    def by(self, name: str, label: str) -> dict[str, int]:
        """Return the growth by one label, where there was any."""
        before = self.before.by(name, label)
        grown = {key: round(value - before.get(key, 0.0)) for key, value in self.after.by(name, label).items()}
        return {key: value for key, value in grown.items() if value}

    def outcomes(self) -> dict[str, Counter[str]]:
        """Return the outcomes of all attempts by backend, from the log."""
        found: dict[str, Counter[str]] = {}
        for request in self.requests or ():
            for attempt in request["upstreams"]:
                found.setdefault(attempt["backend"], Counter())[str(attempt["outcome"])] += 1
        return found


@dataclass(frozen=True)
class Evidence:
    """All of it. `replicas` is empty when a running endpoint was drilled."""

    client: ClientFacts
    proxy: ProxyFacts | None
    replicas: Sequence[ReplicaFacts]
