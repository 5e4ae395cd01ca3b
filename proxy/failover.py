"""What follows the end of an attempt: another one, or which answer. Decisions only, no I/O.

Owns rules 4 to 6 of INTERFACE section 3.
"""

from __future__ import annotations

from dataclasses import dataclass

from proxy.outcome import TIMEOUTS, FailedAttempt, Failure, Rejection


def may_retry(attempts: int, max_attempts: int, *, idempotent: bool, retry_post: bool, begun: bool) -> bool:
    """Tell whether the request may be tried again: never once a byte of a final response was sent to the client."""
    return not begun and attempts < max_attempts and (idempotent or retry_post)


def same_backend_again(failed: FailedAttempt, *, usable: bool) -> bool:
    """Tell whether the next attempt goes to the same backend, on a fresh connection: the pooled one was dead (rule 5).

    `usable`: the backend still takes requests.
    """
    return failed.failure is Failure.STALE_CONNECTION and usable


@dataclass(frozen=True, slots=True)
class OwnAnswer:
    """An answer that the proxy makes itself; `rejection` is counted where one was the cause."""

    status: int
    rejection: Rejection | None


def own_answer(refused: Rejection | None, last: FailedAttempt | None, left_out: Rejection | None) -> OwnAnswer:
    """Choose the proxy's own answer when no attempt gave a response (rules 2 and 6).

    `refused` is why the last choice found nobody (None: the limit of attempts was reached), `last` the last failure,
    `left_out` why a backend was never tried that is overloaded or full.
    """
    busy = refused if refused in (Rejection.QUEUE_DEPTH, Rejection.CONNECTION_LIMIT) else None
    if last is None:
        if busy is not None:
            return OwnAnswer(429, busy)
        return OwnAnswer(503, refused or Rejection.NO_BACKEND)
    if left_out is not None:
        return OwnAnswer(429, busy or left_out)
    return OwnAnswer(504 if last.failure in TIMEOUTS else 502, None)
