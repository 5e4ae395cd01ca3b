"""One client request from its head to its last byte: attempts, failover, the answer, and one record at the end.

Owns the exchange: which attempt runs, what was kept, what the client gets. The client's socket is downstream.py's, an
attempt's is relay.py's. Every exchange ends in `_finish`, once, whatever happens.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from proxy import replies
from proxy.body import RequestBody, SpoolError
from proxy.events import AttemptRecord, Choice
from proxy.failover import may_retry, own_answer, same_backend_again
from proxy.headers import ClientSide, Framing, RequestHead, ResponseHead, client_head
from proxy.outcome import FailedAttempt, Failure, Rejection, Side
from proxy.relay import Attempt
from proxy.socket_writer import SocketWriter
from proxy.upstream import Backend

if TYPE_CHECKING:
    from proxy.downstream import Downstream
    from proxy.endpoint import Endpoint

LEFT_STATUS = 499  # counted when the client left before its response began
_CHUNKED, _CLOSE = Framing.CHUNKED, Framing.CLOSE
_PROBE_AT_ONCE = frozenset({Failure.CONNECT_ERROR, Failure.CLOSED})


class Exchange:
    """One request and its response; `tried` and `left_out` are masks of backends.

    `body` is the whole request body once it was read: bytes, or a RequestBody that is in a file; None without one.
    """

    __slots__ = (
        *("_closes", "_encode", "_kept", "_last_failure", "asked", "attempt", "attempts", "begun", "body", "bytes_in"),
        *("bytes_out", "choices", "downstream", "ended", "endpoint", "head", "left_full", "left_out", "request_id"),
        *("started", "status", "told", "tried"),
    )

    def __init__(self, downstream: Downstream, head: RequestHead, now: float) -> None:
        self.downstream = downstream
        self.endpoint: Endpoint = downstream.endpoint
        self.head = head
        self.started = now
        self.request_id = self.endpoint.request_id(head)
        self.body: bytes | RequestBody | None = None
        self.attempt: Attempt | None = None
        self.attempts = 0  # how many were begun
        self.told: list[AttemptRecord] = []  # of those that have ended
        self.tried = 0
        self.left_out = self.left_full = 0
        self.begun = False
        self.asked = False  # whether the client still reads, by an interim response
        self.ended = False
        self.status = LEFT_STATUS
        self.bytes_in = 0
        self.bytes_out = 0
        self._kept: tuple[ResponseHead, bytes] | None = None
        self._last_failure: FailedAttempt | None = None
        self.choices: list[Choice | None] | None = None
        self._encode = False  # the client gets the body in chunks of the proxy's making
        self._closes = not head.keep_alive  # whether the client is told that its connection ends with this response
        self.endpoint.exchange_began(self)

    def __repr__(self) -> str:
        return f"<Exchange {self.request_id} attempts={self.attempts} begun={self.begun} ended={self.ended}>"

    # ------------------------------------------------------------------ attempts

    def run(self, body: bytes | RequestBody | None) -> None:
        """Start the first attempt; the request has been read whole."""
        self.body = body
        self._choose_next(None)

    def _choose_next(self, reason: str | None) -> None:
        """Make an attempt on the backend that the fleet chooses; `reason` is the retry's, None for the first one."""
        fleet, now = self.endpoint.fleet, monotonic()
        found: Backend | Rejection
        if self.tried or fleet.some_apart:
            excluded = fleet.excluded(now, self.tried)
            if excluded is not None:
                self._note_choice(excluded)
            found = fleet.choose(now, self.tried)
            self.left_out |= fleet.left_out
            self.left_full |= fleet.left_full
        else:
            found = fleet.choose_of_all()
        if isinstance(found, Backend):
            if reason is not None:
                self.endpoint.counters.retries[reason] += 1
            self._attempt_on(found, now, fresh=False)
        else:
            self._give_up(found)

    def _note_choice(self, excluded: dict[str, list[str]] | None) -> None:
        if self.choices is None:
            self.choices = [None] * self.attempts
        self.choices.append(excluded)

    def _attempt_on(self, backend: Backend, now: float, *, fresh: bool) -> None:
        self.tried |= backend.bit
        probe = self.endpoint.fleet.lease(backend, now)
        self.attempt = attempt = Attempt(self, backend, probe, now)
        self.attempts += 1
        attempt.start(fresh)

    def _may_retry(self) -> bool:
        config = self.endpoint.config
        return may_retry(
            self.attempts,
            config.max_attempts,
            idempotent=self.head.idempotent,
            retry_post=config.retry_post,
            begun=self.begun,
        )

    def may_try_another(self, now: float) -> bool:
        """Tell whether another backend could be tried now, so that the present answer need not be the last."""
        return self._may_retry() and self.endpoint.fleet.refusal(now, self.tried) is None

    def attempt_failed(self, attempt: Attempt, failed: FailedAttempt) -> None:
        """Go on after an attempt that gave no usable response, or break the client off when it had begun."""
        self.attempt = None
        if self.ended:
            return
        if failed.failure in _PROBE_AT_ONCE and not failed.local:
            self.endpoint.probe_now(attempt.backend)
        if self.begun:
            self.cut(Side.UPSTREAM)
            return
        self._last_failure = failed
        backend = attempt.backend
        if not self._may_retry():
            self._give_up(None)
        elif same_backend_again(failed, usable=not backend.draining and not backend.removed):
            self.endpoint.counters.retries[failed.failure] += 1
            if self.choices is not None:
                self.choices.append(None)
            self._attempt_on(backend, monotonic(), fresh=True)
        else:
            self._choose_next(failed.failure)

    def kept_response(self, head: ResponseHead, content: bytes | None) -> None:
        """Go on after a retryable answer; `content` is None when it was too large or too slow to count."""
        self.attempt = None
        if content is not None:
            self._kept = (head, content)
        else:
            self._last_failure = FailedAttempt(Failure.CLOSED)
        if self.ended:
            return
        self._choose_next(f"http_{head.status}")

    def _give_up(self, refused: Rejection | None) -> None:
        """No further attempt: pass on the last response that was received, or answer ourselves."""
        if self._kept is not None:
            head, content = self._kept
            self._kept = None
            self._encode = head.framing is _CHUNKED and not self.head.http10 and not self.head.bodyless_response
            self.begin(head, content, None)
            self.response_ended()
            return
        own = own_answer(refused, self._last_failure, self._left_out())
        message = replies.MESSAGES[own.rejection] if own.rejection is not None else None
        self.reply(own.status, own.rejection, message or _no_response(own.status))

    def _left_out(self) -> Rejection | None:
        """Say why a backend was never tried although it was there; None when there is none."""
        never = self.left_out & ~self.tried
        if not never:
            return None
        return Rejection.QUEUE_DEPTH if never & ~self.left_full else Rejection.CONNECTION_LIMIT

    # ------------------------------------------------------------------ the answer

    def reply(self, status: int, rejection: Rejection | None, message: str, *, close: bool = False) -> None:
        """Answer with an error of the proxy's own making, and end the exchange.

        With `close` the rest of the request is not read: the downstream lingers and closes.
        """
        endpoint = self.endpoint
        if rejection is not None:
            endpoint.counters.rejected[rejection] += 1
        if self.attempt is not None:
            self.attempt.cancel()
            self.attempt = None
        self.status = status
        self.begun = True
        self._closes = self._closes or close or endpoint.draining
        data = replies.error(
            status,
            message,
            close=self._closes,
            retry_after_s=endpoint.config.retry_after_s if status == 429 else None,
            bodyless=self.head.bodyless_response,
            extra=endpoint.request_id_line(self.request_id),
        )
        self._write(data)
        self._finish(complete=True)
        self.downstream.exchange_done(keep_alive=not self._closes, linger=close)

    def begin(self, head: ResponseHead, body: bytes, whole: bytes | None) -> None:
        """Send the response's head with the body bytes that are here; from now on nothing is retried.

        `whole` is head and body as the upstream sent them in one piece, used when nothing has to change.
        """
        self.begun = True
        self._drop_body()
        self.status = status = head.status
        endpoint = self.endpoint
        if self._changes(head):
            add_retry_after = endpoint.config.retry_after_s if status == 429 and head.retry_after is None else None
            self._closes = self._closes or endpoint.draining
            bodyless, http10 = self.head.bodyless_response, self.head.http10
            side = ClientSide(http10=http10, close=self._closes, add_retry_after=add_retry_after, bodyless=bodyless)
            lines = client_head(head, side)[:-2] + endpoint.request_id_line(self.request_id) + b"\r\n"
            self._encode = self._encode or (head.framing is _CLOSE and not http10 and not bodyless)
            self._write(lines + self._framed(body))
        elif whole is not None:
            self._write(whole)
        else:
            self._write(head.out + self._framed(body))
        self.downstream.hold_back_if_paused()

    def begin_whole(self, head: ResponseHead, data: bytes, end: int) -> None:
        """Send a response that is here whole: its head is the first `end` bytes of `data`, its body has a length."""
        if head.verbatim and not self._changes(head):
            self.begun = True
            self._drop_body()
            self.status = head.status
            self._write(data)
        else:
            self.begin(head, data[end:], None)

    def _drop_body(self) -> None:
        """Let go of a request body that no attempt will need again: answers can take hours."""
        if self.attempt is None or self.attempt.all_sent:
            if isinstance(self.body, RequestBody):
                self.body.close()
            self.body = None

    def _changes(self, head: ResponseHead) -> bool:
        """Tell whether the head has to be changed for this client."""
        endpoint = self.endpoint
        return (
            self._closes
            or endpoint.draining
            or (head.status == 429 and head.retry_after is None)
            or head.framing is _CLOSE
            or endpoint.request_id_header is not None
        )

    def raw_sink(self) -> SocketWriter | None:
        """Give what takes body bytes as they came, which the caller counts; None if they are changed."""
        return None if self._encode else self.downstream

    def forward(self, data: bytes) -> None:
        """Send a piece of the response's body."""
        if data:
            self._write(self._framed(data))

    def _framed(self, data: bytes) -> bytes:
        """Put a piece of the body into a chunk where the client gets chunks of the proxy's making."""
        return b"%x\r\n%b\r\n" % (len(data), data) if self._encode and data else data

    def _write(self, data: bytes) -> None:
        self.bytes_out += len(data)
        self.downstream.send(data)

    def response_ended(self) -> None:
        """End the exchange: the response was passed on whole."""
        if self._encode:
            self._write(b"0\r\n\r\n")
        self.attempt = None
        self._finish(complete=True)
        self.downstream.exchange_done(keep_alive=not self._closes, linger=False)

    # ------------------------------------------------------------------ other ends

    def client_left(self) -> None:
        """End the exchange because its client is gone; the upstream attempt ends at once."""
        if self.ended:
            return
        if self.attempt is not None:
            self.attempt.cancel()
            self.attempt = None
        if self.begun:
            self.endpoint.counters.incomplete[Side.CLIENT] += 1
        self._finish(complete=False)

    def cut(self, side: Side | None) -> None:
        """Break the response off so that the client sees it; `side` is who caused it (None: the proxy itself)."""
        if self.ended:
            return
        if self.attempt is not None:
            self.attempt.cancel()
            self.attempt = None
        if side is not None:
            self.endpoint.counters.incomplete[side] += 1
        self._finish(complete=False)
        self.downstream.break_off(reset=self.head.http10)

    def spool_failed(self, error: SpoolError) -> None:
        """Answer 503, or break off when the response has begun: the body could not be read back for an attempt."""
        if self.begun:
            self.cut(None)
            return
        self.reply(503, Rejection.SPOOL, str(error), close=True)

    def check(self, now: float) -> None:
        """See whether a limit has run out."""
        if self.attempt is not None:
            self.attempt.check(now)
        else:
            self.downstream.check_body(now)

    # ------------------------------------------------------------------ the record

    def _finish(self, *, complete: bool) -> None:
        self.ended = True
        if isinstance(self.body, RequestBody):
            self.body.close()
        self.body = None
        self._kept = None
        self.endpoint.exchange_ended(self, complete, monotonic())


def _no_response(status: int) -> str:
    return replies.TIMED_OUT if status == 504 else replies.NO_RESPONSE
