"""Responses that the proxy makes itself: errors in the OpenAI shape, health, interim.

Pure: status and reason in, bytes out. The words "quota" and "exceeded" never appear in a 429: clients take them for a
permanent refusal.
"""

from __future__ import annotations

from http import HTTPStatus

import orjson

from proxy.outcome import Rejection

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_REASONS = {status.value: status.phrase for status in HTTPStatus}
_TYPES = {429: "rate_limit_error", 408: "timeout_error", 504: "timeout_error"}

MESSAGES = {
    Rejection.QUEUE_DEPTH: "every replica has too many waiting requests; retry later",
    Rejection.CONNECTION_LIMIT: "every replica is at its connection limit; retry later",
    Rejection.DRAINING: "the endpoint is shutting down",
    Rejection.NO_BACKEND: "the endpoint has no replica",
    Rejection.TIMEOUT: "the request took too long to arrive",
    Rejection.BODY_TOO_LARGE: "the request body is larger than this endpoint accepts",
    Rejection.HEAD_TOO_LARGE: "the request head is larger than this endpoint accepts",
    Rejection.SPOOL: "the request body cannot be held",
}
NO_RESPONSE = "no replica gave a usable response"
TIMED_OUT = "the last replica that was tried did not answer in time"


def _head(status: int, length: int, close: bool, extra: bytes) -> bytes:
    return b"HTTP/1.1 %d %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%b%b\r\n" % (
        *(status, _REASONS[status].encode(), length, extra),
        b"Connection: close\r\n" if close else b"",
    )


def error(
    status: int,
    message: str,
    *,
    close: bool,
    retry_after_s: int | None = None,
    bodyless: bool = False,
    extra: bytes = b"",
) -> bytes:
    """Make a whole error response; `bodyless` for the answer to a HEAD request, `extra`: whole field lines to add."""
    kind = _TYPES.get(status) or ("invalid_request_error" if status < 500 else "server_error")
    body = orjson.dumps({"error": {"message": message, "type": kind, "code": status}})
    if retry_after_s is not None:
        extra += b"Retry-After: %d\r\n" % retry_after_s
    return _head(status, len(body), close, extra) + (b"" if bodyless else body)


def health(ok: bool, ready: int, backends: int, *, close: bool, bodyless: bool) -> bytes:
    """Make the answer to GET or HEAD /health."""
    body = orjson.dumps({"status": "ok" if ok else "unavailable", "backends_ready": ready, "backends": backends})
    return _head(200 if ok else 503, len(body), close, b"") + (b"" if bodyless else body)
