"""Circuit breaker of one backend: closed (traffic flows), open (skipped), half-open (one probe at a time).

Sees verdicts only, never statuses or sockets (those are outcome.py's). Time is a number given by the caller.

    state      | success            | failure                                  | cooldown over and chosen
    closed     | count := 0         | count + 1; at the threshold: open        | -
    open       | closed             | -                                        | half-open, takes the probe slot
    half-open  | closed             | of the probe: open, cooldown doubled     | takes the free probe slot

A neutral verdict changes nothing but gives a probe's slot back.
"""

from __future__ import annotations

from enum import Enum

from proxy.outcome import Verdict


class BreakerState(Enum):
    """Value: the log word; `code`: the value of `dd_proxy_backend_breaker_state`."""

    CLOSED = "closed"
    HALF_OPEN = "half_open"
    OPEN = "open"

    @property
    def code(self) -> int:
        """Number of this state in the metric: 0 closed, 1 half-open, 2 open."""
        return ("closed", "half_open", "open").index(self.value)


_CLOSED, _HALF_OPEN, _OPEN = BreakerState
_SUCCESS, _FAILURE = Verdict.SUCCESS, Verdict.FAILURE


class Breaker:
    """Count consecutive faults and decide whether the backend may be chosen.

    `threshold` faults in a row open it (0: never) for `cooldown_s` seconds, doubled by each failed probe up to
    `max_cooldown_s`. `sound`: closed, and the last verdict was no fault, so that a good one changes nothing.
    """

    __slots__ = (
        *("_cooldown_s", "_first_cooldown_s", "_max_cooldown_s", "_threshold"),
        *("failures", "open_until", "probing", "sound", "state", "trips"),
    )

    def __init__(self, threshold: int, cooldown_s: float, max_cooldown_s: float) -> None:
        self._threshold = threshold
        self._first_cooldown_s = self._cooldown_s = cooldown_s
        self._max_cooldown_s = max_cooldown_s
        self.state = _CLOSED
        self.failures = 0
        self.sound = True
        self.open_until = 0.0
        self.probing = False
        self.trips = 0

    def __repr__(self) -> str:
        detail = f" failures={self.failures}" + (" probing" if self.probing else "")
        return f"<Breaker {self.state.value}{detail} trips={self.trips}>"

    def admits(self, now: float) -> bool:
        """Tell whether the backend may be chosen at `now` (seconds, monotonic)."""
        if self.state is _CLOSED:
            return True
        # A probe that outlived its own half-open spell (another attempt closed the breaker) is still the one probe.
        return not self.probing and (self.state is _HALF_OPEN or now >= self.open_until)

    def enter(self, now: float) -> bool:
        """Take the probe slot for a chosen attempt if the breaker is not closed; True when the attempt is the probe."""
        if self.state is _CLOSED or not self.admits(now):
            return False  # not admitted and chosen all the same: fail open, no probe
        self.state = _HALF_OPEN
        self.sound = False
        self.probing = True
        return True

    def record(self, verdict: Verdict, probe: bool, now: float) -> None:
        """Take the one verdict of an attempt; `probe` is what `enter` said of it."""
        if probe:
            self.probing = False
        if verdict is _SUCCESS:
            self.state = _CLOSED
            self.failures = 0
            self.sound = True
            self._cooldown_s = self._first_cooldown_s
        elif verdict is _FAILURE:
            self.sound = False
            self._fail(probe, now)

    def _fail(self, probe: bool, now: float) -> None:
        if self.state is _CLOSED:
            self.failures += 1
            if self._threshold and self.failures >= self._threshold:
                self._open(now)
        elif self.state is _HALF_OPEN and probe:
            self._cooldown_s = min(self._cooldown_s * 2, self._max_cooldown_s)
            self._open(now)

    def _open(self, now: float) -> None:
        self.state = _OPEN
        self.open_until = now + self._cooldown_s
        self.trips += 1
