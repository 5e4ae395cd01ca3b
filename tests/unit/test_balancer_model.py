"""The balancer's masks against a naive balancer that looks at every backend: the same choice after any history."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from proxy.balancer import Fleet
from proxy.config import BackendUrl, Config
from proxy.outcome import Rejection, Verdict
from proxy.upstream import Backend
from tests.unit.kit import make_config


@dataclass
class Naive:
    """Rules 1 to 3 of section 3 read aloud; everything is a list of backends."""

    config: Config
    last: int = -1  # position of the last choice
    facts: dict[Backend, dict[str, float]] = field(default_factory=dict)

    def usable(self, b: Backend, now: float) -> bool:
        return b.health.healthy is not False and b.breaker.admits(now)

    def overloaded(self, b: Backend, now: float) -> bool:
        depth, at = self.facts[b].get("depth"), self.facts[b].get("at", 0.0)
        fresh = now - at <= self.config.queue_stale_after_s
        return depth is not None and fresh and depth > self.config.max_waiting_requests

    def choose(self, members: list[Backend], now: float, tried: int) -> Backend | Rejection:
        left = [b for b in members if not b.draining and not b.bit & tried]
        if not left:
            return Rejection.NO_BACKEND
        left = [b for b in left if b.active < self.config.max_connections_per_backend]
        if not left:
            return Rejection.CONNECTION_LIMIT
        left = [b for b in left if self.usable(b, now)] or left
        left = [b for b in left if not self.overloaded(b, now)]
        if not left:
            return Rejection.QUEUE_DEPTH
        left = [b for b in left if now >= self.facts[b].get("penalty", 0.0)] or left
        fewest = min(b.active for b in left)
        tied = sorted((b for b in left if b.active == fewest), key=lambda b: b.position)
        chosen = next((b for b in tied if b.position > self.last), tied[0])
        self.last = chosen.position
        return chosen


class Balancing(RuleBasedStateMachine):
    """Any history of choices, leases, samples, probes, verdicts, drains, removals and additions."""

    leases = Bundle("leases")

    @initialize(backends=st.integers(1, 6), limit=st.integers(1, 3))
    def begin(self, backends: int, limit: int) -> None:
        config = make_config(backends, max_connections_per_backend=limit, breaker_failure_threshold=2)
        self.fleet = Fleet(config)
        self.naive = Naive(config)
        self.now = 100.0
        self.added = 0
        for b in self.fleet:
            self.naive.facts[b] = {}

    def pick(self, number: int) -> Backend:
        members = list(self.fleet)
        return members[number % len(members)]

    @rule(seconds=st.sampled_from([0.01, 0.3, 1.0, 1.5, 5.0, 30.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(target=leases, tried=st.integers(0, 63), take=st.booleans())
    def choose(self, tried: int, take: bool) -> tuple[Backend, bool] | None:
        members = list(self.fleet)
        assert (self.fleet.refusal(self.now, tried) is None) == isinstance(self.preview(tried), Backend)
        expected = self.naive.choose(members, self.now, tried)
        alike = not tried and not self.fleet.some_apart
        found = self.fleet.choose_of_all() if alike else self.fleet.choose(self.now, tried)
        assert found is expected
        usable = [b for b in members if not b.draining and not b.bit & tried]
        full = [b for b in usable if b.active >= self.naive.config.max_connections_per_backend]
        assert all(self.fleet.left_out & b.bit for b in full)
        if isinstance(found, Backend) and take:
            return found, self.fleet.lease(found, self.now)
        return None

    def preview(self, tried: int) -> Backend | Rejection:
        last = self.naive.last
        found = self.naive.choose(list(self.fleet), self.now, tried)
        self.naive.last = last
        return found

    @rule(lease=consumes(leases), verdict=st.sampled_from(Verdict))
    def end(self, lease: tuple[Backend, bool] | None, verdict: Verdict) -> None:
        if lease is not None:
            self.fleet.record_verdict(lease[0], verdict, lease[1], self.now)
            self.fleet.release(lease[0])

    @precondition(lambda self: len(self.fleet) > 0)
    @rule(number=st.integers(0, 9), depth=st.sampled_from([0.0, 128.0, 129.0, 1000.0]))
    def sample(self, number: int, depth: float) -> None:
        b = self.pick(number)
        self.naive.facts[b] |= {"depth": depth, "at": self.now}
        self.fleet.record_depth(b, depth, self.now)

    @precondition(lambda self: len(self.fleet) > 0)
    @rule(number=st.integers(0, 9), delay=st.sampled_from([None, 0.0, 0.5, 4.0, 99.0]))
    def refuse(self, number: int, delay: float | None) -> None:
        b = self.pick(number)
        self.naive.facts[b]["penalty"] = self.now + (1.0 if delay is None else min(delay, 5.0))
        self.fleet.penalize(b, delay, self.now)

    @precondition(lambda self: len(self.fleet) > 0)
    @rule(number=st.integers(0, 9), good=st.booleans())
    def probe(self, number: int, good: bool) -> None:
        self.fleet.record_probe(self.pick(number), good)

    @precondition(lambda self: len(self.fleet) > 0)
    @rule(number=st.integers(0, 9), draining=st.booleans())
    def drain(self, number: int, draining: bool) -> None:
        self.fleet.set_draining(self.pick(number), draining)

    @precondition(lambda self: len(self.fleet) > 1)
    @rule(number=st.integers(0, 9))
    def remove(self, number: int) -> None:
        self.fleet.remove(self.pick(number))

    @rule()
    def add(self) -> None:
        self.added += 1
        b = self.fleet.add(BackendUrl("http", f"10.9.0.{self.added}", 80), required=True)
        self.naive.facts[b] = {}

    @invariant()
    def positions_are_distinct(self) -> None:
        if hasattr(self, "fleet"):
            bits = [b.bit for b in self.fleet]
            assert len(set(bits)) == len(bits)
            assert all(b.bit == 1 << b.position for b in self.fleet)
            assert all(b.active >= 0 for b in self.fleet)


TestBalancing = Balancing.TestCase
TestBalancing.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
