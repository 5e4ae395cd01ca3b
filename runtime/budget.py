"""How long an attempt needs to end in order, computed from its plan.

Owns the arithmetic that the time-limit warning and the comparison with the site's KillWait rest on. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from runtime.plan import Plan
from runtime.units import human_duration

DRAIN_GRACE_S = 2.0  # what an endpoint may take beyond its drain timeout before it is forced
LONGEST_WARNING_S = 65535  # Slurm keeps the N of --signal=…@N in 16 bits
VERDICT_S = 5.0  # stopping the monitor, reading the last evidence, hashing outputs, writing report and verdict


@dataclass(frozen=True, slots=True)
class Budget:
    """The parts of an orderly end, in seconds and in the order in which they are spent."""

    drain_s: float
    grace_s: float
    stop_s: float
    verdict_s: float

    @property
    def total_s(self) -> float:
        """Add the parts up."""
        return self.drain_s + self.grace_s + self.stop_s + self.verdict_s

    def describe(self) -> str:
        """List the parts for a person."""
        return (
            f"drain {self.drain_s:g} s + {self.grace_s:g} s, longest stop_timeout {self.stop_s:g} s, "
            f"verdict {self.verdict_s:g} s"
        )

    @property
    def signal_s(self) -> int:
        """Tell how many seconds before its end the batch process must hear the time-limit warning."""
        return math.ceil(self.total_s)

    def cut_by(self, kill_wait_s: float) -> str | None:
        """Say what Slurm's KILL would cut `kill_wait_s` after a plain scancel; None when everything fits."""
        if kill_wait_s >= self.total_s:
            return None
        if kill_wait_s < self.drain_s + self.grace_s:
            what = f"responses that run on into the {human_duration(self.drain_s)} drain"
        elif kill_wait_s < self.drain_s + self.grace_s + self.stop_s:
            what = "replicas that are still stopping"
        else:
            what = "the final report and verdict"
        return (
            f"KillWait here is {human_duration(kill_wait_s)}, an orderly end may take {human_duration(self.total_s)}: "
            f"a plain scancel would cut {what}; dd-proxy cancel ends the attempt in order"
        )


def drain_budget(plan: Plan) -> Budget:
    """Compute the budget of a plan."""
    return budget(plan.runtime.drain_timeout_s, [deployment.stop_timeout_s for deployment in plan.deployments])


def budget(drain_timeout_s: float, stop_timeouts_s: Iterable[float]) -> Budget:
    """Compute a budget: drain, grace, the longest stop of a replica, verdict."""
    return Budget(drain_timeout_s, DRAIN_GRACE_S, max(stop_timeouts_s, default=0.0), VERDICT_S)
