"""What a log event holds: names, levels and fields, ready for orjson. Pure: reads no clock and writes nothing.

No event ever carries a body, a header value, a query or a token: the records here have no field for them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, TypedDict

LEVELS: Final = {"debug": 0, "info": 1, "warning": 2, "error": 3}
MAX_LOGGED_CHARACTERS: Final = 1024


class Event(StrEnum):
    """The names of all events; `request` is the one per client request, the others tell of the process's life."""

    REQUEST = "request"
    STARTING = "starting"
    LISTENING = "listening"
    BACKEND_ADDED = "backend_added"
    BACKEND_REMOVED = "backend_removed"
    BACKEND_UNHEALTHY = "backend_unhealthy"
    BACKEND_HEALTHY = "backend_healthy"
    BREAKER_OPEN = "breaker_open"
    BREAKER_HALF_OPEN = "breaker_half_open"
    BREAKER_CLOSED = "breaker_closed"
    DRAINING = "draining"
    STOPPED = "stopped"
    WARNING = "warning"
    ERROR = "error"


_LEVEL_OF: Final[dict[str, int]] = {
    Event.BACKEND_UNHEALTHY: LEVELS["warning"],
    Event.BREAKER_OPEN: LEVELS["warning"],
    Event.WARNING: LEVELS["warning"],
    Event.ERROR: LEVELS["error"],
}


class UpstreamEntry(TypedDict):
    """One attempt of a request; times in seconds, None where that point was not reached."""

    backend: str
    outcome: int | str  # the response's status, or why there was none
    reused: bool
    connect_s: float | None
    header_s: float | None
    total_s: float


class RequestEntry(TypedDict):
    """One client request that has ended; times in seconds, `upstreams` in the order of the attempts."""

    request_id: str
    method: str | None
    path: str | None
    final_status: int
    attempts: int
    failover: bool
    complete: bool
    bytes_in: int
    bytes_out: int
    total_s: float
    upstreams: list[UpstreamEntry]


Choice = Mapping[str, Sequence[str]]  # why -> ids of the backends that one choice had to leave out for it
AttemptRecord = tuple[str, int | str, bool, float | None, float | None, float]  # as UpstreamEntry, in its order
RequestRecord = tuple[
    float,  # when it ended, of time.monotonic
    str,
    bytes,  # the method
    str | None,  # the path
    int,  # the final status
    bool,  # complete
    int,  # bytes in
    int,  # bytes out
    float,  # seconds altogether
    list[AttemptRecord],
    list[Choice | None] | None,
]


def request_entry(record: RequestRecord) -> RequestEntry:
    """Say of a request that has ended what is logged of it."""
    _, request_id, method, path, status, complete, bytes_in, bytes_out, seconds, attempts, _ = record
    return {
        "request_id": request_id,
        "method": method.decode("ascii"),
        "path": path,
        "final_status": status,
        "attempts": len(attempts),
        "failover": len(attempts) > 1,
        "complete": complete,
        "bytes_in": bytes_in,
        "bytes_out": bytes_out,
        "total_s": int(seconds * 1e6) / 1e6,
        "upstreams": [
            {
                "backend": backend,
                "outcome": outcome,
                "reused": reused,
                "connect_s": connect_s and int(connect_s * 1e6) / 1e6,  # None stays None
                "header_s": header_s and int(header_s * 1e6) / 1e6,
                "total_s": int(total_s * 1e6) / 1e6,
            }
            for backend, outcome, reused, connect_s, header_s, total_s in attempts
        ],
    }


def level_of(name: str) -> int:
    """Return the rank of an event's level, as in LEVELS; a name that is not listed is `info`."""
    return _LEVEL_OF.get(name, LEVELS["info"])


def clipped(entry: RequestEntry) -> RequestEntry:
    """Return a request's entry with what the client chose (method, path) cut to the length that is logged."""
    method, path = entry["method"], entry["path"]
    if path is not None and len(path) > MAX_LOGGED_CHARACTERS:
        path = path[:MAX_LOGGED_CHARACTERS]
    if method is not None and len(method) > MAX_LOGGED_CHARACTERS:
        method = method[:MAX_LOGGED_CHARACTERS]
    if path is entry["path"] and method is entry["method"]:
        return entry
    return {**entry, "method": method, "path": path}


def second_text(second: int) -> str:
    """Return a Unix time as UTC to the second, as a timestamp begins: `2026-11-29T10:15:00`."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


def listening(listen: str, metrics: str, pid: int, backends: int) -> dict[str, object]:
    """Return the listening line of standard output; the addresses are `host:port`, IPv6 in brackets."""
    return {"event": Event.LISTENING, "listen": listen, "metrics": metrics, "pid": pid, "backends": backends}
