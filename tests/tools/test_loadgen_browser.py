"""The report pages in a real browser: they fit desk and phone, show each chart once, and ask for nothing."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.page.browser import CHROMIUM, DRIVER, chromium, complaints, requested
from tools.drilling.checks import State, Verdict
from tools.drilling.report import render as render_drills
from tools.drilling.runner import Report
from tools.drilling.spec import parse_drill
from tools.load.book import Book, Row, Sample
from tools.load.report import render
from tools.load.results import summarise
from tools.load.scrape import Snapshot
from tools.load.wire import Outcome

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="chromium and chromedriver are not installed"),
]


def pages(directory: Path) -> list[str]:
    """Write a load report with everything in it and a report of drills; return their addresses."""
    book = Book(counted_to=30.0, elapsed=30.0)
    for index in range(600):
        due = index / 20
        outcome = Outcome.TRUNCATED if index % 50 == 0 else Outcome.OK
        first = math.nan if index % 3 else due + 0.02
        book.add(Row(due, due, first, due + 0.05 + index % 7 / 10, 100, 20, outcome, 200, 1, counted=True))
    book.samples = [Sample(at / 10, at % 16, at % 5, 16 - at % 9, at % 20 == 0) for at in range(300)]
    book.refused_at.extend([3.0, 3.1, 9.0])
    names = [f"127.0.0.1:{port}" for port in range(18001, 18009)]
    snapshots = [
        Snapshot(at / 2, dict.fromkeys(names, at * 5.0), {name: float(at != 20) for name in names},
                 retries={"http_503": at}) for at in range(60)
    ]  # fmt: skip
    figures = summarise(book, (("ttft", 100.0),), snapshots)
    figures["settings"] = {"Endpoint": "POST http://a-rather-long-host-name.example.org:8000 /v1/chat/completions"}
    drill = parse_drill("one", {"title": "One", "about": "About " * 30, "seconds": 9, "load": [{"rate": 5}]})
    verdicts = [Verdict("attempts counted alike", State.BROKEN, "127.0.0.1:18001: 12, " * 20)]
    reports = [Report(drill, 9.0, verdicts, [figures], [(1.5, "replica 0: hang")])]
    (directory / "load.html").write_text(render(figures), encoding="utf-8")
    drills = render_drills(reports, "today").replace('<details class="load">', '<details class="load" open>')
    (directory / "drills.html").write_text(drills, encoding="utf-8")
    return [(directory / name).as_uri() for name in ("load.html", "drills.html")]


@pytest.mark.parametrize(("width", "dark"), [(1200, False), (390, True)], ids=["desk, light", "phone, dark"])
def test_a_report_fits_its_screen_and_shows_each_chart_once(tmp_path: Path, width: int, dark: bool) -> None:
    with chromium(tmp_path / "profile", width=width, dark=dark) as browser:
        for address in pages(tmp_path):
            browser.get(address)
            overflow = browser.execute_script("return document.documentElement.scrollWidth - innerWidth")
            assert overflow <= 0, f"{address} is {overflow} pixels wider than the screen"
            shown = (
                "[...document.querySelectorAll(arguments[0])].filter(e => e.getBoundingClientRect().width > 0).length"
            )
            wide, narrow = (browser.execute_script(f"return {shown}", f"{kind} svg") for kind in (".wide", ".narrow"))
            assert (wide > 5, narrow > 5) == (width > 640, width <= 640)
            ground = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
            assert (ground == "rgb(15, 15, 14)") is dark
        assert complaints(browser) == []
        assert all(url.startswith("file:") for url in requested(browser))
