"""Print docs/reference.md: every metric and every log field, from the tables that the proxy itself uses.

Owns the descriptions of log events; names, types and labels come from the code. A test compares the page with this.

    python tools/reference.py > docs/reference.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs as a script from anywhere

from proxy.events import LEVELS, Event, RequestEntry, UpstreamEntry, level_of
from proxy.metrics import METRICS, Metric
from proxy.outcome import CANCELLED, RETRYABLE_STATUSES, Eviction, Failure, Rejection, Side, Timeout

PROCESS_METRICS: Mapping[str, str] = {
    "process_cpu_seconds_total": "Processor time, user and system.",
    "process_resident_memory_bytes": "Memory in use (RSS).",
    "process_virtual_memory_bytes": "Address space.",
    "process_open_fds": "Open file descriptors.",
    "process_max_fds": "Limit of open file descriptors.",
    "process_start_time_seconds": "Start, as Unix time.",
}

_RETRIES = (*(f"http_{status}" for status in sorted(RETRYABLE_STATUSES)), *Failure)

# The values of the labels that have a fixed set, by metric and label.
LABEL_VALUES: Mapping[str, Sequence[str]] = {
    "dd_proxy_retries_total": _RETRIES,
    "dd_proxy_rejected_total": tuple(Rejection),
    "dd_proxy_timeouts_total": tuple(Timeout),
    "dd_proxy_incomplete_responses_total": tuple(Side),
    "dd_proxy_upstream_connections_evicted_total": tuple(Eviction),
    "dd_proxy_upstream_connections": ("active", "idle"),
    "dd_proxy_head_memo_hits_total": ("request", "response"),
    "dd_proxy_head_memo_misses_total": ("request", "response"),
    "dd_proxy_head_memo_entries": ("request", "response"),
}

WORDS: Mapping[str, str] = {
    Failure.CONNECT_ERROR: "no connection could be opened",
    Failure.CONNECT_TIMEOUT: "no connection within --connect-timeout",
    Failure.RESPONSE_TIMEOUT: "no response head within --response-timeout",
    Failure.READ_TIMEOUT: "silence for --read-timeout after the response head",
    Failure.STALE_CONNECTION: "an idle connection proved to be closed; says nothing about the backend",
    Failure.PROTOCOL_ERROR: "the response was not proper HTTP; in the log also where it had begun",
    Failure.CLOSED: "closed, reset or cut before the first body byte on a fresh connection; in the log also later",
    CANCELLED: "the client left before the response head came (in the log only)",
    Rejection.QUEUE_DEPTH: "every backend overloaded: 429",
    Rejection.CONNECTION_LIMIT: "every backend at its connection limit: 429",
    Rejection.DRAINING: "the process drains: 503",
    Rejection.NO_BACKEND: "there is no backend: 503",
    Rejection.BAD_REQUEST: "malformed or ambiguous request: 400",
    Rejection.UNSUPPORTED: "CONNECT, an unknown coding or HTTP version: 501 or 505",
    Rejection.TIMEOUT: "the request did not arrive in time: 408",
    Rejection.BODY_TOO_LARGE: "above --max-request-body: 413",
    Rejection.HEAD_TOO_LARGE: "above --max-head: 414 or 431",
    Rejection.SPOOL: "the request body could not be stored: 503",
    Eviction.IDLE_TIMEOUT: "idle for longer than --idle-timeout",
    Eviction.STALE: "closed by the peer, idle or in use",
    Eviction.DISCARDED: "not reusable: unread body, cancelled, protocol",
    Eviction.POOL_FULL: "more idle connections than --max-idle",
    Eviction.DRAIN: "its backend drains or was removed",
}

REQUEST_FIELDS: Mapping[str, str] = {
    "ts": "when the request ended, UTC",
    "event": "`request`",
    "request_id": "unique; with `--request-id-header` the client's own if it is 1 to 128 of `0-9A-Za-z._:/+=-`",
    "method": "null when unreadable",
    "path": "without query and authority, at most 1,024 characters; null when unreadable",
    "final_status": "sent to the client; 499: it left before its response began",
    "attempts": "how many backends were contacted, repeats included",
    "failover": "whether that were more than one",
    "complete": "whether the client got the whole response",
    "bytes_in": "of the request's head and body, without chunk framing; of a refused upload the head only",
    "bytes_out": "that were sent to the client, the head and chunk framing included",
    "total_s": "seconds from the request's start to its end",
    "upstreams": "one object per attempt, in order",
}

UPSTREAM_FIELDS: Mapping[str, str] = {
    "backend": "its `host:port`",
    "outcome": "the status, or a word from the list below",
    "reused": "whether an idle connection was used",
    "connect_s": "seconds until a new connection was open; null when reused or never open",
    "header_s": "seconds until the response head; null when none came",
    "total_s": "seconds until the attempt ended",
}

# What each event of the process's life tells, and its fields beside `ts` and `event`.
EVENTS: Mapping[str, tuple[str, Sequence[str]]] = {
    Event.STARTING: ("the process begins", ("version", "pid", "backends", "descriptors")),
    Event.LISTENING: ("both ports accept connections", ("listen", "metrics", "backends")),
    Event.BACKEND_ADDED: ("through the admin API", ("backend", "required")),
    Event.BACKEND_REMOVED: ("its last response has ended, or its time was up", ("backend",)),
    Event.BACKEND_UNHEALTHY: ("the health verdict changed", ("backend",)),
    Event.BACKEND_HEALTHY: ("the health verdict changed, or is the first", ("backend",)),
    Event.BREAKER_OPEN: ("too many faults in a row, or a failed probe", ("backend",)),
    Event.BREAKER_HALF_OPEN: ("the cooldown is over, one probe request is on its way", ("backend",)),
    Event.BREAKER_CLOSED: ("the backend answered again", ("backend",)),
    Event.DRAINING: ("SIGTERM or SIGINT: no new request is served", ("active",)),
    Event.STOPPED: ("the last event", ("code", "requests")),
    Event.WARNING: ("something works less well than it could", ("message",)),
    Event.ERROR: ("something failed inside the proxy; traffic goes on", ("message", "kind", "where")),
}

EVENT_FIELDS: Mapping[str, str] = {
    "version": "of dd-proxy",
    "pid": "process id",
    "backends": "how many are configured",
    "descriptors": "limit of open file descriptors in force",
    "listen": "client address, `host:port`",
    "metrics": "side address, `host:port`",
    "backend": "its `host:port`",
    "required": "whether readiness depends on it",
    "active": "requests in flight",
    "code": "exit code",
    "requests": "client requests in all, refused ones included",
    "message": "in words",
    "kind": "type of the error",
    "where": "file and line of the error",
}


def page() -> str:
    """Return the whole page."""
    return "\n".join([*_intro(), *_metrics(), *_log()]) + "\n"


def _intro() -> list[str]:
    return [
        "# Reference: metrics and log events",
        "",
        "Written by `python tools/reference.py > docs/reference.md`; change the code's tables, not this page.",
        "How to use it all is told in [observability.md](observability.md).",
    ]


def _metrics() -> list[str]:
    return [
        "",
        "## Metrics",
        "",
        "`GET /metrics` on the side port, Prometheus text. `backend` is a backend's `host:port`; the series of a "
        "removed backend vanish. Everything counts client traffic only: health probes, queue samples and `/health` "
        "appear nowhere but in the gauges they feed.",
        "",
        *_table(("name", "type", "labels", "meaning"), map(_metric_row, METRICS)),
        *_table_rows((f"`{name}`", _process_kind(name), "", text) for name, text in PROCESS_METRICS.items()),
        "",
        "### Label values",
        "",
        "`code` is an HTTP status. Rare reasons appear with their first count, the others are there from the start.",
        "",
        *_table(("metric", "values"), ((f"`{name}`", _listed(values)) for name, values in LABEL_VALUES.items())),
        "",
        *_table(("word", "meaning"), ((f"`{word}`", text) for word, text in WORDS.items())),
    ]


def _log() -> list[str]:
    return [
        "",
        "## Log events",
        "",
        "JSON lines on stderr. No body, header value, query or token is ever in them. Lines that cannot be written are "
        "dropped and counted in `dd_proxy_log_events_dropped_total`. "
        f"`--log-level`: {_listed(n for n in Event if level_of(n) == LEVELS['warning'])} are warnings, "
        f"{_listed(n for n in Event if level_of(n) == LEVELS['error'])} is an error, all others are info; "
        "debug adds nothing.",
        "",
        "### `request`: once per client request, when it ends",
        "",
        *_table(("field", "meaning"), ((f"`{name}`", text) for name, text in REQUEST_FIELDS.items())),
        "",
        "Each object in `upstreams`:",
        "",
        *_table(("field", "meaning"), ((f"`{name}`", text) for name, text in UPSTREAM_FIELDS.items())),
        "",
        f"`outcome` is a status such as `200`, or one of {_listed((*Failure, CANCELLED))}.",
        "",
        "### Events of the process's life",
        "",
        *_table(("event", "when", "fields"), map(_event_row, EVENTS)),
        "",
        *_table(("field", "meaning"), ((f"`{name}`", text) for name, text in EVENT_FIELDS.items())),
    ]


def _metric_row(metric: Metric) -> tuple[str, str, str, str]:
    return f"`{metric.name}`", metric.kind, _listed(metric.labels), metric.help


def _event_row(name: str) -> tuple[str, str, str]:
    when, fields = EVENTS[name]
    return f"`{name}`", when, _listed(fields)


def _process_kind(name: str) -> str:
    return "counter" if name.endswith("_total") else "gauge"


def _listed(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [*_table_rows([head, ["---"] * len(head)]), *_table_rows(rows)]


def _table_rows(rows: Iterable[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(row) + " |" for row in rows]


def undocumented() -> list[str]:
    """Name what the code has and this page does not, or the other way round."""
    return sorted(
        {f"request field {name}" for name in ({*RequestEntry.__annotations__} ^ {*REQUEST_FIELDS}) - {"ts", "event"}}
        | {f"upstream field {name}" for name in {*UpstreamEntry.__annotations__} ^ {*UPSTREAM_FIELDS}}
        | {f"event {name}" for name in {*Event} ^ {*EVENTS, Event.REQUEST}}
        | {f"event field {name}" for name in {n for _, names in EVENTS.values() for n in names} ^ {*EVENT_FIELDS}}
        | {f"word {word}" for word in {*Failure, *Rejection, *Eviction, CANCELLED} ^ {*WORDS}}
    )


if __name__ == "__main__":
    print(page(), end="")
