"""The Prometheus exposition: one table of metrics, and their values read from the plain counters.

Owns names, types, labels and help texts (INTERFACE section 5 is their contract). The data path never comes here: it
adds to integers, and a scrape reads them. prometheus_client is imported by the first scrape, since it costs 4.6 MiB.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from proxy import __version__
from proxy.counters import Histogram
from proxy.outcome import RETRYABLE_STATUSES, Failure, Rejection
from proxy.side_api import Endpoint, MemoCount
from proxy.upstream import Backend

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
FORGET_DEPTH_S = 15.0  # a queue sample older than a usual scrape interval is no fact any more

Value = float | Histogram
Samples = Iterable[tuple[tuple[str, ...], Value]]  # label values in the order of Metric.labels, and the value


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of the contract; `name` as it stands in the exposition."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str


def _counter(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"dd_proxy_{name}", "counter", labels, text)


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"dd_proxy_{name}", "gauge", labels, text)


def _histogram(name: str, text: str) -> Metric:
    return Metric(f"dd_proxy_{name}", "histogram", (), text)


METRICS: tuple[Metric, ...] = (
    _counter("requests_total", "Client requests, refused ones included."),
    _counter("responses_total", "Ended client requests by final status; 499: the client left before.", "code"),
    _gauge("active_requests", "Client requests that are being served."),
    _counter("upstream_attempts_total", "Attempts started on a backend.", "backend"),
    _counter("upstream_responses_total", "Response heads received from a backend, by status.", "backend", "code"),
    _counter("retries_total", "Further attempts, by what became of the one before.", "reason"),
    _counter("failovers_total", "Client requests that used more than one attempt."),
    _counter("rejected_total", "Requests that the proxy answered itself, by reason.", "reason"),
    _counter("final_429_total", "Client requests that ended with 429."),
    _counter("final_5xx_total", "Client requests that ended with a 5xx status."),
    _counter("timeouts_total", "Limits that ran out, by kind.", "kind"),
    _counter("incomplete_responses_total", "Responses cut short, by the side that did it.", "side"),
    _counter("upstream_connections_opened_total", "Connections opened for client requests.", "backend"),
    _counter("upstream_connections_reused_total", "Attempts that used an idle connection.", "backend"),
    _counter("upstream_connections_failed_total", "Connections that could not be opened.", "backend"),
    _counter("upstream_connections_evicted_total", "Connections closed, by reason.", "backend", "reason"),
    _gauge("upstream_connections", "Open upstream connections, by state.", "backend", "state"),
    _gauge("backend_healthy", "1: the health probes say healthy; 0: unhealthy, or not known yet.", "backend"),
    _gauge("backend_queue_depth", "Requests in the backend's own queue; absent while unknown.", "backend"),
    _gauge("backend_breaker_state", "Circuit breaker: 0 closed, 1 half-open, 2 open.", "backend"),
    _gauge("backend_draining", "1: the backend is out of selection by an operator's wish.", "backend"),
    _counter("backend_breaker_trips_total", "Times the breaker opened.", "backend"),
    _histogram("connect_seconds", "Time to open an upstream connection."),
    _histogram("response_header_seconds", "Time from the start of an attempt to its response head."),
    _histogram("request_seconds", "Time from a client request's start to its end."),
    _counter("log_events_dropped_total", "Log events dropped because stderr could not be written."),
    _gauge("ready", "1: the verdict of /health is ok, and the process does not drain."),
    _gauge("build_info", "Always 1; the version is in the label.", "version"),
    _counter("head_memo_hits_total", "Message heads that were known byte for byte.", "side"),
    _counter("head_memo_misses_total", "Message heads that had to be parsed.", "side"),
    _gauge("head_memo_entries", "Message heads remembered.", "side"),
)

# Series that exist from the start, so that a rate sees their first event too. The other reasons are rare enough to
# appear when they happen.
_USUAL_RETRIES = (
    *(f"http_{status}" for status in sorted(RETRYABLE_STATUSES)),
    *(failure for failure in Failure if failure is not Failure.READ_TIMEOUT),
)
_RARE_REJECTIONS = frozenset({Rejection.NO_BACKEND, Rejection.UNSUPPORTED, Rejection.TIMEOUT, Rejection.SPOOL})


def read_values(endpoint: Endpoint, now: float) -> dict[str, Samples]:
    """Read the present value of every metric by its name; `now` is the monotonic clock."""
    c = endpoint.counters
    rejected = {word: n for word, n in c.rejected.items() if n or word not in _RARE_REJECTIONS}
    values: dict[str, Samples] = {
        "requests_total": _one(c.requests),
        "responses_total": _by_label(c.responses),
        "active_requests": _one(endpoint.active_requests()),
        "retries_total": _by_label(dict.fromkeys(_USUAL_RETRIES, 0) | c.retries),
        "failovers_total": _one(c.failovers),
        "rejected_total": _by_label(rejected),
        "final_429_total": _one(c.final_429),
        "final_5xx_total": _one(c.final_5xx),
        "timeouts_total": _by_label(c.timeouts),
        "incomplete_responses_total": _by_label(c.incomplete),
        "connect_seconds": [((), c.connect_seconds)],
        "response_header_seconds": [((), c.response_header_seconds)],
        "request_seconds": [((), c.request_seconds)],
        "log_events_dropped_total": _one(endpoint.log.dropped),
        "ready": _one(endpoint.fleet.readiness().ok and not endpoint.draining),
        "build_info": [((__version__,), 1.0)],
    }
    values |= _memo_values({"request": endpoint.memo_requests, "response": endpoint.memo_responses})
    values |= _backend_values(list(endpoint.fleet), max(FORGET_DEPTH_S, endpoint.config.queue_stale_after_s), now)
    return {f"dd_proxy_{name}": samples for name, samples in values.items()}


def _memo_values(memos: Mapping[str, MemoCount]) -> dict[str, Samples]:
    return {
        "head_memo_hits_total": [((side,), memo.hits) for side, memo in memos.items()],
        "head_memo_misses_total": [((side,), memo.misses) for side, memo in memos.items()],
        "head_memo_entries": [((side,), memo.size) for side, memo in memos.items()],
    }


def _backend_values(backends: list[Backend], forget_depth_s: float, now: float) -> dict[str, Samples]:
    known = [b for b in backends if b.queue_depth is not None and now - b.queue_at <= forget_depth_s]
    return {
        "upstream_attempts_total": [((b.id,), b.attempts) for b in backends],
        "upstream_responses_total": [
            ((b.id, str(code)), n) for b in backends for code, n in sorted(b.responses.items())
        ],
        "upstream_connections_opened_total": [((b.id,), b.opened) for b in backends],
        "upstream_connections_reused_total": [((b.id,), b.reused) for b in backends],
        "upstream_connections_failed_total": [((b.id,), b.failed) for b in backends],
        "upstream_connections_evicted_total": [((b.id, word), n) for b in backends for word, n in b.evicted.items()],
        "upstream_connections": [
            ((b.id, state), n) for b in backends for state, n in (("active", b.active), ("idle", len(b.idle)))
        ],
        "backend_healthy": [((b.id,), b.health.healthy is True) for b in backends],
        "backend_queue_depth": [((b.id,), b.queue_depth or 0.0) for b in known],
        "backend_breaker_state": [((b.id,), b.breaker.state.code) for b in backends],
        "backend_draining": [((b.id,), b.draining) for b in backends],
        "backend_breaker_trips_total": [((b.id,), b.breaker.trips) for b in backends],
    }


def _one(value: float) -> Samples:
    return [((), value)]


def _by_label(counts: Mapping[int, int] | Mapping[str, int]) -> Samples:
    return [((str(word),), n) for word, n in sorted(counts.items())]


class Exposition:
    """Render the exposition of one endpoint."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def render(self, now: float) -> bytes:
        """Give the whole exposition text, all of it as of one moment (`now`: monotonic seconds).

        The text is written family by family with a step aside after each, since a hundred backends make a page that
        would otherwise hold up running streams. Cancellation leaves nothing behind.
        """
        if "prometheus_client" not in sys.modules:
            await asyncio.to_thread(_import_client)  # takes 50 ms, which streams should not notice
        from prometheus_client import generate_latest

        parts = []
        for family in list(self.collect(now)):
            parts.append(generate_latest(_Only(family)))
            await asyncio.sleep(0)
        return b"".join(parts)

    def collect(self, now: float) -> Iterator[Family]:
        """Give every family, the process's own included."""
        from prometheus_client import CollectorRegistry, ProcessCollector

        values = read_values(self._endpoint, now)
        for metric in METRICS:
            yield _family(metric, values[metric.name])
        yield from ProcessCollector(registry=CollectorRegistry()).collect()


class _Only:
    """A collector of one family."""

    def __init__(self, family: Family) -> None:
        self._family = family

    def collect(self) -> Iterable[Family]:
        return (self._family,)


def _import_client() -> None:
    import prometheus_client  # noqa: F401


def _family(metric: Metric, samples: Samples) -> Family:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    if metric.kind == "histogram":
        histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for labels, value in samples:
            assert isinstance(value, Histogram)
            histogram.add_metric(labels, _buckets(value), value.total)
        return histogram
    family = (CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily)(
        metric.name, metric.help, labels=metric.labels
    )
    for labels, value in samples:
        assert not isinstance(value, Histogram)
        family.add_metric(labels, float(value))
    return family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    seen = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip((*(repr(float(b)) for b in histogram.bounds), "+Inf"), histogram.counts, strict=True):
        seen += count
        buckets.append((bound, seen))
    return buckets
