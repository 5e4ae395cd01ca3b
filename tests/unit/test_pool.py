"""The pool's books against a naive model: one list per connection, bounded, most recently used first."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from proxy.balancer import Fleet
from proxy.pool import Pool
from proxy.upstream import Backend
from tests.unit.kit import make_config


class Connection:
    """As much of a connection as the pool knows."""

    def __init__(self, backend: Backend, number: int) -> None:
        self.backend = backend
        self.number = number

    def __repr__(self) -> str:
        return f"<{self.backend.id} #{self.number}>"


def pool_of(max_idle: int, backends: int = 2, idle_timeout_s: float = 65.0) -> tuple[Pool[Connection], list[Backend]]:
    return Pool(max_idle, idle_timeout_s), list(Fleet(make_config(backends)))


def test_the_most_recently_used_connection_is_taken_first() -> None:
    pool, (backend, other) = pool_of(9)
    connections = [Connection(backend, n) for n in range(3)]
    for n, connection in enumerate(connections):
        assert pool.give(connection, float(n)) is None
    assert [pool.take(backend) for _ in range(4)] == [connections[2], connections[1], connections[0], None]
    assert pool.take(other) is None


def test_the_least_recently_used_of_all_is_closed_first() -> None:
    pool, (first, second) = pool_of(2)
    a, b, c = Connection(first, 0), Connection(second, 1), Connection(second, 2)
    assert [pool.give(a, 0.0), pool.give(b, 1.0), pool.give(c, 2.0)] == [None, None, a]
    assert a not in pool
    assert pool.take(first) is None
    assert pool.take(second) is c


def test_no_connection_is_kept_where_none_may_be() -> None:
    pool, (backend, _) = pool_of(0)
    connection = Connection(backend, 0)
    assert pool.give(connection, 0.0) is connection
    assert (len(pool), backend.idle) == (0, [])


def test_each_leaves_when_its_own_time_is_over() -> None:
    pool, (backend, _) = pool_of(9, idle_timeout_s=10.0)
    connections = [Connection(backend, n) for n in range(3)]
    for n, connection in enumerate(connections):
        pool.give(connection, float(n))
    assert pool.drop_expired(9.99) == []
    assert pool.drop_expired(11.0) == connections[:2]
    assert pool.drop_expired(12.0) == connections[2:]
    assert (len(pool), backend.idle) == (0, [])


def test_dropping_twice_says_so() -> None:
    pool, (backend, _) = pool_of(9)
    connection = Connection(backend, 0)
    pool.give(connection, 0.0)
    assert [pool.drop(connection), pool.drop(connection)] == [True, False]


def test_its_repr_shows_its_state() -> None:
    pool, (backend, _) = pool_of(9)
    pool.give(Connection(backend, 0), 0.0)
    assert repr(pool) == "<Pool 1/9 idle>"
    assert "idle=1" in repr(backend)


class Pooling(RuleBasedStateMachine):
    """Leases that begin on a pooled or a new connection, and end with the connection reusable or not."""

    @initialize(max_idle=st.integers(0, 5), backends=st.integers(1, 3))
    def begin(self, max_idle: int, backends: int) -> None:
        self.max_idle = max_idle
        self.fleet = Fleet(make_config(backends))
        self.backends = list(self.fleet)
        self.pool: Pool[Connection] = Pool(max_idle, 10.0)
        self.now = 0.0
        self.made = 0
        self.idle: list[tuple[Connection, float]] = []  # oldest first
        self.leased: list[Connection] = []
        self.closed: list[Connection] = []

    def of(self, number: int) -> Backend:
        return self.backends[number % len(self.backends)]

    def closes(self, *connections: Connection) -> None:
        self.closed += connections
        self.idle = [(c, since) for c, since in self.idle if c not in connections]

    @rule(seconds=st.sampled_from([0.1, 1.0, 4.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(number=st.integers(0, 9))
    def lease(self, number: int) -> None:
        backend = self.of(number)
        self.fleet.lease(backend, self.now)
        expected = next((c for c, _ in reversed(self.idle) if c.backend is backend), None)
        found = self.pool.take(backend)
        assert found is expected
        if found is None:
            self.made += 1
            found = Connection(backend, self.made)
        else:
            self.idle = [(c, since) for c, since in self.idle if c is not found]
        self.leased.append(found)

    @precondition(lambda self: bool(self.leased))
    @rule(number=st.integers(0, 99), reusable=st.booleans())
    def settle(self, number: int, reusable: bool) -> None:
        connection = self.leased.pop(number % len(self.leased))
        self.fleet.release(connection.backend)
        if not reusable:
            self.closes(connection)
            return
        self.idle.append((connection, self.now))
        surplus = self.pool.give(connection, self.now)
        assert surplus is (self.idle[0][0] if len(self.idle) > self.max_idle else None)
        if surplus is not None:
            self.closes(surplus)

    @precondition(lambda self: bool(self.idle))
    @rule(number=st.integers(0, 99))
    def peer_closes(self, number: int) -> None:
        connection = self.idle[number % len(self.idle)][0]
        assert self.pool.drop(connection)
        self.closes(connection)

    @precondition(lambda self: bool(self.leased or self.closed))
    @rule(number=st.integers(0, 99))
    def peer_closes_one_that_is_not_idle(self, number: int) -> None:
        others = self.leased + self.closed
        assert not self.pool.drop(others[number % len(others)])

    @rule(number=st.integers(0, 9))
    def drain(self, number: int) -> None:
        backend = self.of(number)
        expected = [c for c, _ in self.idle if c.backend is backend]
        assert self.pool.drop_backend(backend) == expected
        self.closes(*expected)

    @rule()
    def sweep(self) -> None:
        expected = [c for c, since in self.idle if self.now - since >= 10.0]
        assert self.pool.drop_expired(self.now) == expected
        self.closes(*expected)

    @invariant()
    def each_connection_stands_in_one_book(self) -> None:
        if not hasattr(self, "pool"):
            return
        assert len(self.pool) == len(self.idle) <= self.max_idle
        for backend in self.backends:
            assert backend.idle == [c for c, _ in self.idle if c.backend is backend]
            assert backend.active == sum(c.backend is backend for c in self.leased)
        for connection in [*self.leased, *self.closed]:
            assert connection not in self.pool
        assert len(self.idle) + len(self.leased) + len(self.closed) == self.made


TestPooling = Pooling.TestCase
TestPooling.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("idle", [10, 1000])
def test_taking_and_giving_cost_the_same_with_many_idle_connections(idle: int) -> None:
    """Counted in calls of the connections' own comparison: none, whoever else is idle."""
    compared = 0

    class Counting(Connection):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return self is other

        __hash__ = object.__hash__

    pool, (backend, _) = pool_of(2000)
    for n in range(idle):
        pool.give(Counting(backend, n), 0.0)
    compared = 0
    for _ in range(100):
        connection = pool.take(backend)
        assert connection is not None
        pool.give(connection, 1.0)
    assert compared <= 200
