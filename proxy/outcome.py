"""What became of an attempt: one vocabulary for failover, breaker, metrics and log.

Owns the words (they are metric label values, see INTERFACE) and the rules that map a status to a verdict.
Refuses to know sockets, h11 or who asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum


class Failure(StrEnum):
    """Why an attempt gave no usable response; also the `reason` of `dd_proxy_retries_total`."""

    CONNECT_ERROR = "connect_error"
    CONNECT_TIMEOUT = "connect_timeout"
    RESPONSE_TIMEOUT = "response_timeout"
    READ_TIMEOUT = "read_timeout"
    STALE_CONNECTION = "stale_connection"
    PROTOCOL_ERROR = "protocol_error"
    CLOSED = "closed"


class Rejection(StrEnum):
    """Why the proxy answered a request itself; the `reason` of `dd_proxy_rejected_total`."""

    QUEUE_DEPTH = "queue_depth"
    CONNECTION_LIMIT = "connection_limit"
    DRAINING = "draining"
    NO_BACKEND = "no_backend"
    BAD_REQUEST = "bad_request"
    UNSUPPORTED = "unsupported"
    TIMEOUT = "timeout"
    BODY_TOO_LARGE = "body_too_large"
    HEAD_TOO_LARGE = "head_too_large"
    SPOOL = "spool"


class Eviction(StrEnum):
    """Why an upstream connection was closed; the `reason` of `…_connections_evicted_total`."""

    IDLE_TIMEOUT = "idle_timeout"
    STALE = "stale"
    DISCARDED = "discarded"
    POOL_FULL = "pool_full"
    DRAIN = "drain"


class Timeout(StrEnum):
    """Which limit ran out; the `kind` of `dd_proxy_timeouts_total`."""

    CONNECT = "connect"
    RESPONSE = "response"
    READ = "read"
    WRITE = "write"
    CLIENT = "client"


class Side(StrEnum):
    """Who cut a response short; the `side` of `dd_proxy_incomplete_responses_total`."""

    CLIENT = "client"
    UPSTREAM = "upstream"


class Verdict(Enum):
    """What an attempt says about its backend's health, for the breaker."""

    SUCCESS = "success"
    FAILURE = "failure"
    NEUTRAL = "neutral"


_SUCCESS, _FAILURE, _NEUTRAL = Verdict

CANCELLED = "cancelled"  # log word of an attempt that ended because its client left

RETRYABLE_STATUSES = frozenset({429, 500, 502, 503, 504})
FAULT_STATUSES = frozenset({500, 502, 503, 504})
TIMEOUTS = frozenset({Failure.CONNECT_TIMEOUT, Failure.RESPONSE_TIMEOUT, Failure.READ_TIMEOUT})
IDEMPOTENT_METHODS = frozenset({b"GET", b"HEAD", b"PUT", b"DELETE", b"OPTIONS", b"TRACE"})


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """A failure with what the policies need: its kind, and whether this process itself caused it.

    `local` marks a failure of this machine (no file descriptor left, say): it says nothing about the backend.
    """

    failure: Failure
    local: bool = False


def judge_status(status: int, has_retry_after: bool) -> Verdict:
    """Judge a response by its status (section 3, rule 7): 4xx and pressure are neutral, 5xx faults, the rest good."""
    if status in FAULT_STATUSES:
        return _NEUTRAL if status == 503 and has_retry_after else _FAILURE
    if 400 <= status < 500:
        return _NEUTRAL
    return _SUCCESS


def judge_failure(failed: FailedAttempt) -> Verdict:
    """Judge an attempt without a response: stale pooled connections and local trouble say nothing."""
    if failed.local or failed.failure is Failure.STALE_CONNECTION:
        return _NEUTRAL
    return _FAILURE
