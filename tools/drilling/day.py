"""A day of mixed faults, invented from a seed: what breaks when, and how the load comes and goes.

Pure: the same seed is the same day. At most two replicas are in trouble at a time, since the proxy promises to lose
nothing only while an attempt that succeeds is among its three.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

HOURS = 24
IN_TROUBLE_AT_ONCE = 2
Moment = tuple[float, str, int | None, dict[str, Any]]
_TROUBLES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("fault", {"kind": "status", "status": 500}),
    ("fault", {"kind": "status", "status": 503, "share": 0.5}),
    ("fault", {"kind": "status", "status": 429, "retry_after": 1}),
    ("fault", {"kind": "reset", "share": 0.5}),
    ("fault", {"kind": "cut", "after": 3, "share": 0.3}),
    ("fault", {"kind": "hang"}),
    ("fault", {"kind": "refuse"}),
    ("fault", {"kind": "idle_close", "seconds": 0.01}),
    ("fault", {"kind": "unhealthy"}),
    ("fault", {"kind": "waiting", "value": 500}),
    ("fault", {"kind": "metrics", "how": "garbage"}),
    ("fault", {"kind": "slow", "delay_s": 0.3}),
    ("kill", {}),
    ("pause", {}),
)
_ENDS = {"fault": "clear", "kill": "start", "pause": "resume"}


@dataclass(frozen=True)
class Day:
    """How bad the day is: `per_hour` troubles begin in each of its 24 hours, each lasting up to `hours_long`."""

    seed: int = 1
    per_hour: float = 1.0
    hours_long: float = 1.5

    def events(self, replicas: int) -> list[Moment]:
        """Return what happens, as (share of the day, action, replica, fields), in order of time."""
        rng = random.Random(self.seed)
        free_from = [0.0] * replicas
        moments: list[Moment] = []
        for start in self._starts(rng):
            end = min(start + rng.uniform(0.3, self.hours_long) / HOURS, 1.0)
            busy = sum(start < until for until in free_from)
            idle = [index for index, until in enumerate(free_from) if until <= start]
            if busy >= IN_TROUBLE_AT_ONCE or not idle:
                continue
            replica = rng.choice(idle)
            action, fields = rng.choice(_TROUBLES)
            free_from[replica] = end + 0.3 / HOURS
            moments.append((start, action, replica, dict(fields)))
            only = {"only": fields["kind"]} if action == "fault" else {}
            moments.append((end, _ENDS[action], replica, only))
        return sorted(moments, key=lambda moment: moment[0])

    def _starts(self, rng: random.Random) -> Iterator[float]:
        """Yield when troubles begin: none in the first and the last two hours, so that the day begins and ends well."""
        at = 1.0
        while True:
            at += rng.expovariate(self.per_hour)
            if at > HOURS - 2:
                return
            yield at / HOURS

    def rates(self, mean: float) -> list[float]:
        """Return the rate of each hour (requests per second): quiet at night, twice the mean at noon."""
        return [round(mean * (1.0 - 0.8 * math.cos(2 * math.pi * (hour + 0.5) / HOURS)), 2) for hour in range(HOURS)]
