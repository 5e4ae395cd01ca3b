"""Percentiles, histograms and bins hold what their descriptions promise."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.load.stats import LogHistogram, bin_width, describe, heat_map, log_edges, percentile

VALUES = st.lists(st.floats(1e-5, 1e4), min_size=1, max_size=200)


def test_a_percentile_lies_linearly_between_its_neighbours() -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], 50) == 2.5
    assert percentile([1.0, 2.0, 3.0, 4.0], 0) == 1.0
    assert percentile([1.0, 2.0, 3.0, 4.0], 100) == 4.0
    assert percentile([10.0], 99) == 10.0
    assert percentile([0.0, 100.0], 95) == pytest.approx(95.0)


def test_a_percentile_of_nothing_is_an_error_and_a_description_of_nothing_is_none() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)
    assert describe([]) is None


@given(VALUES)
def test_a_description_agrees_with_the_standard_library(values: list[float]) -> None:
    spread = describe(values)
    assert spread is not None
    assert spread.count == len(values)
    assert spread.mean == pytest.approx(statistics.fmean(values))
    assert spread.median == pytest.approx(statistics.median(values))
    assert spread.std == pytest.approx(statistics.pstdev(values), rel=1e-6, abs=1e-9)
    assert spread.low <= spread.median <= spread.p90 <= spread.p95 <= spread.p99 <= spread.high


@given(VALUES)
def test_a_quantile_of_the_log_histogram_is_within_one_percent_of_a_counted_value(values: list[float]) -> None:
    histogram = LogHistogram()
    for value in values:
        histogram.add(value)
    ordered = sorted(values)
    for q in (0.0, 25.0, 50.0, 90.0, 99.0, 100.0):
        exact = ordered[int(q / 100 * (len(ordered) - 1))]
        assert histogram.quantile(q) == pytest.approx(exact, rel=0.0101)


def test_the_log_histogram_keeps_count_mean_and_extremes_exactly() -> None:
    rng = random.Random(1)
    values = [rng.expovariate(50.0) for _ in range(5000)]
    histogram = LogHistogram()
    for value in values:
        histogram.add(value)
    spread = histogram.describe()
    assert spread is not None
    assert (spread.count, spread.low, spread.high) == (5000, min(values), max(values))
    assert spread.mean == pytest.approx(statistics.fmean(values))
    assert spread.p99 == pytest.approx(percentile(sorted(values), 99), rel=0.02)
    assert len(histogram.counts) < 1500


def test_the_log_histogram_counts_zero_and_negative_gaps_as_nothing() -> None:
    histogram = LogHistogram()
    histogram.add(0.0)
    histogram.add(-1.0)
    assert histogram.count == 2
    assert histogram.quantile(50) == 0.0
    assert LogHistogram().describe() is None


@given(st.floats(0.01, 1e6), st.integers(1, 100))
def test_a_bin_is_round_and_there_are_never_too_many(span: float, at_most: int) -> None:
    width = bin_width(span, at_most)
    assert span / width <= at_most + 1e-6
    mantissa = width / 10 ** math.floor(math.log10(width) + 1e-9)
    assert min(abs(mantissa - choice) for choice in (1, 2, 5, 10)) < 1e-6


@given(st.lists(st.tuples(st.floats(0, 60), st.floats(1e-4, 100)), min_size=1, max_size=300))
def test_every_point_is_in_exactly_one_cell_of_the_heat_map(points: list[tuple[float, float]]) -> None:
    heat = heat_map(points, 60.0, columns=30, rows=10)
    assert heat is not None
    assert sum(map(sum, heat.cells)) == len(points)
    assert heat.peak == max(map(max, heat.cells))
    assert len(heat.edges) == 11
    assert heat.edges[0] <= min(value for _, value in points)
    assert heat.edges[-1] >= max(value for _, value in points)


def test_a_point_of_the_heat_map_lies_between_its_edges() -> None:
    heat = heat_map([(0.5, 0.01), (1.5, 1.0), (1.6, 0.1)], 2.0, columns=2, rows=4)
    assert heat is not None
    assert heat.width == 1.0
    assert heat.cells == ((1, 0, 0, 0), (0, 0, 1, 1))


def test_values_that_hardly_differ_lie_in_the_middle_of_the_heat_map_instead_of_filling_it() -> None:
    heat = heat_map([(0.5, 0.0200), (1.5, 0.0201)], 2.0, columns=2, rows=8)
    assert heat is not None
    assert heat.edges[0] < 0.0101
    assert heat.edges[-1] > 0.0399
    assert all(sum(column[3:5]) == 1 for column in heat.cells)


def test_a_heat_map_of_nothing_is_none_and_of_one_value_still_has_edges() -> None:
    assert heat_map([], 10.0) is None
    assert heat_map([(1.0, 0.0)], 10.0) is None
    edges = log_edges(3.0, 3.0, 4)
    assert edges[0] == 3.0
    assert edges[-1] == 6.0
    assert list(edges) == sorted(edges)
