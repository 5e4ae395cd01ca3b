"""Requests are due when the profile says, in number and in spread."""

from __future__ import annotations

import itertools
import random
import statistics
from pathlib import Path

import orjson
import pytest

from tools.load.jobs import Jobs, Template, parse_sizes, read_trace
from tools.load.pace import arrivals, parse_rate


def due(rate: str, burstiness: float | None, until: float, seed: int = 0) -> list[float]:
    return list(itertools.takewhile(lambda at: at < until, arrivals(parse_rate(rate), burstiness, seed)))


def test_a_constant_rate_is_evenly_spaced() -> None:
    assert due("10", None, 1.0) == pytest.approx([index / 10 for index in range(10)])


def test_an_infinite_rate_is_due_at_once() -> None:
    assert list(itertools.islice(arrivals(parse_rate("inf"), 1.0), 5)) == [0.0] * 5


@pytest.mark.parametrize(("burstiness", "variation"), [(1.0, 1.0), (0.25, 2.0), (4.0, 0.5)])
def test_burstiness_sets_the_variation_of_the_gaps_and_leaves_the_rate_alone(
    burstiness: float, variation: float
) -> None:
    times = due("100", burstiness, 200.0)
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert len(times) == pytest.approx(20_000, rel=0.05)
    assert statistics.pstdev(gaps) / statistics.fmean(gaps) == pytest.approx(variation, rel=0.05)


def test_a_ramp_sends_ever_more_and_then_holds_its_end_rate() -> None:
    times = due("ramp:10:50:10", None, 20.0)
    per_second = [sum(second <= at < second + 1 for at in times) for second in range(20)]
    assert per_second[0] in (11, 12, 13)
    assert per_second[9] in (47, 48, 49)
    assert per_second[10:] == [50] * 10
    assert sum(per_second[:10]) == pytest.approx(300, abs=1)


def test_a_ramp_may_go_down() -> None:
    times = due("ramp:50:10:10", None, 10.0)
    assert len(times) == pytest.approx(300, abs=1)
    assert sum(at < 1 for at in times) > 3 * sum(at >= 9 for at in times)


def test_steps_follow_each_other_pauses_included_and_then_it_ends() -> None:
    times = due("steps:10x2,0x3,40x1", None, 100.0)
    assert [sum(second <= at < second + 1 for at in times) for second in range(7)] == [10, 10, 0, 0, 0, 40, 0]


def test_the_same_seed_is_the_same_load() -> None:
    assert due("50", 1.0, 5.0, seed=3) == due("50", 1.0, 5.0, seed=3)
    assert due("50", 1.0, 5.0, seed=3) != due("50", 1.0, 5.0, seed=4)


@pytest.mark.parametrize("text", ["", "0", "-3", "fast", "ramp:1:2", "steps:10", "steps:10x0", "ramp:0:5:5", "nan"])
def test_a_bad_rate_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_rate(text)


@pytest.mark.parametrize(
    ("text", "low", "high", "mean"),
    [
        ("128", 128, 128, 128),
        ("uniform:10:20", 10, 20, 15),
        ("normal:100:10", 1, 200, 100),
        ("lognormal:100:0.5", 1, 5000, 113),
        ("exponential:50", 1, 5000, 50),
    ],
)
def test_sizes_follow_their_distribution(text: str, low: int, high: int, mean: float) -> None:
    sizes, rng = parse_sizes(text), random.Random(1)
    drawn = [sizes.draw(rng) for _ in range(5000)]
    assert low <= min(drawn)
    assert max(drawn) <= high
    assert statistics.fmean(drawn) == pytest.approx(mean, rel=0.05)


@pytest.mark.parametrize("text", ["", "many", "uniform:5", "pareto:3:1", "normal:-1:1", "fixed:0"])
def test_a_bad_distribution_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_sizes(text)


def test_a_request_is_framed_exactly_and_says_what_was_asked() -> None:
    template = Template("h:1", "/v1/chat/completions", headers=("X-A: b",), inputs=parse_sizes("50"),
                        outputs=parse_sizes("7"), stream_share=1.0, extra={"temperature": 0})  # fmt: skip
    job = next(Jobs(template))
    head, _, body = job.request.partition(b"\r\n\r\n")
    fields = orjson.loads(body)
    assert head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\nHost: h:1\r\n")
    assert b"\r\nX-A: b\r\n" in head
    assert head.endswith(b"Content-Length: %d" % len(body))
    assert (fields["max_tokens"], fields["stream"], fields["temperature"]) == (7, True, 0)
    assert len(fields["messages"][0]["content"].split()) == 50


def test_prompts_differ_from_request_to_request_and_are_the_same_for_the_same_seed() -> None:
    template = Template("h:1", "/v1/completions", inputs=parse_sizes("30"))
    one, other = Jobs(template, seed=1), Jobs(template, seed=1)
    first, second = next(one).request, next(one).request
    assert first != second
    assert next(other).request == first
    assert b'"prompt"' in first


def test_a_get_has_no_body() -> None:
    assert next(Jobs(Template("h:1", "/v1/models", method="GET"))).request.endswith(b"\r\n\r\n")


def test_a_trace_gives_prompts_sizes_and_times(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(
        '{"timestamp": 1500, "input_length": 20, "output_length": 3}\n\n'
        '{"timestamp_s": 2, "prompt": "one two three", "max_tokens": 9, "stream": true}\n'
    )
    lines = read_trace(path)
    assert [(line.at, line.tokens_in, line.tokens_out, line.stream) for line in lines] == [
        (1.5, 20, 3, None),
        (2.0, 3, 9, True),
    ]
    jobs = Jobs(Template("h:1", "/v1/completions"), lines)
    made = [next(jobs) for _ in range(3)]
    assert b"one two three" in made[1].request
    assert [job.tokens_out for job in made] == [3, 9, 3]


@pytest.mark.parametrize("text", ["", "[]\n", "{\n", "{}\n", '{"prompt":"x","max_tokens":"many"}\n'])
def test_a_bad_trace_is_refused_with_file_and_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"bad\.jsonl"):
        read_trace(path)
