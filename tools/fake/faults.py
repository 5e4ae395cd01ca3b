"""What can be made to go wrong in a fake replica while it runs.

Owns the kinds of faults, their JSON form and the choice whether one strikes a request. Knows nothing of sockets.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, fields
from typing import Any

# A kind, what it does, and the fields that it reads. Fields of faults that strike requests: `count` (only the next N)
# and `share` (only this part of them, chosen by a seeded generator).
KINDS = {
    "status": "answer with `status` (and `retry_after` seconds, when given) instead of generating",
    "reset": "read the request, then reset the connection",
    "hang": "read the request and say nothing until the fault is cleared or the client leaves",
    "cut": "break off after `after` events of a stream or inside a unary body; 0: after the head (`how`: close, reset)",
    "slow": "wait `delay_s` before the answer begins",
    "refuse": "stop listening and close idle connections (`for_s` seconds, or until it is cleared)",
    "idle_close": "close a connection that was idle for `seconds`",
    "unhealthy": "answer the health path with 503 (`how`: hang says nothing instead)",
    "waiting": "report `value` waiting requests, whatever the real queue is",
    "metrics": "spoil the metrics page (`how`: missing, garbage or hang)",
}
STRIKING = ("status", "reset", "hang", "cut")


class BadFault(Exception):
    """The description of a fault cannot be used; the text says why."""


@dataclass(slots=True)
class Fault:
    """One active fault; None means that the field was not given."""

    kind: str
    status: int = 503
    retry_after: float | None = None
    after: int = 1
    how: str = ""
    delay_s: float = 1.0
    seconds: float = 5.0
    value: int = 1000
    for_s: float | None = None
    count: int | None = None
    share: float = 1.0


@dataclass(slots=True)
class Faults:
    """The active faults of one replica, at most one of a kind."""

    seed: int = 0
    active: dict[str, Fault] = field(default_factory=dict)
    struck: dict[str, int] = field(default_factory=dict)
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def strike(self) -> Fault | None:
        """Return the fault that the next request meets, in the order of `STRIKING`, and count it."""
        if not self.active:
            return None
        for kind in STRIKING:
            fault = self.take(kind)
            if fault is not None:
                return fault
        return None

    def take(self, kind: str) -> Fault | None:
        """Return the active fault of a kind if it strikes now, and count it."""
        fault = self.active.get(kind)
        if fault is None or (fault.share < 1.0 and self._random.random() >= fault.share):
            return None
        if fault.count is not None:
            fault.count -= 1
            if fault.count <= 0:
                del self.active[kind]
        self.struck[kind] = self.struck.get(kind, 0) + 1
        return fault


def parse_fault(spec: Any) -> Fault:
    """Return the fault that a JSON object describes. Raises BadFault."""
    if not isinstance(spec, dict) or spec.get("kind") not in KINDS:
        raise BadFault(f"kind must be one of {', '.join(KINDS)}, or clear")
    known = {f.name for f in fields(Fault)}
    unknown = sorted(set(spec) - known)
    if unknown:
        raise BadFault(f"unknown field {unknown[0]}; known are {', '.join(sorted(known))}")
    for name, value in spec.items():
        wanted = str if name in ("kind", "how") else (int, float)
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise BadFault(f"{name} has the wrong type")
    fault = Fault(**spec)
    if not 200 <= fault.status <= 599:
        raise BadFault("status must be between 200 and 599")
    if fault.count is not None and fault.count < 1:
        raise BadFault("count must be at least 1")
    return fault
