"""A request's story in words names who did what, in the order in which it happened."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.explain import LEFT_OUT, duration, explain, sentence
from proxy.outcome import CANCELLED, Failure, Verdict
from tests.unit.stand_in import attempt, request_event, stand_in


def told(*attempts: dict[str, Any], **fields: Any) -> str:
    return sentence(request_event(upstreams=list(attempts), attempts=len(attempts), **fields))


def test_a_failover_is_told_in_one_sentence() -> None:
    words = told(attempt("u3:1", "429", 0.012), attempt("u5:1", "200", 0.4))
    assert words == "u3:1 answered 429 after 12 ms, u5:1 served it"


@pytest.mark.parametrize("word", [*Failure, CANCELLED])
def test_every_way_to_fail_has_its_words(word: str) -> None:
    words = told(attempt("u1:1", word, 3.0), attempt("u2:1", "200", 0.1))
    assert words.endswith(", u2:1 served it")
    assert word not in words.replace("closed", "", 1) or word == "closed"
    assert "u1:1" in words


def test_an_error_that_was_passed_on_is_not_called_served() -> None:
    words = told(attempt("a:1", "503", 0.001), attempt("b:1", "503", 0.002), final_status=503)
    assert words == "a:1 answered 503 after 1 ms, b:1 answered 503 after 2 ms, which was passed on"


def test_an_earlier_answer_that_was_passed_on_at_the_end_is_told() -> None:
    words = told(attempt("a:1", "503", 0.01), attempt("b:1", "connect_error", 0.002), final_status=503)
    assert words == "a:1 answered 503 after 10 ms, b:1 could not be reached, and the client got 503"


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        ("200", "a:1 answered 200, and the client left, or was cut off by the proxy, after 2.5 s"),
        ("closed", "a:1 began an answer and broke it off after 2.5 s"),
        ("protocol_error", "a:1 began an answer and sent what is not proper HTTP after 2.5 s"),
        ("read_timeout", "a:1 began an answer and fell silent, given up after 2.5 s"),
    ],
)
def test_an_answer_that_did_not_come_whole_is_laid_at_the_right_door(outcome: str, words: str) -> None:
    assert told(attempt("a:1", outcome, 2.5), complete=False) == words


def test_a_departure_is_told_as_such() -> None:
    words = told(attempt("a:1", "cancelled", 2.5), final_status=499, complete=False)
    assert words == "the client left while a:1 worked, after 2.5 s"


@pytest.mark.parametrize("status", [400, 408, 413, 414, 429, 431, 499, 501, 502, 503, 504, 505])
def test_an_answer_of_the_proxy_itself_has_its_reason(status: int) -> None:
    words = told(final_status=status)
    assert words.startswith("the client left" if status == 499 else f"the proxy itself answered {status}: ")
    assert "no backend was asked" not in words


def test_the_long_story_says_who_was_left_out_of_each_choice_and_why() -> None:
    event = request_event(
        "r9", failover=True, attempts=2, upstreams=[attempt("a:1", "500", 0.02), attempt("b:1", "200", 0.3)]
    )
    lines = explain(event, [{"queue_depth": ["c:1"], "breaker": ["d:1"]}, {"tried": ["a:1"]}], ["a:1", "b:1"])
    text = "\n".join(lines)
    assert "First choice: left out: c:1 with too deep a queue; d:1 behind an open breaker" in text
    assert "Second choice: left out: a:1 tried already for this request" in text
    assert text.index("attempt 1: a:1: status 500") < text.index("attempt 2: b:1: status 200")
    assert lines[-1] == "In short: a:1 answered 500 after 20 ms, b:1 served it."


def test_a_backend_that_is_ruled_out_twice_is_named_once() -> None:
    event = request_event(upstreams=[attempt("a:1", "429", 0.02), attempt("b:1", "200", 0.3)])
    lines = explain(event, [None, {"tried": ["a:1"], "retry_after": ["a:1", "c:1"]}], ["a:1"])
    assert "Second choice: left out: a:1 tried already for this request; c:1 resting after a 429" in lines


def test_a_backend_that_was_chosen_although_it_is_ill_is_told_so() -> None:
    lines = explain(request_event(upstreams=[attempt("a:1", "200", 0.02)]), [{"unhealthy": ["a:1", "b:1"]}], ["a:1"])
    [choice] = [line for line in lines if line.startswith("First choice")]
    assert choice.startswith("First choice: left out: b:1 failing its health probes; a:1 was chosen although ")


def test_hundreds_of_backends_are_counted_rather_than_listed() -> None:
    ids = [f"n{number}:1" for number in range(200)]
    lines = explain(request_event(final_status=429, upstreams=[]), [{"queue_depth": ids}], ids)
    assert all(len(line) < 200 for line in lines)
    assert "n7:1 and 192 more with too deep a queue" in "\n".join(lines)


def test_every_reason_that_the_fleet_gives_has_its_words() -> None:
    fleet = stand_in(3, breaker_failure_threshold=1, max_connections_per_backend=1).fleet
    one = next(iter(fleet))
    fleet.set_draining(one, True)
    fleet.lease(one, 0.0)
    for _ in range(2):
        fleet.record_probe(one, False)
    fleet.record_verdict(one, Verdict.FAILURE, False, 0.0)
    fleet.record_depth(one, 999, 0.0)
    fleet.penalize(one, 5, 0.0)
    assert set(fleet.excluded(0.0, one.bit) or {}) == set(LEFT_OUT)


def test_the_long_story_tells_a_choice_that_found_nobody() -> None:
    event = request_event(final_status=429, attempts=0, upstreams=[])
    assert "  nobody was left to try" in explain(event, [{"queue_depth": ["a:1"]}], ["a:1"])


def test_the_long_story_tells_a_fresh_connection_to_the_same_backend() -> None:
    event = request_event(
        upstreams=[attempt("a:1", "stale_connection", 0.001), attempt("a:1", "200", 0.2, reused=False)]
    )
    assert "Second choice: the same backend again, on a new connection" in explain(event, None, ["a:1"])


def test_a_request_that_could_not_be_read_is_told_without_method_and_path() -> None:
    lines = explain(request_event(method=None, path=None, final_status=400, upstreams=[]), None, [])
    assert "an unreadable request" in lines[0]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0004, "0.4 ms"),
        (0.012, "12 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.0 s"),
        (3.21, "3.2 s"),
        (99.6, "1 min 40 s"),
        (125, "2 min 5 s"),
        (None, "an unknown time"),
    ],
)
def test_times_are_written_for_people(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text
