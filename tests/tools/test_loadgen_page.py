"""The report draws what the figures say, escapes what others wrote, and fits any screen."""

from __future__ import annotations

import html
import itertools
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.load import charts, page
from tools.load.book import Book, Row
from tools.load.charts import HEAT_STEPS, Scale, Series
from tools.load.report import render
from tools.load.results import is_good, summarise
from tools.load.wire import Outcome


def book(count: int = 200) -> Book:
    """Return a run of ten seconds in which every tenth request got a 503 and all took 100 ms."""
    made = Book(counted_to=10.0, elapsed=10.0)
    for index in range(count):
        due = index * 10.0 / count
        bad = index % 10 == 0
        outcome, status = (Outcome.HTTP_ERROR, 503) if bad else (Outcome.OK, 200)
        first = math.nan if bad else due + 0.05
        made.add(Row(due, due, first, due + 0.1, 10, 0 if bad else 6, outcome, status, 1, counted=True))
    return made


@given(st.floats(1e-3, 1e9), st.integers(2, 10))
def test_ticks_are_evenly_spaced_from_zero_and_never_beyond(high: float, at_most: int) -> None:
    values = charts.ticks(high, at_most)
    assert values[0] == 0
    assert values[-1] <= high * (1 + 1e-6)
    assert len(values) <= at_most + 1
    steps = {round((after - before) / high, 6) for before, after in itertools.pairwise(values)}
    assert len(steps) <= 1


@pytest.mark.parametrize(
    ("low", "high", "values"),
    [(1.0, 10.0, [1, 2, 5, 10]), (0.5, 3.0, [0.5, 1, 2]), (1.0, 100_000.0, [1, 10, 100, 1000, 10_000, 100_000])],
)
def test_a_logarithmic_axis_has_a_handful_of_round_values(low: float, high: float, values: list[float]) -> None:
    assert charts.log_ticks(low, high) == pytest.approx(values)


def test_numbers_are_said_in_the_unit_that_people_would_choose() -> None:
    assert [charts.short(value) for value in (0, 0.25, 12, 1500, 2_000_000)] == ["0", "0.25", "12", "1.5k", "2M"]
    assert [charts.duration(ms) for ms in (0.02, 0.5, 12.3, 1500, 90_000)] == [
        "20 µs",
        "0.5 ms",
        "12.3 ms",
        "1.5 s",
        "1.5 min",
    ]
    assert [charts.clock(seconds) for seconds in (0, 12.5, 60, 200)] == ["0 s", "12.5 s", "1:00", "3:20"]
    assert [words for _, words in charts.time_ticks(300.0, 8)] == ["0:00", "1:00", "2:00", "3:00", "4:00", "5:00"]
    assert [words for _, words in charts.time_ticks(20.0, 4)] == ["0 s", "5 s", "10 s", "15 s", "20 s"]


def test_a_scale_maps_its_ends_to_its_ends_and_holds_what_is_outside() -> None:
    plain, log = Scale(0, 10, 100, 200), Scale(1, 100, 0, 10, log=True)
    assert [plain(value) for value in (-5, 0, 5, 10, 99)] == [100, 100, 150, 200, 200]
    assert [log(value) for value in (0.1, 1, 10, 100)] == [0, 0, 5, 10]


@given(st.lists(st.floats(0, 100), min_size=1, max_size=3000))
def test_thinning_a_line_keeps_its_ends_its_lowest_and_its_highest_value(values: list[float]) -> None:
    points = [(float(index), value) for index, value in enumerate(values)]
    thin = charts.sparse(points, at_most=100)
    assert len(thin) <= 102
    assert thin == sorted(thin)
    assert {min(values), max(values)} <= {value for _, value in thin}
    assert set(thin) <= set(points)


@given(st.integers(1, 10_000))
def test_more_requests_in_a_cell_never_mean_a_fainter_colour(peak: int) -> None:
    steps = [int(charts.heat_class(count, peak)[1:]) for count in range(1, min(peak, 300) + 1)]
    assert steps == sorted(steps)
    assert int(charts.heat_class(peak, peak)[1:]) == (HEAT_STEPS - 1 if peak > 1 else HEAT_STEPS // 2)
    assert peak == 1 or charts.heat_class(1, peak) == "h0"


def test_a_state_strip_joins_equal_states_and_covers_the_whole_time() -> None:
    strip = charts.strip([(0.4, "healthy"), (1.0, "healthy"), (5.0, "open"), (8.0, "healthy")], 10.0)
    bars = [(float(x), float(width)) for x, width in re.findall(r'x="([\d.]+)" width="([\d.]+)"', strip)]
    assert bars == [(0.0, 500.0), (500.0, 300.0), (800.0, 200.0)]
    assert "open from 5 s" in strip


def test_stacked_columns_stand_on_each_other() -> None:
    layers = [Series("a", "s1", [(0.0, 1.0)]), Series("b", "s2", [(0.0, 3.0)])]
    drawn = charts.columns("x", layers, 1.0, 1.0)
    lower, upper = re.findall(r'class="fill s[12]" d="M[\d.]+ ([\d.]+)V([\d.]+)', drawn)[:2]
    assert lower[1] == upper[0]
    assert float(upper[0]) - float(upper[1]) == pytest.approx(3 * (float(lower[0]) - float(lower[1])), rel=0.01)


def test_what_others_wrote_is_escaped() -> None:
    hostile = '<script>alert("x")</script>'
    whole = page.document(hostile, hostile, page.section(hostile, page.pairs([(hostile, hostile)]), hostile, hostile))
    whole += page.tiles([(hostile, hostile, hostile)]) + page.notes([hostile]) + charts.legend([(hostile, "s1")] * 2)
    whole += charts.lines(hostile, [Series(hostile, "s1", [(0.0, 1.0), (1.0, 2.0)])], 1.0)
    assert "<script" not in whole


def test_the_summary_counts_what_the_book_holds() -> None:
    figures = summarise(book(), goals=(("ttft", 60.0), ("e2el", 150.0)))
    assert (figures["requests"], figures["completed"], figures["failed"]) == (200, 180, 20)
    assert figures["statuses"] == {"200": 180, "503": 20}
    assert figures["request_throughput"] == pytest.approx(18.0, rel=0.02)
    assert figures["output_throughput"] == pytest.approx(108.0, rel=0.02)
    assert figures["median_ttft_ms"] == pytest.approx(50.0)
    assert figures["p99_e2el_ms"] == pytest.approx(100.0)
    assert figures["mean_tpot_ms"] == pytest.approx(10.0)
    assert figures["goodput"]["share"] == pytest.approx(0.9, abs=0.01)
    series = figures["series"]
    assert sum(series["completed"]) * series["width"] == pytest.approx(180, abs=1)
    assert list(series["errors"]) == ["http 503"]
    assert sum(map(sum, series["heat"]["e2el"]["cells"])) == 180


def test_goodput_asks_for_every_goal_and_for_a_good_end() -> None:
    row = Row(0.0, 0.0, 0.1, 1.0, 1, 10, Outcome.OK, 200, 1, counted=True)
    assert is_good(row, (("ttft", 101.0), ("tpot", 101.0), ("e2el", 1001.0)))
    for goal in (("ttft", 99.0), ("tpot", 99.0), ("e2el", 999.0)):
        assert not is_good(row, (("e2el", 5000.0), goal))
    assert not is_good(row._replace(outcome=Outcome.TRUNCATED), ())
    assert is_good(row._replace(first=math.nan), (("ttft", 1.0),)), "a unary answer has no first token to be late"


def test_a_generator_that_lagged_or_was_busy_says_so_at_the_top() -> None:
    lagged = book()
    for _ in range(100):
        lagged.lag.add(0.2)
    lagged.cpu_seconds = 9.9
    notes = summarise(lagged)["notes"]
    assert any("own loop lagged: 200 ms at p99" in note for note in notes)
    assert any("99% of a core" in note for note in notes)
    assert html.escape(notes[0]) in render(summarise(lagged))
    assert summarise(book())["notes"] == []


def test_a_run_in_which_nothing_ended_well_still_has_a_page() -> None:
    empty = Book(counted_to=1.0, elapsed=1.0)
    assert "Nothing was counted" in render(summarise(empty))
    empty.add(Row(0.1, 0.1, math.nan, 0.2, 1, 0, Outcome.CONNECT_ERROR, 0, 1, counted=True))
    assert "connect error" in render(summarise(empty))
