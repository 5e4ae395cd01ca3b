"""From probe results to the monitor's verdict: who is healthy, and what is lost.

Pure: results in, records out. Refuses to know connections and clocks. The rules:

- A replica or endpoint is lost after `failures` failed probes in a row; a good one starts the count anew.
- Busy is not lost: a probe of a replica that was met with silence does not count while the deployment's endpoint calls
  this replica healthy and has requests running on it. A refusal or a bad status always counts.
- The first loss stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from runtime.probe import Answer
from runtime.services import Services
from runtime.state import DeploymentHealth, HealthFailure, HealthRecord


@dataclass(frozen=True, slots=True)
class Target:
    """One service to probe: host:port and path. `replica` tells replicas, which are counted, from endpoints."""

    deployment: str
    authority: str
    path: str
    timeout_s: float
    replica: bool


class HealthBook:
    """Keeps the counts of failed probes and builds the snapshots."""

    def __init__(self, services: Services, failures: int) -> None:
        self._expected = {
            name: len(services.of(name)) for name in dict.fromkeys(r.deployment for r in services.replicas)
        }
        self._limit = failures
        self._failed: dict[Target, int] = {}
        self._last: dict[Target, bool] = {}
        self._sequence = 0
        self.failure: HealthFailure | None = None

    def __repr__(self) -> str:
        failing = {target.authority: count for target, count in self._failed.items() if count}
        return f"<HealthBook sequence={self._sequence} failing={failing} failure={self.failure}>"

    def note(self, target: Target, answer: Answer, busy: bool, now: str) -> None:
        """Take one probe result. `busy`: the endpoint vouches for this replica."""
        excused = target.replica and answer.timed_out and busy
        self._last[target] = answer.good or excused
        self._failed[target] = 0 if self._last[target] else self._failed.get(target, 0) + 1
        if self._failed[target] >= self._limit and self.failure is None:
            self.failure = HealthFailure(
                now, target.deployment, target.authority, "monitor", self._reason(target, answer)
            )

    def snapshot(self, now: str, *, final: bool = False) -> HealthRecord:
        """Give the next snapshot. A replica without a result is not healthy yet."""
        self._sequence += 1
        healthy: Mapping[str, int] = {
            name: sum(good for target, good in self._last.items() if target.replica and target.deployment == name)
            for name in self._expected
        }
        deployments = tuple(DeploymentHealth(name, count, healthy[name]) for name, count in self._expected.items())
        return HealthRecord(self._sequence, now, deployments, self.failure, final)

    def _reason(self, target: Target, answer: Answer) -> str:
        what = "probe timed out" if answer.timed_out else f"probe failed ({answer.reason})"
        who = "" if target.replica else "endpoint's side port: "
        return f"{who}{what} {self._failed[target]} times"
