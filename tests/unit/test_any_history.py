"""Any history of clients, backends, time and operators leaves nothing behind: random walks through the data path.

`DD_LONG=1` walks a hundred times as often. A failure names the seed of its walk and the steps up to it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest

from proxy.config import BackendUrl
from proxy.outcome import Verdict
from tests.unit.kit import Rig, chunked, request, response, rig
from tests.unit.memory import Client, Dial, Peer, Replica

WALKS = 30_000 if os.environ.get("DD_LONG") == "1" else 300
STEPS = 120
REQUESTS = [
    *(request(b"{}"), request(b"x" * 3000), request(method=b"GET"), request(method=b"HEAD")),
    *(b"GET /old HTTP/1.0\r\n\r\n", request(b"bye", extra=b"Connection: close\r\n"), request(b"{}", method=b"GET")),
    b"POST /v1 HTTP/1.1\r\nHost: dd\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(b"y" * 2000, b"z"),
    request(b"e" * 10, extra=b"Expect: 100-continue\r\n"),
    *(b"GET /health HTTP/1.1\r\nHost: dd\r\n\r\n", b"BAD\r\n\r\n", request(b"x" * 20_000)),
]
ANSWERS = [
    *(response(), response(b"x" * 5000), response(b"no", 404), response(b"no", 429), response(b"no", 500)),
    *(response(b"no", 503, b"Retry-After: 2\r\n"), response(b"bye", 200, b"Connection: close\r\n")),
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(b"data: 1\n\n", b"data: 2\n\n"),
    b"HTTP/1.1 502 X\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(b"kept", end=b"0\r\nT: v\r\n\r\n"),
    *(b"HTTP/1.1 200 OK\r\n\r\nto the end", b"HTTP/1.1 204 No Content\r\n\r\n"),
    *(b"HTTP/1.1 100 Continue\r\n\r\n" + response(), b"\x00garbage", response() + b"too much"),
]
OPTIONS: dict[str, object] = {
    "connect_timeout": 2,
    "response_timeout": 4,
    "read_timeout": 6,
    "client_timeout": 10,
    "body_memory": 1000,
    "max_request_body": "10KiB",
    "breaker_failure_threshold": 2,
    "breaker_cooldown_s": 3,
}


class Walk:
    """The steps that the world can take, each with its weight; `run` takes many of them."""

    def __init__(self, r: Rig, chance: random.Random) -> None:
        self.rig = r
        self.chance = chance
        self.rest: dict[Peer, bytes] = {}  # of a message that was sent in part
        self.added = 0
        self.steps: list[str] = []
        self.weights: dict[Callable[[], str | None], float] = {
            self.client_asks: 7,
            self.replica_answers: 9,
            self.dial_succeeds: 9,
            self.dial_fails: 0.5,
            self.client_connects: 2,
            self.client_does_something_else: 1,
            self.departure_is_noticed: 0.5,
            self.replica_does_something_else: 1,
            self.backend_is_judged: 0.3,
            self.operator_does_something: 0.4,
            self.time_passes: 1,
            self.endpoint_drains: 0.02,
        }

    def run(self, steps: int) -> None:
        actions, weights = list(self.weights), list(self.weights.values())
        for action in self.chance.choices(actions, weights, k=steps):
            done = action()
            if done is not None:
                self.steps.append(f"{action.__name__}: {done}")
                self.check()

    def one_of(self, found: list[Peer]) -> Peer | None:
        return self.chance.choice(found) if found else None

    # ------------------------------------------------------------------ clients

    def client_connects(self) -> str | None:
        if sum(not c.is_gone() for c in self.rig.clients) >= 6:
            return None
        self.rig.client()
        return ""

    def client_asks(self) -> str | None:
        return self.speak([c for c in self.rig.clients if not c.is_gone() and not c.transport.eof_arrived], REQUESTS)

    def speak(self, peers: list[Client] | list[Replica], messages: list[bytes]) -> str | None:
        """Send a message or a part of one, or the rest of the one that was begun."""
        if not peers:
            return None
        peer = self.chance.choice(peers)
        raw = self.rest.pop(peer, None) or self.chance.choice(messages)
        at = int(len(raw) * self.chance.choice([1.0, 1.0, 1.0, 0.9, 0.6, 0.3]))
        if raw[at:]:
            self.rest[peer] = raw[at:]
        if raw[:at]:
            peer.send(raw[:at])
        return f"{raw[:at][:60]!r} of {len(raw)}"

    def client_does_something_else(self) -> str | None:
        return self.act([c for c in self.rig.clients if not c.is_gone()])

    def act(self, peers: list[Client] | list[Replica]) -> str | None:
        if not peers:
            return None
        peer = self.chance.choice(peers)
        how = self.chance.choice(["eof", "reset", "stop_taking", "go_on_taking"])
        if how == "eof" and peer.transport.eof_arrived:
            return None
        getattr(peer, how)()
        return how

    def departure_is_noticed(self) -> str | None:
        watched = list(self.rig.departures.watched.values())
        if not watched:
            return None
        self.chance.choice(watched)()
        self.rig.loop.run()
        return ""

    # ------------------------------------------------------------------ backends

    def dial(self) -> Dial | None:
        dials = [d for d in self.rig.loop.dials if d.open]
        return self.chance.choice(dials) if dials else None

    def dial_succeeds(self) -> str | None:
        dial = self.dial()
        if dial is None:
            return None
        self.rig.keep(dial.accept(blocked=self.chance.random() < 0.1))
        return dial.address

    def dial_fails(self) -> str | None:
        dial = self.dial()
        if dial is None:
            return None
        dial.refuse()
        return dial.address

    def replica_answers(self) -> str | None:
        """Mostly those that were asked answer."""
        replicas = [r for r in self.rig.replicas if not r.is_gone()]
        idle = {c.transport for b in self.rig.backends for c in b.idle}
        asked = [r for r in replicas if r.transport not in idle]
        return self.speak(asked if self.chance.random() < 0.95 else replicas, ANSWERS)

    def replica_does_something_else(self) -> str | None:
        return self.act([r for r in self.rig.replicas if not r.is_gone()])

    def backend_is_judged(self) -> str | None:
        if not self.rig.backends:
            return None
        backend = self.chance.choice(self.rig.backends)
        verdict, depth = self.chance.choice([Verdict.FAILURE, Verdict.SUCCESS]), self.chance.choice([0.0, 500.0])
        self.rig.endpoint.fleet.record_verdict(backend, verdict, False, self.rig.loop.now)
        self.rig.endpoint.fleet.record_depth(backend, depth, self.rig.loop.now)
        return f"{backend.id} {verdict} {depth}"

    # ------------------------------------------------------------------ operators and time

    def operator_does_something(self) -> str:
        endpoint, backends = self.rig.endpoint, self.rig.backends
        how = self.chance.choice(["drain", "resume", "resume", "remove", "remove later", "add"])
        if how == "add" or not backends:
            self.added += 1
            endpoint.add_backend(BackendUrl("http", f"10.5.0.{self.added}", 80), True)
            return "add"
        backend = self.chance.choice(backends)
        if how == "drain":
            endpoint.drain_backend(backend)
        elif how == "resume":
            endpoint.resume_backend(backend)
        else:
            endpoint.remove_backend(backend, 0.0 if how == "remove" else 3.0)
        self.rig.loop.run()
        return f"{how} {backend.id}"

    def time_passes(self) -> str:
        seconds = self.chance.choice([0.1, 0.1, 1.0, 2.5, 5.0, 12.0])
        self.rig.loop.advance(seconds)
        return f"{seconds} s"

    def endpoint_drains(self) -> str:
        self.rig.endpoint.begin_drain()
        self.rig.loop.run()
        return ""

    # ------------------------------------------------------------------ what holds at every moment

    def check(self) -> None:
        """See that the books agree, in the middle of everything."""
        endpoint = self.rig.endpoint
        assert not self.rig.loop.errors, self.rig.loop.errors
        assert endpoint.active_requests() == len(endpoint.exchanges)
        assert endpoint.counters.requests == len(self.rig.records) + len(endpoint.exchanges)
        limit = endpoint.config.max_connections_per_backend
        for backend in endpoint.fleet:
            mine = [e.attempt for e in endpoint.exchanges if e.attempt is not None and e.attempt.backend is backend]
            assert backend.active == len(mine) <= limit
            assert not backend.breaker.probing or any(a.probe for a in mine)
            in_use = sum(a.connection is not None for a in mine)
            assert backend.opened == in_use + len(backend.idle) + sum(backend.evicted.values()), backend
        idle = sum(len(b.idle) for b in endpoint.fleet)
        assert idle == len(endpoint.pool) <= endpoint.config.max_idle


@pytest.mark.parametrize("part", range(4))
def test_nothing_is_left_after_any_history(part: int) -> None:
    for seed in range(part, WALKS, 4):
        chance = random.Random(seed)
        more: dict[str, object] = {
            "max_connections_per_backend": chance.choice([1, 2, 9]),
            "max_idle": chance.choice([0, 1, 5]),
            "flush_head": chance.random() < 0.2,
        }
        steps: list[str] = []
        try:
            with rig(chance.choice([1, 2, 3]), **OPTIONS, **more) as r:
                walk = Walk(r, chance)
                steps = walk.steps
                walk.run(STEPS)
        except BaseException as e:
            e.add_note(f"seed {seed}, options {more}, after these steps:\n" + "\n".join(steps))
            raise
