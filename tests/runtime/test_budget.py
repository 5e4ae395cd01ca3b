"""The time an orderly end needs follows from the plan, and people are told where a site gives less."""

from __future__ import annotations

import pytest

from runtime.budget import budget, drain_budget
from tests.runtime.plans import FULL, changed, parse


def test_the_budget_is_drain_grace_longest_stop_and_verdict() -> None:
    plan = parse(changed(FULL, ('"10s"', '"20s"')))
    found = drain_budget(plan)
    assert (found.drain_s, found.grace_s, found.stop_s, found.verdict_s) == (20, 2, 30, 5)
    assert found.total_s == 57
    assert budget(20, [5, 40, 30]).stop_s == 40


def test_the_warning_is_rounded_up() -> None:
    assert budget(0.2, [0.1]).signal_s == 8


@pytest.mark.parametrize(
    ("kill_wait", "words"),
    [(0, "responses"), (21, "responses"), (22, "replicas"), (51, "replicas"), (52, "verdict"), (56, "verdict")],
)
def test_a_short_kill_wait_says_what_a_plain_scancel_cuts(kill_wait: float, words: str) -> None:
    cut = budget(20, [30]).cut_by(kill_wait)
    assert cut is not None
    assert words in cut
    assert "dd-proxy cancel" in cut


def test_a_kill_wait_that_is_long_enough_cuts_nothing() -> None:
    assert budget(20, [30]).cut_by(57) is None
