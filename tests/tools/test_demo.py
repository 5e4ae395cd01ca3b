"""The demo tells the truth about what was lost."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tools.demo import STORY, Outcomes, StoryJobs, verdict
from tools.launch import ROOT, Metrics
from tools.load.book import Book, Row
from tools.load.jobs import Template
from tools.load.wire import Outcome

WHOLE = 'dd_proxy_responses_total{code="200"} '


def outcomes(rows: list[Outcome], whole: int) -> Outcomes:
    """Return the end of a run with these requests, of which the proxy counted so many as whole."""
    book = Book()
    for outcome in rows:
        book.add(Row(0, 0, 0, 1, 10, 10, outcome, 200, 1, True))
    return Outcomes(book, Metrics(f"# TYPE dd_proxy_responses counter\n{WHOLE}{whole}\n"), 1.0, 0.1, 2**20)


def test_all_is_well_when_every_request_was_answered_whole_and_the_proxy_agrees() -> None:
    assert verdict(outcomes([Outcome.OK] * 5, 5)) == (True, "Nothing was lost: all 5 requests were answered whole.")


@pytest.mark.parametrize("lost", sorted(set(Outcome) - {Outcome.OK}))
def test_anything_but_a_whole_answer_is_lost(lost: Outcome) -> None:
    well, line = verdict(outcomes([Outcome.OK, Outcome.OK, lost], 2))
    assert not well
    assert line.startswith("LOST: 1 of 3")


def test_a_proxy_that_counts_otherwise_than_its_clients_is_not_well() -> None:
    well, line = verdict(outcomes([Outcome.OK] * 3, 4))
    assert not well
    assert "DISAGREE" in line


async def test_every_act_of_the_story_comes_on_stage_in_order() -> None:
    jobs = StoryJobs(Template("h", "/v1/chat/completions"), 100)
    for _ in range(100):
        next(jobs)
    acts = [jobs.stage.get_nowait() for _ in range(jobs.stage.qsize())]
    assert acts == list(STORY)


@pytest.mark.slow
def test_the_demo_loses_nothing() -> None:
    argv = [sys.executable, str(ROOT / "tools" / "demo.py"), "--requests", "1500", "--users", "24"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Nothing was lost: all 1500 requests were answered whole" in done.stdout
    for act in STORY:
        assert f"replica {act.replica + 1} {act.text}" in done.stderr
