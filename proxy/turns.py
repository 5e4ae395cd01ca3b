"""Gives everybody a turn in each interval: a batch at a time, the batches spread evenly over the interval.

Owns one timer for all of them: there is one of these for health probes and one for queue samples. Knows neither.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

BATCH = 64  # turns that come together: waking up costs as much as ten of them, and all of them half a millisecond


class Member(Protocol):
    """Somebody who gets turns."""

    def turn(self, now: float) -> None:
        """Do what is to be done once in each interval; `now` is the loop's time."""


class Turns:
    """Turns for all members, `interval_s` apart; `prepare` is called before each batch of them.

    A member that comes or goes may once move the turns of others by up to an interval, and changes nothing for good.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, interval_s: float, prepare: Callable[[], None]) -> None:
        self._loop = loop
        self._interval_s = interval_s
        self._prepare = prepare
        self._members: deque[Member] = deque()  # whose turn is next stands first
        self._left = 0  # members without a turn in the present round
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, member: Member, first_s: float) -> None:
        """Give a member turns from now on, as the last of all; an only member gets its first in `first_s` seconds."""
        self._members.append(member)
        if self._timer is None:
            self._due = self._loop.time() + first_s
            self._timer = self._loop.call_at(self._due, self._tick)

    def remove(self, member: Member) -> None:
        """Give a member no more turns; raises ValueError when it is none."""
        self._members.remove(member)
        self._left = min(self._left, len(self._members))
        if not self._members and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        loop, members = self._loop, self._members
        self._left = self._left or len(members)
        batches = -(-len(members) // BATCH)
        batch = min(-(-len(members) // batches), self._left)
        self._left -= batch
        self._due = max(self._due + self._interval_s / batches, loop.time())
        self._timer = loop.call_at(self._due, self._tick)
        self._prepare()
        now = loop.time()
        for _ in range(batch):
            member = members[0]
            members.rotate(-1)
            try:
                member.turn(now)
            except Exception as e:  # noqa: BLE001  (the others get their turns all the same)
                loop.call_exception_handler({"message": "a probe failed to begin", "exception": e})
