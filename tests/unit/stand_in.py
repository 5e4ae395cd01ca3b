"""An endpoint without a data path: real fleet, counters and rings, for tests of what the side port tells of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import orjson

from proxy.balancer import Fleet
from proxy.config import BackendUrl, Config, parse_options
from proxy.counters import Counters
from proxy.events import Choice, RequestEntry
from proxy.recent import RecentRequests
from proxy.upstream import Backend


@dataclass
class Number:
    """Counts that the data path would keep."""

    dropped: int = 0
    hits: int = 0
    misses: int = 0
    size: int = 0


@dataclass
class StandIn:
    """Satisfies side_api.Endpoint; `removed` holds what remove_backend was asked for."""

    config: Config
    fleet: Fleet = field(init=False)
    counters: Counters = field(default_factory=Counters)
    draining: bool = False
    log: Number = field(default_factory=Number)
    started_at: float = field(default_factory=time.time)
    recent: RecentRequests = field(default_factory=RecentRequests)
    memo_requests: Number = field(default_factory=Number)
    memo_responses: Number = field(default_factory=Number)
    removed: list[tuple[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.fleet = Fleet(self.config)

    def active_requests(self) -> int:
        return self.counters.active_requests

    def add_backend(self, url: BackendUrl, required: bool) -> tuple[Backend, bool]:
        known = self.fleet.get(url.authority)
        if known is None:
            return self.fleet.add(url, required=required), True
        if known.url != url:
            raise ValueError(f"{url.authority} is a backend under {known.url.scheme}")
        known.required = required
        return known, False

    def drain_backend(self, backend: Backend) -> None:
        self.fleet.set_draining(backend, True)

    def resume_backend(self, backend: Backend) -> None:
        self.fleet.set_draining(backend, False)

    def remove_backend(self, backend: Backend, timeout_s: float) -> None:
        self.fleet.set_draining(backend, True)
        self.removed.append((backend.id, timeout_s))
        self.fleet.remove(backend)


def stand_in(backends: int = 2, *, token: str | None = None, **options: object) -> StandIn:
    """Make an endpoint with backends http://127.0.0.1:8001, …8002 and so on; `options` as in a config file."""
    urls = [f"http://127.0.0.1:{8001 + n}" for n in range(backends)]
    config, errors = parse_options({"listen_port": 0, "backend": urls} | options, "test")
    assert config is not None, errors
    return StandIn(replace(config, admin_token=token))


def request_event(request_id: str = "r1", **fields: Any) -> dict[str, Any]:
    """Make a request's log event: one good attempt on the first backend unless `fields` say otherwise."""
    event: dict[str, Any] = {
        "ts": "2026-11-29T10:15:00.123Z",
        "event": "request",
        "request_id": request_id,
        "method": "POST",
        "path": "/v1/chat/completions",
        "final_status": 200,
        "attempts": 1,
        "failover": False,
        "complete": True,
        "bytes_in": 2000,
        "bytes_out": 1500,
        "total_s": 0.35,
        "upstreams": [attempt("127.0.0.1:8001", "200", 0.34)],
    }
    return event | fields


def attempt(backend: str, outcome: str, total_s: float, **fields: Any) -> dict[str, Any]:
    """Make one attempt of such an event."""
    base: dict[str, Any] = {"backend": backend, "outcome": outcome, "reused": True, "connect_s": None}
    return base | {"header_s": total_s if outcome.isdecimal() else None, "total_s": total_s} | fields


def remember(endpoint: StandIn, event: dict[str, Any], choices: list[Choice | None] | None = None) -> None:
    """Put an ended request where the data path would."""
    endpoint.recent.add(cast(RequestEntry, event), orjson.dumps(event), choices)


async def until(check: Callable[[], bool]) -> None:
    """Wait until `check()` holds; fails after five seconds."""
    for _ in range(500):
        if check():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came to hold")
