"""What a client does with a bad answer: retry policies and the AIMD admission controller, time as a number.

Pure: no socket, no sleep. `AimdAdmission` models the request admission of NVIDIA NeMo Data Designer (its controller,
October 2026): one limit on requests in flight, multiplied by 0.75 once per burst of 429s, held for the Retry-After,
raised by one after 25 successes.
"""

from __future__ import annotations

import email.utils
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tools.load.wire import Answer, Outcome

BROKEN = frozenset({Outcome.CONNECT_ERROR, Outcome.CLOSED, Outcome.TRUNCATED, Outcome.PROTOCOL_ERROR})


def retry_after(headers: Mapping[bytes, bytes], wall: float) -> float | None:
    """Return the seconds that Retry-After asks for (seconds, fractions or an HTTP date); None when missing or
    unreadable.

    `wall` is the time of day as a Unix timestamp, for the date form (RFC 9110 section 10.2.3).
    """
    text = headers.get(b"retry-after")
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(text.decode("latin-1")).timestamp() - wall
        except ValueError:
            return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None


class RetryPolicy(Protocol):
    """Decide whether a failed try is repeated."""

    def delay(self, answer: Answer, tries: int, wall: float) -> float | None:
        """Return the seconds to wait before the next try, None to give up. `tries` counts the ones made so far."""


class NoRetry:
    """Every answer is final: what a measurement of the endpoint itself wants."""

    def delay(self, answer: Answer, tries: int, wall: float) -> float | None:
        """Never try again."""
        return None


class SdkRetry:
    """The OpenAI SDK's habit: three tries; 408, 409, 429, 5xx and connection faults; obeys the server's hints.

    `retry-after-ms` and `Retry-After` up to 60 s are obeyed, `x-should-retry` overrides the status; otherwise 0.5 s
    doubling to 8 s, less up to a quarter.
    """

    def __init__(self, retries: int = 2, seed: int = 0) -> None:
        self.retries = retries
        self._rng = random.Random(seed)

    def delay(self, answer: Answer, tries: int, wall: float) -> float | None:
        """Return the wait before the next try (seconds), or None."""
        if tries > self.retries or not self._retryable(answer):
            return None
        hint = self._hint(answer.headers, wall)
        if hint is not None and 0 < hint <= 60:
            return hint
        return float(min(0.5 * 2 ** (tries - 1), 8.0) * (1 - 0.25 * self._rng.random()))

    @staticmethod
    def _hint(headers: Mapping[bytes, bytes], wall: float) -> float | None:
        exact = headers.get(b"retry-after-ms")
        if exact is not None:
            try:
                return float(exact) / 1000.0
            except ValueError:
                return None
        return retry_after(headers, wall)

    @staticmethod
    def _retryable(answer: Answer) -> bool:
        if answer.outcome is Outcome.HTTP_ERROR:
            said = answer.headers.get(b"x-should-retry")
            if said in (b"true", b"false"):
                return said == b"true"
            return answer.status in (408, 409, 429) or answer.status >= 500
        return answer.outcome in (Outcome.CONNECT_ERROR, Outcome.CLOSED, Outcome.TIMEOUT)


class TransportRetry:
    """Data Designer's transport: 502, 503, 504 and broken connections are repeated after 2, 4 and 8 s.

    429 is left to the admission controller; 500, 408 and timeouts are final. `jitter` takes off up to that share.
    """

    WAITS = (2.0, 4.0, 8.0)

    def __init__(self, jitter: float = 0.2, seed: int = 0) -> None:
        self.jitter = jitter
        self._rng = random.Random(seed)

    def delay(self, answer: Answer, tries: int, wall: float) -> float | None:
        """Return the wait before the next try (seconds), or None."""
        again = answer.outcome in BROKEN or (answer.outcome is Outcome.HTTP_ERROR and answer.status in (502, 503, 504))
        if not again or tries > len(self.WAITS):
            return None
        asked = retry_after(answer.headers, wall)
        if asked:
            return asked
        return self.WAITS[tries - 1] * (1.0 - self.jitter * self._rng.random())


@dataclass(frozen=True)
class AimdConfig:
    """Limits are requests in flight; `cooldown` (seconds) stands in for a missing Retry-After."""

    start: int = 16
    maximum: int = 64
    decrease: float = 0.75
    cooldown: float = 2.0
    step: int = 1
    successes: int = 25


@dataclass(frozen=True)
class Ticket:
    """Leave to send one request, and the limit under which it was given."""

    limit: int


class AimdAdmission:
    """Additive increase, multiplicative decrease on the number of requests in flight."""

    def __init__(self, config: AimdConfig) -> None:
        self.config = config
        self.limit = max(1, min(config.start, config.maximum))
        self.in_flight = 0
        self.blocked_until = -math.inf
        self.streak = 0
        self.decreases = 0
        self.increases = 0

    def __repr__(self) -> str:
        return (
            f"<AimdAdmission {self.in_flight}/{self.limit} streak={self.streak} blocked_until={self.blocked_until:.3f}>"
        )

    def admit(self, now: float) -> Ticket | None:
        """Return leave to send, or None while the limit is reached or a cooldown lasts."""
        if now < self.blocked_until or self.in_flight >= self.limit:
            return None
        self.in_flight += 1
        return Ticket(self.limit)

    def succeeded(self, ticket: Ticket, now: float) -> None:
        """A request got a good answer; ones that come in during a cooldown do not count towards the next raise."""
        self.in_flight -= 1
        if now < self.blocked_until:
            return
        self.streak += 1
        if self.streak >= self.config.successes:
            self.streak = 0
            raised = min(self.limit + self.config.step, self.config.maximum)
            self.increases += raised > self.limit
            self.limit = raised

    def refused(self, ticket: Ticket, now: float, after: float | None) -> None:
        """A request got a 429: hold for `after` seconds; lower the limit unless this burst has lowered it already.

        A request admitted under a higher limit than today's belongs to a burst that was answered before.
        """
        self.in_flight -= 1
        self.streak = 0
        self.blocked_until = now + (after if after else self.config.cooldown)
        if ticket.limit <= self.limit:
            lowered = max(1, math.floor(self.limit * self.config.decrease))
            self.decreases += lowered < self.limit
            self.limit = lowered

    def failed(self, ticket: Ticket) -> None:
        """A request ended in any other way: only its place is given back."""
        self.in_flight -= 1
