"""The queue depth is found in the pages of both engines, however they are cut and however they change."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.queue_depth import DepthReader, series_value


def read(reader: DepthReader, page: bytes, sizes: list[int] | None = None) -> float | None:
    """Read a page in pieces of the given sizes, again and again."""
    reader.begin()
    at, turn = 0, 0
    while at < len(page):
        size = sizes[turn % len(sizes)] if sizes else len(page)
        reader.feed(memoryview(page[at : at + size]))
        at, turn = at + size, turn + 1
    return reader.finish()


def read_once(page: bytes, engine: str = "auto", sizes: list[int] | None = None) -> float | None:
    return read(DepthReader(engine), page, sizes)


OTHERS = b"""# HELP python_gc_objects_collected_total Objects collected during gc
# TYPE python_gc_objects_collected_total counter
python_gc_objects_collected_total{generation="0"} 9361.0
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
"""
WAITING = b"""# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 7.0
vllm:num_requests_waiting{engine="1",model_name="m"} 5.0
"""
SGLANG = b"""# HELP sglang:num_queue_reqs The number of requests in the waiting queue.
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{engine_type="unified",model_name="m",tp_rank="0"} 4.0
"""
AFTER = b"""# HELP vllm:num_requests_waiting_by_reason Something else.
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{reason="capacity"} 99.0
"""

PAGES = [
    (OTHERS + WAITING + AFTER, 12.0),
    (OTHERS + SGLANG, 4.0),
    (WAITING, 12.0),
    (b"vllm:num_requests_waiting 3", 3.0),
    (b"vllm_num_requests_waiting 3\n", 3.0),
    (b"sglang_num_queue_reqs 3\n", 3.0),
    (b"x 1\r\nvllm:num_requests_waiting 3\r\n", 3.0),
    (b"vllm:num_requests_waiting\t3\n", 3.0),
    (b"vllm:num_requests_waiting{} 0\n", 0.0),
    (b'vllm:num_requests_waiting{a="b"} 1.5e2 1700000000000\n', 150.0),
    (b'vllm:num_requests_waiting{a="}",b="\\"} 9"} 2\n', 2.0),
    (b'vllm:num_requests_waiting{a="{x} 7"}    2   \n', 2.0),
    (b"vllm:num_requests_waiting 1\n# a comment\n", 1.0),
    (b"", None),
    (OTHERS, None),
    (OTHERS + AFTER, None),
    (b"# vllm:num_requests_waiting 3\n", None),
    (b" vllm:num_requests_waiting 3\n", None),
    (b"vllm:num_requests_waitingx 3\n", None),
    (b"my_vllm:num_requests_waiting 3\n", None),
    (b"vllm:num_requests_waiting NaN\n", None),
    (b"vllm:num_requests_waiting +Inf\n", None),
    (b"vllm:num_requests_waiting -1\n", None),
    (b"vllm:num_requests_waiting three\n", None),
    (b"vllm:num_requests_waiting\n", None),
    (b"vllm:num_requests_waiting 1 2 3\n", None),
    (b'vllm:num_requests_waiting{a="1"} 3\nvllm:num_requests_waiting{a="2"} NaN\n', None),
]


@pytest.mark.parametrize(("page", "depth"), PAGES)
@pytest.mark.parametrize("size", [1, 2, 7, 64, 100_000])
def test_the_depth_is_the_sum_of_all_series_or_unknown(page: bytes, depth: float | None, size: int) -> None:
    assert read_once(page, sizes=[size]) == depth


def test_every_place_of_a_cut_gives_the_same() -> None:
    page = OTHERS + WAITING + AFTER
    for at in range(1, len(page)):
        assert read_once(page, sizes=[at, len(page)]) == 12.0


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(PAGES), st.lists(st.integers(1, 50), min_size=1, max_size=10))
def test_cuts_change_nothing(page: tuple[bytes, float | None], sizes: list[int]) -> None:
    assert read_once(page[0], sizes=sizes) == page[1]


def test_only_the_engine_that_was_named_is_read() -> None:
    assert read_once(OTHERS + WAITING, "vllm") == 12.0
    assert read_once(OTHERS + WAITING, "sglang") is None
    assert read_once(SGLANG, "sglang") == 4.0
    assert read_once(SGLANG, "vllm") is None


def filler(size: int, name: bytes = b"vllm:e2e_request_latency_seconds_bucket") -> bytes:
    line = name + b'{engine="0",le="0.3",model_name="m"} 123.0\n'
    return line * (size // len(line) + 1)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 60_000), st.integers(0, 40_000), st.integers(0, 999)), min_size=1, max_size=5),
    st.sampled_from([1_000, 4_096, 65_536, 262_144]),
)
def test_a_page_that_grows_shrinks_or_moves_is_read_right_or_not_at_all(
    pages: list[tuple[int, int, int]], size: int
) -> None:
    """What one page taught a reader never makes it read the next one wrong."""
    reader = DepthReader("auto")
    last: float | None = 0.0
    for before, after, depth in pages:
        series = b"".join(b'vllm:num_requests_waiting{engine="%d"} %d\n' % (n, depth) for n in range(3))
        found = read(reader, filler(before) + series + filler(after), [size])
        assert found in (3 * depth, None)
        assert found is not None or last is not None, "unreadable twice in a row"
        last = found


def test_a_page_that_grew_is_read_at_once() -> None:
    reader = DepthReader("auto")
    for growth in range(0, 100_000, 9_000):
        assert read(reader, filler(50_000 + growth) + WAITING + filler(1000), [65_536]) == 12.0


def test_a_search_that_would_begin_in_the_middle_of_the_series_is_no_reading() -> None:
    """The page shrank, so that the place from which it is searched lies between two series of the name."""
    series = b"".join(b'vllm:num_requests_waiting{engine="%d"} 10\n' % n for n in range(9))
    for shrunk in range(16_000, 17_200, 20):
        reader = DepthReader("auto")
        assert read(reader, b"#" * 40_000 + b"\n" + series) == 90.0
        assert read(reader, b"#" * (40_000 - shrunk) + b"\n" + series) in (90.0, None)


def test_a_search_that_would_begin_on_the_last_of_the_series_is_no_reading() -> None:
    """A page that has shrunk: however the place of before lies in it, a part of the sum is never told."""
    series = b"".join(b'vllm:num_requests_waiting{engine="%d"} 10\n' % engine for engine in range(9))
    for shrunk in range(16_000, 17_200):
        reader = DepthReader("auto")
        assert read(reader, b"#" * 40_000 + b"\n" + series) == 90.0
        assert read(reader, b"#" * (40_000 - shrunk) + b"\n" + series) in (90.0, None)


def test_an_engine_that_starts_late_or_changes_is_found() -> None:
    reader = DepthReader("auto")
    assert [read(reader, page) for page in (OTHERS, OTHERS + WAITING, OTHERS, SGLANG, OTHERS, WAITING)][1::2] == [
        12.0,
        4.0,
        12.0,
    ]


def test_an_overlong_line_costs_bounded_memory_and_nothing_else() -> None:
    page = b'x{a="' + b"y" * 500_000 + b'"} 1\n' + WAITING
    assert read_once(page, sizes=[10_000]) == 12.0


@pytest.mark.parametrize(
    ("rest", "value"),
    [
        (b" 1", 1.0),
        (b"{} 1", 1.0),
        (b'{a="}"} 1', 1.0),
        (b" 1 2", 1.0),
        (b" 1e-3", 0.001),
        (b" -0", 0.0),
        (b"", None),
        (b'{a="b"}', None),
        (b" nan", None),
        (b" inf", None),
        (b" -1", None),
    ],
)
def test_a_value_is_a_finite_number_of_at_least_nought(rest: bytes, value: float | None) -> None:
    assert series_value(rest) == value


def test_series_are_found_where_they_stood_and_anywhere_else_they_moved_to() -> None:
    filler = b'vllm:other_total{engine="0"} 1.0\n'
    series = b'vllm:num_requests_waiting{engine="0"} 3.0\nvllm:num_requests_waiting{engine="1"} 4.0\n'
    near = b"vllm:num_requests_waiting_by_reason 9.0\n"
    reader = DepthReader("auto")
    for before, after in ((900, 900), (900, 900), (901, 900), (899, 5), (899, 900), (0, 900), (0, 0), (900, 0)):
        page = filler * before + near + series + near + filler * after
        for cut in (1, len(filler) * before + 7, len(page) // 2):
            depth = read(reader, page, [cut])
            if depth is None:  # it moved far: this page is passed over, the next one is not
                depth = read(reader, page, [cut])
            assert depth == 7.0, f"{before} lines before, {after} behind, cut at {cut}"
