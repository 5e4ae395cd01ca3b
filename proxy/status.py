"""The state of the endpoint as JSON values: `GET /backends`, and `GET /status.json` for the page and `dd-proxy top`.

Owns which fields they have and the arithmetic on them. Everything is read when it is asked for; nothing is kept here.
No header value, query, body or token is ever among it.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

import orjson

from proxy import __version__
from proxy.breaker import BreakerState
from proxy.explain import sentence
from proxy.history import LATENCY_S, RATE_S, History, Totals, quantile, rate
from proxy.side_api import Endpoint
from proxy.upstream import Backend

TOLD_FAILOVERS = 20  # on the page; all that are kept stand behind /requests?notable=1
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def backend_entry(backend: Backend, now: float) -> dict[str, Any]:
    """Describe one backend as INTERFACE section 4 says; `now` is the monotonic clock."""
    known = backend.queue_depth is not None
    return {
        "id": backend.id,
        "url": backend.url.url,
        "required": backend.required,
        "state": "draining" if backend.draining else "active",
        "healthy": backend.health.healthy,
        "breaker": backend.breaker.state.value,
        "active": backend.active,
        "idle": len(backend.idle),
        "queue_depth": _whole(backend.queue_depth) if backend.queue_depth is not None else None,
        "queue_age_s": round(max(now - backend.queue_at, 0.0), 3) if known else None,
        "requests": backend.attempts,
        "failures": backend.failures,
    }


def status(endpoint: Endpoint, history: History, changes: str, since: int, now: float) -> dict[str, Any]:
    """Describe the whole endpoint for a reader who has the samples up to number `since`.

    `changes` says whether backends may be changed here: `open`, `token` or `refused`. `now` is the monotonic clock.
    """
    config, counters, readiness = endpoint.config, endpoint.counters, endpoint.fleet.readiness()
    totals = Totals.of(counters, endpoint.active_requests(), now)
    return {
        "version": __version__,
        "started_at": endpoint.started_at,
        "draining": endpoint.draining,
        "ready": readiness.ok and not endpoint.draining,
        "backends_ready": readiness.ready,
        "backends_counted": readiness.backends,
        "changes": changes,
        "limits": {
            "max_attempts": config.max_attempts,
            "max_waiting_requests": config.max_waiting_requests,
            "max_connections_per_backend": config.max_connections_per_backend,
            "queue_stale_after_s": config.queue_stale_after_s,
            "drain_timeout_s": config.drain_timeout_s,
        },
        "totals": _totals(endpoint, totals),
        "rates": _rates(history, totals),
        "latency": _latency(endpoint, history, totals),
        "backends": [_told_backend(b, history, now) for b in endpoint.fleet],
        "history": history.since(since),
        "failovers": [told(orjson.loads(line)) for line in endpoint.recent.lines(TOLD_FAILOVERS, notable=True)],
    }


def told(event: Mapping[str, Any]) -> dict[str, Any]:
    """Reduce a request's log event to what a list shows, with one sentence in words."""
    keys = ("request_id", "ts", "method", "path", "final_status", "attempts", "complete", "total_s")
    return {key: event.get(key) for key in keys} | {"words": sentence(event)}


def _told_backend(backend: Backend, history: History, now: float) -> dict[str, Any]:
    breaker = backend.breaker
    open_for_s = max(breaker.open_until - now, 0.0) if breaker.state is BreakerState.OPEN else None
    return backend_entry(backend, now) | {
        "per_s": history.attempt_rate(backend),
        "reused": backend.reused,
        "errors": backend.failures + sum(n for code, n in backend.responses.items() if code == 429 or code >= 500),
        "trips": breaker.trips,
        "open_for_s": open_for_s,
        "resting_s": max(backend.penalty_until - now, 0.0),
        "responses": {str(code): n for code, n in sorted(backend.responses.items())},
    }


def _totals(endpoint: Endpoint, totals: Totals) -> dict[str, Any]:
    c = endpoint.counters
    return {
        "requests": totals.requests,
        "active": totals.active,
        "failovers": totals.failovers,
        "final_429": totals.final_429,
        "final_5xx": totals.final_5xx,
        "responses": {str(code): n for code, n in sorted(c.responses.items())},
        "retries": _counted(c.retries),
        "rejected": _counted(c.rejected),
        "timeouts": _counted(c.timeouts),
        "incomplete": _counted(c.incomplete),
        "log_dropped": endpoint.log.dropped,
    }


def _rates(history: History, now: Totals) -> dict[str, float | None]:
    past = history.before(now, RATE_S)
    if past is None:
        return dict.fromkeys(("span_s", "requests", "retries", "final_429", "final_5xx"))
    span_s = now.at - past.at
    return {
        "span_s": span_s,
        "requests": rate(now.requests - past.requests, span_s),
        "retries": rate(now.retries - past.retries, span_s),
        "final_429": rate(now.final_429 - past.final_429, span_s),
        "final_5xx": rate(now.final_5xx - past.final_5xx, span_s),
    }


def _latency(endpoint: Endpoint, history: History, now: Totals) -> dict[str, Any]:
    """Give percentiles of the last minute; of all time while there is no sample to compare with."""
    past = history.before(now, LATENCY_S)
    c = endpoint.counters
    measured = {
        "request": (c.request_seconds, now.request_counts, past.request_counts if past else None),
        "header": (c.response_header_seconds, now.header_counts, past.header_counts if past else None),
    }
    result: dict[str, Any] = {"span_s": now.at - past.at if past else None}
    for name, (histogram, counts, before) in measured.items():
        fresh = counts if before is None else array("Q", (n - old for n, old in zip(counts, before, strict=True)))
        percentiles = {word: quantile(histogram, fresh, q) for word, q in QUANTILES.items()}
        result[name] = percentiles | {"count": sum(fresh)}
    return result


def _counted(counts: Mapping[str, int]) -> dict[str, int]:
    """Keep what has happened, the most frequent first."""
    return {str(word): n for word, n in sorted(counts.items(), key=lambda item: -item[1]) if n}


def _whole(depth: float) -> float:
    return int(depth) if depth == int(depth) else depth
