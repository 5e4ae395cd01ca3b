"""Everybody gets one turn in each interval, whoever comes, goes or fails; on a loop whose clock the test moves."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import pytest

from proxy.turns import BATCH, Turns

INTERVAL_S = 1.0


@dataclass
class Timer:
    at: float
    call: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class Clock:
    """As much of a loop as turns need; `now` moves from timer to timer."""

    now: float = 100.0
    timers: list[Timer] = field(default_factory=list)
    errors: list[object] = field(default_factory=list)

    def time(self) -> float:
        return self.now

    def call_at(self, at: float, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(at, call))
        return self.timers[-1]

    def call_exception_handler(self, context: dict[str, object]) -> None:
        self.errors.append(context["exception"])

    def pending(self) -> list[Timer]:
        return [timer for timer in self.timers if not timer.cancelled]

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while (due := [timer for timer in self.pending() if timer.at <= end]) and len(self.timers) < 1000:
            first = min(due, key=lambda timer: timer.at)
            self.timers.remove(first)
            self.now = max(self.now, first.at)
            first.call()
        self.now = end


class Member:
    def __init__(self, clock: Clock, turns: Counter[Member]) -> None:
        self.clock, self.turns = clock, turns
        self.times: list[float] = []
        self.error: Exception | None = None

    def turn(self, now: float) -> None:
        assert now == self.clock.now
        self.times.append(now)
        self.turns[self] += 1
        if self.error is not None:
            raise self.error


class Stage:
    def __init__(self) -> None:
        self.clock = Clock()
        self.prepared = 0
        self.count: Counter[Member] = Counter()
        self.turns = Turns(cast(asyncio.AbstractEventLoop, self.clock), INTERVAL_S, self.prepare)

    def prepare(self) -> None:
        self.prepared += 1

    def members(self, number: int, first_s: float = 0.0) -> list[Member]:
        made = [Member(self.clock, self.count) for _ in range(number)]
        for member in made:
            self.turns.add(member, first_s)
        return made


@pytest.mark.parametrize("number", [1, 2, BATCH, BATCH + 1, 2 * BATCH, 3 * BATCH + 7])
def test_everybody_gets_one_turn_in_each_interval_in_even_batches(number: int) -> None:
    stage = Stage()
    members = stage.members(number)
    stage.clock.run(10 * INTERVAL_S - 0.001)
    assert {len(member.times) for member in members} == {10}
    batches = -(-number // BATCH)
    assert stage.prepared == 10 * batches
    sizes = Counter(time for member in members for time in member.times)
    assert max(sizes.values()) <= min(BATCH, -(-number // batches))
    for member in members:
        gaps = [b - a for a, b in zip(member.times, member.times[1:], strict=False)]
        assert gaps == pytest.approx([INTERVAL_S] * 9)


def test_the_first_turn_of_an_only_member_comes_when_it_is_wanted() -> None:
    stage = Stage()
    [member] = stage.members(1, first_s=0.25)
    stage.clock.run(0.2)
    assert member.times == []
    stage.clock.run(0.1)
    assert member.times == [100.25]


def test_who_goes_gets_no_more_turns_and_the_last_one_takes_the_timer_along() -> None:
    stage = Stage()
    members = stage.members(3)
    stage.clock.run(0.5)
    stage.turns.remove(members[0])
    stage.clock.run(INTERVAL_S)
    assert [len(member.times) for member in members] == [1, 2, 2]
    for member in members[1:]:
        stage.turns.remove(member)
    assert stage.clock.pending() == []
    stage.clock.run(INTERVAL_S)
    assert [len(member.times) for member in members] == [1, 2, 2]
    with pytest.raises(ValueError):
        stage.turns.remove(members[0])


def test_nobody_loses_a_turn_when_another_one_goes_before_it() -> None:
    stage = Stage()
    members = stage.members(2 * BATCH)
    stage.clock.run(INTERVAL_S * 1.25)
    stage.turns.remove(members.pop(0))
    before = dict(stage.count)
    stage.clock.run(INTERVAL_S)
    assert all(stage.count[member] > before[member] for member in members)


def test_a_member_that_fails_keeps_nobody_from_a_turn() -> None:
    stage = Stage()
    members = stage.members(3)
    members[0].error = RuntimeError("said by the test")
    stage.clock.run(2 * INTERVAL_S - 0.001)
    assert [len(member.times) for member in members] == [2, 2, 2]
    assert stage.clock.errors == [members[0].error] * 2


def test_a_loop_that_was_held_up_does_not_make_up_for_lost_turns() -> None:
    stage = Stage()
    [member] = stage.members(1)
    stage.clock.run(0.5)
    stage.clock.now += 20 * INTERVAL_S
    stage.clock.run(INTERVAL_S)
    assert len(member.times) <= 1 + 3
