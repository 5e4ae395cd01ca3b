"""A drill file means what it says, a mistake in it is named, and a seed always invents the same day."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.drilling.day import HOURS, IN_TROUBLE_AT_ONCE, Day
from tools.drilling.spec import ACTIONS, BadDrill, Event, parse_drill, read_drill
from tools.fake.faults import KINDS
from tools.load.options import parse

BASE: dict[str, Any] = {"title": "t", "about": "a", "seconds": 10, "load": [{"rate": 5}]}


def test_an_event_that_lasts_becomes_its_begin_and_its_end() -> None:
    events = [
        {"at": 0.5, "for": 0.2, "replica": 1, "kind": "hang"},
        {"at": 0.1, "for": 0.2, "replica": 0, "do": "kill"},
        {"at": 0.4, "replica": "all", "do": "roll"},
    ]
    drill = parse_drill("x", {**BASE, "event": events})
    assert [(event.at, event.action, event.replica) for event in drill.events] == [
        (0.1, "kill", 0),
        (pytest.approx(0.3), "start", 0),
        (0.4, "roll", None),
        (0.5, "fault", 1),
        (0.7, "clear", 1),
    ]
    assert drill.events[-1].fields == {"only": "hang"}
    assert drill.needs_replicas
    assert not parse_drill("x", BASE).needs_replicas


def test_every_event_can_be_said_in_a_sentence() -> None:
    for action in ACTIONS:
        for kind in KINDS if action == "fault" else ("",):
            words = Event(0.0, action, 1, {"kind": kind}).words
            assert words.startswith("Replica 1 ")
            assert "{" not in words
    half = Event(0.0, "fault", None, {"kind": "status", "status": 500, "share": 0.5})
    assert half.words == "Every replica answers 500, 50% of the time"


def test_options_of_proxy_and_load_are_those_of_their_commands() -> None:
    drill = parse_drill("x", {**BASE, "proxy": {"health_interval": 0.2, "no_retry_post": True},
                              "load": [{"rate": [5, 10], "stream": 0.5}]})  # fmt: skip
    assert drill.proxy_arguments() == ["--health-interval", "0.2", "--no-retry-post"]
    arguments = drill.load_arguments(0, 4.0)
    assert arguments == ["--rate", "steps:5x2.0000,10x2.0000", "--stream", "0.5"]
    assert [leg.start for leg in parse(["--url", "http://h:1", *arguments]).plan.legs] == [5, 10]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"colour": 1}, "colour: unknown"),
        ({"load": []}, "load: at least one"),
        ({"seconds": 0}, "seconds"),
        ({"replicas": {"number": 3}}, "replicas.number: unknown"),
        ({"holds": {"lots": 3}}, "holds.lots: unknown"),
        ({"event": [{"at": 2, "replica": 0, "kind": "hang"}]}, "event.at"),
        ({"event": [{"at": 0, "replica": 9, "kind": "hang"}]}, "event.replica"),
        ({"event": [{"at": 0, "replica": 0, "kind": "flood"}]}, "event.kind"),
        ({"event": [{"at": 0, "replica": 0, "do": "explode"}]}, "event.do"),
        ({"event": [{"at": 0, "for": 0.1, "replica": 0, "do": "roll"}]}, "event.for"),
        ({"day": {"sed": 1}}, "day.sed: unknown"),
    ],
)
def test_a_mistake_is_named_with_its_key(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_drill("x", {**BASE, **change})


def test_a_file_that_is_no_drill_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    for text in ("title =", 'title = "x"\n'):
        path.write_text(text)
        with pytest.raises(BadDrill, match=r"x\.toml"):
            read_drill(path)
    with pytest.raises(BadDrill, match=r"none\.toml"):
        read_drill(tmp_path / "none.toml")


@given(st.integers(0, 500), st.integers(3, 8))
def test_a_day_is_the_same_for_a_seed_and_never_has_too_many_replicas_in_trouble(seed: int, replicas: int) -> None:
    day = Day(seed=seed, per_hour=3.0)
    moments = day.events(replicas)
    assert moments == day.events(replicas)
    in_trouble: set[int | None] = set()
    for at, action, replica, _ in moments:
        assert 1 / HOURS <= at <= 1
        if action in ("fault", "kill", "pause"):
            assert replica not in in_trouble, "one trouble at a time for a replica"
            in_trouble.add(replica)
        else:
            in_trouble.discard(replica)
        assert len(in_trouble) <= IN_TROUBLE_AT_ONCE
    assert not in_trouble, "every trouble ends"


def test_the_load_of_a_day_is_quiet_at_night_and_has_the_mean_that_was_asked_for() -> None:
    rates = Day().rates(40.0)
    assert len(rates) == HOURS
    assert min(rates) == min(rates[0], rates[-1])
    assert sum(rates) / HOURS == pytest.approx(40.0, rel=0.01)
    assert max(rates) > 1.7 * 40
