"""The client models: AIMD admission and retry policies do what the real clients do, on paused time."""

from __future__ import annotations

import pytest

from tools.load.policy import AimdAdmission, AimdConfig, NoRetry, SdkRetry, Ticket, TransportRetry, retry_after
from tools.load.wire import Answer, Outcome


def answer(outcome: Outcome, status: int = 0, **headers: str) -> Answer:
    made = Answer()
    made.outcome, made.status = outcome, status
    made.headers = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    return made


def admit(admission: AimdAdmission, count: int, now: float = 0.0) -> list[Ticket]:
    tickets = [admission.admit(now) for _ in range(count)]
    assert None not in tickets
    return [ticket for ticket in tickets if ticket is not None]


def test_never_more_requests_are_in_flight_than_the_limit() -> None:
    admission = AimdAdmission(AimdConfig(start=3, maximum=8))
    admit(admission, 3)
    assert admission.admit(0.0) is None
    assert admission.in_flight == 3


def test_a_burst_of_refusals_lowers_the_limit_once() -> None:
    admission = AimdAdmission(AimdConfig(start=16, maximum=64))
    tickets = admit(admission, 10)
    for ticket in tickets:
        admission.refused(ticket, 1.0, after=1.0)
    assert admission.limit == 12
    assert (admission.decreases, admission.in_flight) == (1, 0)


def test_the_next_burst_lowers_it_again_down_to_one_and_never_below() -> None:
    admission = AimdAdmission(AimdConfig(start=4, maximum=64))
    seen = []
    for burst in range(6):
        now = burst * 10.0
        (ticket,) = admit(admission, 1, now)
        admission.refused(ticket, now, after=1.0)
        seen.append(admission.limit)
    assert seen == [3, 2, 1, 1, 1, 1]


def test_nothing_is_admitted_before_the_retry_after_has_passed() -> None:
    admission = AimdAdmission(AimdConfig())
    (ticket,) = admit(admission, 1)
    admission.refused(ticket, 10.0, after=1.5)
    assert admission.admit(11.49) is None
    assert admission.admit(11.5) is not None


@pytest.mark.parametrize("after", [None, 0.0])
def test_a_missing_retry_after_means_the_configured_cooldown(after: float | None) -> None:
    admission = AimdAdmission(AimdConfig(cooldown=2.0))
    (ticket,) = admit(admission, 1)
    admission.refused(ticket, 0.0, after)
    assert admission.blocked_until == 2.0


def test_twenty_five_successes_raise_the_limit_by_one_up_to_the_maximum() -> None:
    admission = AimdAdmission(AimdConfig(start=4, maximum=5))
    for _ in range(24):
        admission.succeeded(admit(admission, 1)[0], 0.0)
    assert admission.limit == 4
    for _ in range(100):
        admission.succeeded(admit(admission, 1)[0], 0.0)
    assert (admission.limit, admission.increases) == (5, 1)


def test_successes_during_a_cooldown_do_not_count_and_a_refusal_starts_the_count_anew() -> None:
    admission = AimdAdmission(AimdConfig(start=8, maximum=64))
    early = admit(admission, 8)
    for ticket in early[:3]:
        admission.succeeded(ticket, 0.0)
    assert admission.streak == 3
    admission.refused(early[3], 0.0, after=5.0)
    admission.succeeded(early[4], 4.0)
    assert admission.streak == 0
    admission.succeeded(early[5], 5.0)
    assert admission.streak == 1


def test_a_failure_gives_its_place_back_and_changes_nothing_else() -> None:
    admission = AimdAdmission(AimdConfig(start=8, maximum=64))
    admission.failed(admit(admission, 1)[0])
    assert (admission.limit, admission.in_flight, admission.streak) == (8, 0, 0)
    assert admission.admit(0.0) is not None


def test_the_start_is_held_within_the_maximum() -> None:
    assert AimdAdmission(AimdConfig(start=100, maximum=10)).limit == 10
    assert AimdAdmission(AimdConfig(start=0, maximum=10)).limit == 1


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("3", 3.0), ("0.25", 0.25), ("-1", 0.0), ("soon", None), ("nan", None), ("Thu, 01 Jan 1970 00:01:40 GMT", 40.0)],
)
def test_a_retry_after_is_read_as_seconds_fraction_or_date(value: str, seconds: float | None) -> None:
    assert retry_after({b"retry-after": value.encode()}, wall=60.0) == seconds
    assert retry_after({}, wall=60.0) is None


BROKEN = [Outcome.CONNECT_ERROR, Outcome.CLOSED, Outcome.TRUNCATED, Outcome.PROTOCOL_ERROR]


@pytest.mark.parametrize("fault", [answer(outcome) for outcome in BROKEN] + [
    answer(Outcome.HTTP_ERROR, status) for status in (502, 503, 504)])  # fmt: skip
def test_the_transport_repeats_gateway_errors_and_broken_connections_after_2_4_and_8_seconds(fault: Answer) -> None:
    policy = TransportRetry(jitter=0.0)
    assert [policy.delay(fault, tries, 0.0) for tries in (1, 2, 3, 4)] == [2.0, 4.0, 8.0, None]


@pytest.mark.parametrize("fault", [answer(Outcome.TIMEOUT), answer(Outcome.SHORT), answer(Outcome.LEFT)] + [
    answer(Outcome.HTTP_ERROR, status) for status in (400, 408, 429, 500)])  # fmt: skip
def test_the_transport_repeats_nothing_else(fault: Answer) -> None:
    assert TransportRetry().delay(fault, 1, 0.0) is None


def test_jitter_only_shortens_the_wait_and_is_the_same_for_the_same_seed() -> None:
    fault = answer(Outcome.CLOSED)
    waits = [TransportRetry(seed=7).delay(fault, 1, 0.0) for _ in range(2)]
    assert waits[0] == waits[1]
    assert waits[0] is not None
    assert 1.6 <= waits[0] <= 2.0


def test_the_sdk_makes_three_tries_and_obeys_what_the_server_asks() -> None:
    policy = SdkRetry()
    busy = answer(Outcome.HTTP_ERROR, 429, retry_after="3")
    assert policy.delay(busy, 1, 0.0) == 3.0
    assert policy.delay(busy, 2, 0.0) == 3.0
    assert policy.delay(busy, 3, 0.0) is None
    assert policy.delay(answer(Outcome.HTTP_ERROR, 503, retry_after_ms="250", retry_after="9"), 1, 0.0) == 0.25
    assert policy.delay(answer(Outcome.HTTP_ERROR, 500, x_should_retry="false"), 1, 0.0) is None
    assert policy.delay(answer(Outcome.HTTP_ERROR, 400, x_should_retry="true"), 1, 0.0) is not None
    assert policy.delay(answer(Outcome.HTTP_ERROR, 404), 1, 0.0) is None
    assert policy.delay(answer(Outcome.TRUNCATED), 1, 0.0) is None
    plain = policy.delay(answer(Outcome.CLOSED), 1, 0.0)
    assert plain is not None
    assert 0.375 <= plain <= 0.5


def test_the_plain_client_repeats_nothing() -> None:
    assert NoRetry().delay(answer(Outcome.CLOSED), 1, 0.0) is None
