"""The breaker: every state against every event, and exactly one probe at a time whatever the order of things."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.breaker import Breaker, BreakerState
from proxy.outcome import Verdict

CLOSED, HALF_OPEN, OPEN = BreakerState.CLOSED, BreakerState.HALF_OPEN, BreakerState.OPEN
SUCCESS, FAILURE, NEUTRAL = Verdict.SUCCESS, Verdict.FAILURE, Verdict.NEUTRAL
COOLDOWN_S = 5.0


def closed(failures: int = 0) -> Breaker:
    breaker = Breaker(3, COOLDOWN_S, 60.0)
    for _ in range(failures):
        breaker.record(FAILURE, False, 0.0)
    return breaker


def opened() -> Breaker:
    """Open since 0, until COOLDOWN_S."""
    return closed(3)


def probing() -> Breaker:
    """Half-open, its probe under way."""
    breaker = opened()
    assert breaker.enter(COOLDOWN_S)
    return breaker


def half_open() -> Breaker:
    """Half-open, the probe slot free."""
    breaker = probing()
    breaker.record(NEUTRAL, True, COOLDOWN_S)
    return breaker


def facts(breaker: Breaker) -> tuple[BreakerState, int, bool]:
    return breaker.state, breaker.failures, breaker.probing


NOW = COOLDOWN_S + 1.0

# state, verdict, of the probe -> state, failures, probing
TABLE = [
    (closed(0), SUCCESS, False, (CLOSED, 0, False)),
    (closed(2), SUCCESS, False, (CLOSED, 0, False)),
    (closed(0), FAILURE, False, (CLOSED, 1, False)),
    (closed(1), FAILURE, False, (CLOSED, 2, False)),
    (closed(2), FAILURE, False, (OPEN, 3, False)),
    (closed(0), NEUTRAL, False, (CLOSED, 0, False)),
    (closed(2), NEUTRAL, False, (CLOSED, 2, False)),
    (opened(), SUCCESS, False, (CLOSED, 0, False)),
    (opened(), FAILURE, False, (OPEN, 3, False)),
    (opened(), NEUTRAL, False, (OPEN, 3, False)),
    (probing(), SUCCESS, False, (CLOSED, 0, True)),
    (probing(), FAILURE, False, (HALF_OPEN, 3, True)),
    (probing(), NEUTRAL, False, (HALF_OPEN, 3, True)),
    (probing(), SUCCESS, True, (CLOSED, 0, False)),
    (probing(), FAILURE, True, (OPEN, 3, False)),
    (probing(), NEUTRAL, True, (HALF_OPEN, 3, False)),
    (half_open(), SUCCESS, False, (CLOSED, 0, False)),
    (half_open(), FAILURE, False, (HALF_OPEN, 3, False)),
    (half_open(), NEUTRAL, False, (HALF_OPEN, 3, False)),
]


@pytest.mark.parametrize(("breaker", "verdict", "probe", "after"), TABLE, ids=str)
def test_what_each_verdict_does_in_each_state(
    breaker: Breaker, verdict: Verdict, probe: bool, after: tuple[BreakerState, int, bool]
) -> None:
    breaker.record(verdict, probe, NOW)
    assert facts(breaker) == after


# state, when -> admitted, entered as the probe, state afterwards
CHOICES = [
    (closed(0), 0.0, True, False, CLOSED),
    (closed(2), 0.0, True, False, CLOSED),
    (opened(), 0.0, False, False, OPEN),
    (opened(), COOLDOWN_S - 0.001, False, False, OPEN),
    (opened(), COOLDOWN_S, True, True, HALF_OPEN),
    (probing(), NOW, False, False, HALF_OPEN),
    (probing(), 1e9, False, False, HALF_OPEN),
    (half_open(), NOW, True, True, HALF_OPEN),
]


@pytest.mark.parametrize(("breaker", "now", "admitted", "probe", "after"), CHOICES, ids=str)
def test_who_is_admitted_in_each_state(
    breaker: Breaker, now: float, admitted: bool, probe: bool, after: BreakerState
) -> None:
    assert breaker.admits(now) is admitted
    assert breaker.enter(now) is probe
    assert breaker.state is after


def test_each_failed_probe_doubles_the_cooldown_up_to_its_maximum_and_success_resets_it() -> None:
    breaker = Breaker(1, 5.0, 18.0)
    breaker.record(FAILURE, False, 0.0)
    now, cooldowns = 0.0, [breaker.open_until]
    for _ in range(3):
        now = breaker.open_until
        assert breaker.enter(now)
        breaker.record(FAILURE, True, now)
        cooldowns.append(breaker.open_until - now)
    assert cooldowns == [5.0, 10.0, 18.0, 18.0]
    assert breaker.enter(breaker.open_until)
    breaker.record(SUCCESS, True, 100.0)
    breaker.record(FAILURE, False, 100.0)
    assert breaker.open_until == 105.0
    assert breaker.trips == 5


def test_a_threshold_of_nought_never_opens() -> None:
    breaker = Breaker(0, 5.0, 60.0)
    for _ in range(1000):
        breaker.record(FAILURE, False, 0.0)
    assert breaker.state is CLOSED


@pytest.mark.parametrize(("state", "code"), [(CLOSED, 0), (HALF_OPEN, 1), (OPEN, 2)])
def test_the_metrics_number_of_each_state(state: BreakerState, code: int) -> None:
    assert state.code == code


@given(st.lists(st.tuples(st.sampled_from(["enter", *Verdict]), st.booleans(), st.floats(0, 8)), max_size=60))
def test_there_is_one_probe_at_a_time_and_its_slot_always_comes_back(
    steps: list[tuple[str | Verdict, bool, float]],
) -> None:
    """Verdicts come in any order, those of older probes too, as attempts end in any order."""
    breaker, now, outstanding = Breaker(1, COOLDOWN_S, 60.0), 0.0, 0
    for step, probe, pause in steps:
        now += pause
        if isinstance(step, str):
            admitted = breaker.admits(now)
            entered = breaker.enter(now)
            assert not entered or admitted
            outstanding += entered
        else:
            probe = probe and outstanding > 0
            before = [getattr(breaker, name) for name in Breaker.__slots__]
            settled = breaker.sound and not probe and step is not FAILURE
            breaker.record(step, probe, now)
            assert not settled or before == [getattr(breaker, name) for name in Breaker.__slots__]
            outstanding -= probe
        assert outstanding <= 1
        assert breaker.probing == (outstanding == 1)
        assert breaker.admits(now) or breaker.state is not CLOSED
    breaker.record(NEUTRAL, outstanding > 0, now)
    assert breaker.admits(now + 60.0)
