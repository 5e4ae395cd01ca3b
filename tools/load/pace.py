"""When requests are due: rate profiles and arrival processes, as pure arithmetic on offsets in seconds.

A profile says how many requests should have been sent by time t (`area`); an arrival process hands out unit-rate steps.
Their composition gives constant, Poisson, bursty, ramped and stepped load from one mechanism. Knows no clock and sends
nothing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Leg:
    """One stretch of a profile: the rate goes evenly from `start` to `end` requests per second within `seconds`."""

    start: float
    end: float
    seconds: float

    @property
    def area(self) -> float:
        """How many requests belong into this stretch."""
        return (self.start + self.end) / 2.0 * self.seconds

    def offset(self, area: float) -> float:
        """Return the time from the leg's begin at which `area` requests are due."""
        slope = (self.end - self.start) / self.seconds if math.isfinite(self.seconds) else 0.0
        if abs(slope) < 1e-12:
            return area / self.start if self.start else math.inf
        root = math.sqrt(max(self.start * self.start + 2.0 * slope * area, 0.0))
        return (root - self.start) / slope


def parse_rate(text: str) -> tuple[Leg, ...]:
    """Read `50`, `inf`, `ramp:10:200:60` (from, to, seconds) or `steps:10x30,50x30` (rate x seconds).

    After the last stretch its end rate goes on (after steps: nothing more is due). Raises ValueError with a reason.
    """
    kind, _, rest = text.partition(":")
    if kind == "ramp":
        parts = rest.split(":")
        if len(parts) != 3:
            raise ValueError("a ramp is ramp:FROM:TO:SECONDS")
        first, last, length = (_positive(part, "ramp") for part in parts)
        return (Leg(first, last, length), Leg(last, last, math.inf))
    if kind == "steps":
        legs = []
        for step in rest.split(","):
            height, cross, width = step.partition("x")
            if not cross:
                raise ValueError(f"a step is RATExSECONDS, not {step!r}")
            value = _positive(height, "step", zero=True)
            legs.append(Leg(value, value, _positive(width, "step")))
        return tuple(legs)
    rate = _positive(text, "rate", infinite=True)
    return (Leg(rate, rate, math.inf),)


def _positive(text: str, what: str, zero: bool = False, infinite: bool = False) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{text!r} in the {what} is not a number") from None
    if math.isnan(value) or value < 0 or (value == 0 and not zero) or (math.isinf(value) and not infinite):
        raise ValueError(f"{text!r} in the {what} must be above zero and finite")
    return value


def arrivals(legs: Sequence[Leg], burstiness: float | None, seed: int = 0) -> Iterator[float]:
    """Yield the offsets (seconds, ascending) at which requests are due.

    `burstiness` None spaces them evenly; 1 is Poisson; below 1 is burstier, above 1 more regular: gaps are gamma
    distributed with that shape, the meaning `vllm bench serve --burstiness` has. An infinite rate yields zeros for
    ever.
    """
    if math.isinf(legs[0].start):
        while True:
            yield 0.0
    rng = random.Random(seed)
    due = 0.0 if burstiness is None else _gap(rng, burstiness)
    begin = passed = 0.0
    for leg in legs:
        area = leg.area if math.isfinite(leg.seconds) else (math.inf if leg.start else 0.0)
        while due < passed + area:
            yield begin + leg.offset(due - passed)
            due += 1.0 if burstiness is None else _gap(rng, burstiness)
        passed += area
        begin += leg.seconds


def _gap(rng: random.Random, burstiness: float) -> float:
    return rng.gammavariate(burstiness, 1.0 / burstiness)
