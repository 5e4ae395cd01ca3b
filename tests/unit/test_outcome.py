"""What an attempt's end means: for its backend's breaker, for another attempt, and for the client."""

from __future__ import annotations

import itertools

import pytest

from proxy.failover import OwnAnswer, may_retry, own_answer, same_backend_again
from proxy.outcome import (
    IDEMPOTENT_METHODS,
    RETRYABLE_STATUSES,
    TIMEOUTS,
    FailedAttempt,
    Failure,
    Rejection,
    Verdict,
    judge_failure,
    judge_status,
)


@pytest.mark.parametrize("has_retry_after", [False, True])
def test_what_each_status_says_about_its_backend(has_retry_after: bool) -> None:
    for status in range(200, 1000):
        if status == 503 and has_retry_after:
            expected = Verdict.NEUTRAL  # pressure
        elif status in (500, 502, 503, 504):
            expected = Verdict.FAILURE
        elif 400 <= status <= 499:
            expected = Verdict.NEUTRAL
        else:
            expected = Verdict.SUCCESS
        assert judge_status(status, has_retry_after) is expected, status


@pytest.mark.parametrize("failure", Failure)
def test_every_failure_but_a_stale_connection_is_a_fault_of_the_backend(failure: Failure) -> None:
    expected = Verdict.NEUTRAL if failure is Failure.STALE_CONNECTION else Verdict.FAILURE
    assert judge_failure(FailedAttempt(failure)) is expected
    assert judge_failure(FailedAttempt(failure, local=True)) is Verdict.NEUTRAL


def test_what_is_retried() -> None:
    assert frozenset({429, 500, 502, 503, 504}) == RETRYABLE_STATUSES
    assert frozenset({b"GET", b"HEAD", b"PUT", b"DELETE", b"OPTIONS", b"TRACE"}) == IDEMPOTENT_METHODS


@pytest.mark.parametrize(
    ("attempts", "most", "idempotent", "retry_post", "begun"),
    list(itertools.product([1, 2, 3, 4], [1, 3], [False, True], [False, True], [False, True])),
)
def test_when_another_attempt_may_be_made(
    attempts: int, most: int, idempotent: bool, retry_post: bool, begun: bool
) -> None:
    allowed = may_retry(attempts, most, idempotent=idempotent, retry_post=retry_post, begun=begun)
    if begun or attempts >= most:
        assert not allowed
    else:
        assert allowed == (idempotent or retry_post)


@pytest.mark.parametrize("failure", Failure)
@pytest.mark.parametrize("usable", [False, True])
def test_only_a_stale_connection_is_retried_on_the_same_backend(failure: Failure, usable: bool) -> None:
    again = same_backend_again(FailedAttempt(failure), usable=usable)
    assert again == (usable and failure is Failure.STALE_CONNECTION)


@pytest.mark.parametrize("refused", [None, *Rejection])
@pytest.mark.parametrize("failure", [None, *Failure])
@pytest.mark.parametrize("left_out", [None, Rejection.QUEUE_DEPTH, Rejection.CONNECTION_LIMIT])
def test_the_proxys_own_answer(refused: Rejection | None, failure: Failure | None, left_out: Rejection | None) -> None:
    busy = refused if refused in (Rejection.QUEUE_DEPTH, Rejection.CONNECTION_LIMIT) else None
    last = None if failure is None else FailedAttempt(failure)
    answer = own_answer(refused, last, left_out)
    if failure is None:  # nobody was asked
        assert answer == (OwnAnswer(429, busy) if busy else OwnAnswer(503, refused or Rejection.NO_BACKEND))
    elif left_out:
        assert answer == OwnAnswer(429, busy or left_out)
    else:
        assert answer == OwnAnswer(504 if failure in TIMEOUTS else 502, None)
