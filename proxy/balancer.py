"""Choose a backend: least connections among those that may be chosen, in one synchronous step.

Owns which backends exist and every fact that rules one out. Sets of backends are bit masks (bit i: the backend at
position i), so that a choice costs the same for 8 and for 256 backends, and idle connections play no part in it.
Refuses to know sockets; time is a number given by the caller.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from proxy.breaker import Breaker, BreakerState
from proxy.config import BackendUrl, Config
from proxy.outcome import Rejection, Verdict
from proxy.upstream import Backend, Health

MAX_PENALTY_S = 5.0  # a 429's Retry-After ranks its backend behind the others for at most this long (section 3, rule 3)
DEFAULT_PENALTY_S = 1.0
REMEMBERED_NAMES = 16
RESTING_PLACES = 64  # so many free places stay unused: requests under way know those of removed backends as tried


@dataclass(frozen=True, slots=True)
class Readiness:
    """`ok`: every required backend is healthy, and at least one backend is."""

    ok: bool
    ready: int
    backends: int


_CLOSED = BreakerState.CLOSED  # as a global it is found in a fraction of the time


class Fleet:
    """All backends of the endpoint and what rules each of them out.

    `on_breaker(backend, state)` is called after each change of a breaker's state.
    """

    def __init__(self, config: Config, on_breaker: Callable[[Backend, BreakerState], None] | None = None) -> None:
        self._config = config
        self._on_breaker = on_breaker
        self._by_position: list[Backend | None] = []
        self._free: deque[int] = deque()  # places of removed backends, the longest free first
        self._by_id: dict[str, Backend] = {}
        self._limit = config.max_connections_per_backend
        self._members = 0
        self._draining = 0
        self._full = 0
        self._unhealthy = 0
        self._tripped = 0  # breaker not closed
        self._overloaded = 0  # latest sample above the threshold, perhaps stale by now
        self._penalized = 0  # answered 429, perhaps long ago
        # Until then none of those two sets can have lost a member, so that they need no look in an overload storm.
        self._overloaded_until = self._penalized_until = float("inf")
        self._names: dict[int, list[str]] = {}  # of masks that were named lately
        self._levels: dict[int, int] = {}  # active leases -> backends with so many
        self._order: list[int] = []  # keys of _levels, ascending
        self._cursor = 0  # ties go to the first at or after this position
        self.left_out = 0  # full or overloaded backends that the last choice passed over
        self.left_full = 0  # of those, the full ones
        for url in config.backends:
            self.add(url, required=True)

    def __repr__(self) -> str:
        return f"<Fleet {list(self._by_id.values())!r}>"

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Backend]:
        return iter(self._by_id.values())

    def get(self, backend_id: str) -> Backend | None:
        """Find a backend by its `host:port`."""
        return self._by_id.get(backend_id)

    # ------------------------------------------------------------------ membership

    def add(self, url: BackendUrl, *, required: bool) -> Backend:
        """Add a backend that is not in the fleet yet; raises ValueError when its host and port are."""
        if url.authority in self._by_id:
            raise ValueError(f"{url.authority} is a backend already")
        c = self._config
        breaker = Breaker(c.breaker_failure_threshold, c.breaker_cooldown_s, c.breaker_max_cooldown_s)
        backend = Backend(url, required=required, breaker=breaker, health=Health(c.health_fall, c.health_rise))
        position = self._free.popleft() if len(self._free) > RESTING_PLACES else len(self._by_position)
        self._by_position[position : position + 1] = [backend]
        backend.position = position
        backend.bit = 1 << position
        self._by_id[backend.id] = backend
        self._names.clear()
        self._members |= backend.bit
        self._shift(backend, None, 0)
        return backend

    def remove(self, backend: Backend) -> None:
        """Take a backend out for good; its leases may still be open and are released as usual."""
        if backend.removed:
            return
        backend.removed = True
        self._names.clear()
        self._shift(backend, backend.active, None)
        for name in ("_members", "_draining", "_full", "_unhealthy", "_tripped", "_overloaded", "_penalized"):
            setattr(self, name, getattr(self, name) & ~backend.bit)
        del self._by_id[backend.id]
        self._by_position[backend.position] = None
        self._free.append(backend.position)

    def set_draining(self, backend: Backend, draining: bool) -> None:
        """Take a backend out of selection, or let it re-enter; its leases go on."""
        backend.draining = draining
        self._draining = self._with(self._draining, backend, draining)

    # ------------------------------------------------------------------ facts about one backend

    def record_probe(self, backend: Backend, good: bool) -> bool:
        """Take a health probe's result; True when the verdict changed."""
        changed = backend.health.record(good)
        self._unhealthy = self._with(self._unhealthy, backend, backend.health.healthy is False)
        return changed

    def record_depth(self, backend: Backend, depth: float, now: float) -> None:
        """Take a readable queue sample: waiting requests, seen at `now`."""
        backend.queue_depth = depth
        backend.queue_at = now
        self._overloaded = self._with(self._overloaded, backend, depth > self._config.max_waiting_requests)
        self._overloaded_until = min(self._overloaded_until, now + self._config.queue_stale_after_s)

    def penalize(self, backend: Backend, retry_after_s: float | None, now: float) -> None:
        """Rank a backend that answered 429 behind the others until its Retry-After has passed."""
        delay = DEFAULT_PENALTY_S if retry_after_s is None else min(max(retry_after_s, 0.0), MAX_PENALTY_S)
        backend.penalty_until = now + delay
        self._penalized = self._with(self._penalized, backend, delay > 0)
        self._penalized_until = min(self._penalized_until, backend.penalty_until)

    def record_verdict(self, backend: Backend, verdict: Verdict, probe: bool, now: float) -> None:
        """Give the breaker the one verdict of an attempt (`probe`: what `lease` said of it)."""
        breaker = backend.breaker
        before = breaker.state
        breaker.record(verdict, probe, now)
        self._breaker_changed(backend, before)

    def _breaker_changed(self, backend: Backend, before: BreakerState) -> None:
        state = backend.breaker.state
        self._tripped = self._with(self._tripped, backend, state is not _CLOSED)
        if state is not before and self._on_breaker is not None:
            self._on_breaker(backend, state)

    # ------------------------------------------------------------------ choosing

    @property
    def some_apart(self) -> bool:
        """True while any backend may have to be left out or ranked behind, so that `choose` has to be asked."""
        apart = self._draining | self._full | self._unhealthy | self._tripped | self._overloaded | self._penalized
        return bool(apart) or not self._members

    def choose_of_all(self) -> Backend:
        """Choose as `choose` would while there is no difference between the backends but their leases."""
        return self._least(self._members)

    def choose(self, now: float, tried: int = 0) -> Backend | Rejection:
        """Choose a backend that is not in `tried` (a mask), or say why there is none; takes no lease.

        Rules 1 to 3 of section 3. The same calls in the same order give the same choices. Sets `left_out`.
        """
        candidates = self._candidates(now, tried)
        return candidates if isinstance(candidates, Rejection) else self._least(candidates)

    def _candidates(self, now: float, tried: int) -> int | Rejection:
        self.left_out = self.left_full = 0
        usable = self._members & ~self._draining & ~tried
        if not usable:
            return Rejection.NO_BACKEND
        candidates = usable & ~self._full
        if candidates != usable:
            self.left_out = self.left_full = usable & ~candidates
            if not candidates:
                return Rejection.CONNECTION_LIMIT
        if self._unhealthy or self._tripped:
            sound = candidates & ~self._unhealthy & ~self._blocked(now)
            candidates = sound or candidates  # fail open: health and breakers never rule everybody out
        if self._overloaded:
            overloaded = self.fresh_overloaded(now) & candidates
            self.left_out |= overloaded
            candidates &= ~overloaded
            if not candidates:
                return Rejection.QUEUE_DEPTH
        if self._penalized:
            candidates = (candidates & ~self._still_penalized(now)) or candidates
        return candidates

    def _least(self, candidates: int) -> Backend:
        for level in self._order:
            tied = self._levels[level] & candidates
            if tied:
                break
        else:
            raise AssertionError(f"{candidates:b} is in no level")
        after = tied >> self._cursor
        first = self._cursor if after else 0
        tied = after or tied
        position = first + (tied & -tied).bit_length() - 1
        self._cursor = position + 1
        backend = self._by_position[position]
        assert backend is not None
        return backend

    def refusal(self, now: float, tried: int = 0) -> Rejection | None:
        """Say why `choose` would find nobody, None when it would find a backend; takes no turn of the round robin."""
        found = self._candidates(now, tried)
        return found if isinstance(found, Rejection) else None

    def excluded(self, now: float, tried: int = 0) -> dict[str, list[str]] | None:
        """Name, by reason, the backends that a choice at `now` leaves out or ranks behind; None when there are none."""
        if not tried and not self.some_apart:
            return None
        found: dict[str, list[str]] = {}
        if self._draining:
            found["draining"] = self._named(self._draining)
        if tried & self._members:
            found["tried"] = self._named(tried & self._members)
        if self._full:
            found["connection_limit"] = self._named(self._full)
        if self._unhealthy:
            found["unhealthy"] = self._named(self._unhealthy)
        if self._tripped and (blocked := self._blocked(now)):
            found["breaker"] = self._named(blocked)
        if self._overloaded and (overloaded := self.fresh_overloaded(now)):
            found["queue_depth"] = self._named(overloaded)
        if self._penalized and (penalized := self._still_penalized(now)):
            found["retry_after"] = self._named(penalized)
        return found or None

    def _named(self, mask: int) -> list[str]:
        """Name the backends of a mask; the same masks come again and again, so a few are remembered."""
        names = self._names.get(mask)
        if names is None:
            if len(self._names) >= REMEMBERED_NAMES:
                self._names.clear()
            self._names[mask] = names = [b.id for b in self._backends(mask)]
        return names

    def _blocked(self, now: float) -> int:
        blocked = 0
        for b in self._backends(self._tripped):
            if not b.breaker.admits(now):
                blocked |= b.bit
        return blocked

    def fresh_overloaded(self, now: float) -> int:
        """Give the mask of backends whose sample is above the threshold and not stale; forgets the stale ones."""
        if now <= self._overloaded_until:
            return self._overloaded
        self._overloaded_until = float("inf")
        for b in self._backends(self._overloaded):
            if now - b.queue_at > self._config.queue_stale_after_s:
                self._overloaded &= ~b.bit
            else:
                self._overloaded_until = min(self._overloaded_until, b.queue_at + self._config.queue_stale_after_s)
        return self._overloaded

    def _still_penalized(self, now: float) -> int:
        if now < self._penalized_until:
            return self._penalized
        self._penalized_until = float("inf")
        for b in self._backends(self._penalized):
            if now >= b.penalty_until:
                self._penalized &= ~b.bit
            else:
                self._penalized_until = min(self._penalized_until, b.penalty_until)
        return self._penalized

    # ------------------------------------------------------------------ leases

    def lease(self, backend: Backend, now: float) -> bool:
        """Count one more active lease, in the same step as the choice; True when the attempt is the breaker's probe."""
        self._shift(backend, backend.active, backend.active + 1)
        backend.active += 1
        if backend.active >= self._limit:
            self._full |= backend.bit
        backend.attempts += 1
        if backend.breaker.state is _CLOSED:
            return False
        before = backend.breaker.state
        probe = backend.breaker.enter(now)
        self._breaker_changed(backend, before)
        return probe

    def release(self, backend: Backend) -> None:
        """Give one lease back; the caller does so exactly once a lease."""
        if not backend.removed:
            self._shift(backend, backend.active, backend.active - 1)
            if backend.active <= self._limit:
                self._full &= ~backend.bit
        backend.active -= 1

    def _shift(self, backend: Backend, old: int | None, new: int | None) -> None:
        levels = self._levels
        if old is not None:
            rest = levels[old] & ~backend.bit
            if rest:
                levels[old] = rest
            else:
                del levels[old]
                del self._order[bisect_left(self._order, old)]
        if new is not None:
            there = levels.get(new)
            if there is None:
                insort(self._order, new)
                levels[new] = backend.bit
            else:
                levels[new] = there | backend.bit

    # ------------------------------------------------------------------ readiness

    def readiness(self) -> Readiness:
        """Say how many backends are ready; those that drain do not count (section 3, rule 8)."""
        present = [b for b in self if not b.draining]
        healthy = [b for b in present if b.health.healthy is True]
        ok = bool(healthy) and all(b.health.healthy is True for b in present if b.required)
        return Readiness(ok=ok, ready=len(healthy), backends=len(present))

    def _backends(self, mask: int) -> Iterator[Backend]:
        while mask:
            low = mask & -mask
            backend = self._by_position[low.bit_length() - 1]
            assert backend is not None
            yield backend
            mask ^= low

    @staticmethod
    def _with(mask: int, backend: Backend, member: bool) -> int:
        if backend.removed:
            return mask
        return mask | backend.bit if member else mask & ~backend.bit
