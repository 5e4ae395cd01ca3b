"""One attempt: a request sent to one backend, and its response brought back as it arrives.

Owns the lease (the slot and the connection are given back in one place, `_settle`), the state of the attempt and the
reading of its response. What a failure leads to is handler.py's. Nothing here awaits: events come from the connection,
time from the sweeper's `check`.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING

from proxy.attempt_phase import CONNECTING, ENDED, HELD, KEEPING, STREAMING, WAITING
from proxy.connector import LOCAL_ERRNOS, UpstreamConnection
from proxy.framing import FramingError
from proxy.headers import Framing, HeadError, ResponseHead, retry_after_s
from proxy.outcome import (
    CANCELLED,
    RETRYABLE_STATUSES,
    Eviction,
    FailedAttempt,
    Failure,
    Side,
    Timeout,
    Verdict,
    judge_failure,
    judge_status,
)
from proxy.request import SpooledSender, send_request
from proxy.response import ResponseBody, read_head
from proxy.upstream import Backend

if TYPE_CHECKING:
    from proxy.handler import Exchange

KEPT_BYTES = 1 << 20  # of a response that may be passed on later (section 3, rule 6)
KEPT_S = 5.0


_CLOSE = Framing.CLOSE


class Attempt:
    """One attempt of an exchange on one backend. Its slot in the fleet was taken by whoever made it."""

    __slots__ = (
        *("_body", "_dialling", "_first", "_held", "_kept_bytes", "_pending", "_progress_at", "_reads_before"),
        *("_reads_seen", "_sender", "backend", "connect_s", "connection", "exchange", "head"),
        *("header_s", "judged", "outcome", "phase", "probe", "reused", "started"),
    )

    def __init__(self, exchange: Exchange, backend: Backend, probe: bool, now: float) -> None:
        self.exchange = exchange
        self.backend = backend
        self.probe = probe
        self.started = self._progress_at = now
        self.phase = CONNECTING
        self.connection: UpstreamConnection | None = None
        self._dialling: asyncio.Task[None] | None = None
        self.reused = False
        self.judged = False
        self.connect_s: float | None = None
        self.header_s: float | None = None
        self.outcome: int | str = CANCELLED
        self.head: ResponseHead | None = None
        self._pending = b""  # of a head that is not complete yet
        self._held: list[bytes] = []  # body bytes that came before the first byte of content
        self._first: bytes | None = None  # the read that brought the head and body bytes behind it, whole
        self._body: ResponseBody | None = None
        self._sender: SpooledSender | None = None  # of a body that is in a file
        self._kept_bytes = 0
        self._reads_before = 0  # of the connection, by earlier attempts
        self._reads_seen = 0  # at the last check

    def __repr__(self) -> str:
        return f"<Attempt {self.backend.id} {self.phase.value} outcome={self.outcome}>"

    # ------------------------------------------------------------------ connecting and sending

    def start(self, fresh: bool) -> None:
        """Get a connection, from the pool unless `fresh`, and send the request."""
        endpoint = self.exchange.endpoint
        connection = None if fresh else endpoint.pool.take(self.backend)
        if connection is not None:
            self.reused = True
            self.backend.reused += 1
            self._use(connection)
        else:
            self._dialling = endpoint.connector.dial(self.backend, endpoint.idle_event, self._dialled)

    def _dialled(self, result: UpstreamConnection | OSError) -> None:
        self._dialling = None
        if isinstance(result, OSError):
            self.backend.failed += 1
            self._fail(FailedAttempt(Failure.CONNECT_ERROR, local=result.errno in LOCAL_ERRNOS))
            return
        if result.ended or result.reads:  # before this callback ran
            self.backend.opened += 1
            self.backend.evicted[Eviction.STALE if result.ended else Eviction.DISCARDED] += 1
            failure = Failure.PROTOCOL_ERROR if result.reads else Failure.CLOSED  # nobody had asked for anything
            result.close()
            self._fail(FailedAttempt(failure))
            return
        now = monotonic()
        self.connect_s = now - self.started
        self.exchange.endpoint.counters.connect_seconds.observe(self.connect_s)
        self.backend.opened += 1
        self._progress_at = now
        self._use(result)

    def _use(self, connection: UpstreamConnection) -> None:
        self.connection = connection
        self._reads_before = connection.reads
        connection.lessee = self
        self.phase = WAITING
        exchange = self.exchange
        self._sender = send_request(
            connection, exchange.head, exchange.body, exchange.endpoint.loop, exchange.spool_failed
        )
        if self._sender is not None:
            self._sender.go_on()

    def upstream_paused(self, paused: bool) -> None:
        """See connector.Lessee."""
        if not paused:
            self._progress_at = monotonic()
            if self._sender is not None:
                self._sender.go_on()

    # ------------------------------------------------------------------ the response

    def upstream_data(self, data: bytes) -> None:
        """See connector.Lessee."""
        if self.phase is STREAMING:
            self._stream(data)
        elif self.phase is WAITING:
            self._read_head(data)
        else:
            self._hold(data)

    def _read_head(self, data: bytes) -> None:
        endpoint = self.exchange.endpoint
        if self._pending:
            data = self._pending + data
        try:
            head, data, end = read_head(endpoint.memo_responses, data, endpoint.config.max_head_bytes)
        except HeadError:
            self._fail(FailedAttempt(Failure.PROTOCOL_ERROR))
            return
        if head is None:
            self._pending = data
        else:
            self._take_head(head, data, end)

    def _take_head(self, head: ResponseHead, data: bytes, end: int) -> None:
        exchange, now = self.exchange, monotonic()
        endpoint = exchange.endpoint
        self.head = head
        self.header_s = now - self.started
        self._progress_at = now
        self._pending = b""
        status = head.status
        if self._sender is not None and status >= 400:  # the backend will not want the rest
            self._sender.stop()
        self.outcome = status
        endpoint.counters.response_header_seconds.observe(self.header_s)
        self.backend.responses[status] += 1
        if status == 429:
            delay = None if head.retry_after is None else retry_after_s(head.retry_after, endpoint.wall_clock())
            endpoint.fleet.penalize(self.backend, delay, now)
        keep = status in RETRYABLE_STATUSES and exchange.may_try_another(now)
        if 0 < head.length == len(data) - end <= KEPT_BYTES and not exchange.head.bodyless_response:
            self._take_whole(head, data, end, keep=keep)
            return
        self.phase = KEEPING if keep else HELD
        if head.has_body and not exchange.head.bodyless_response:
            self._body = ResponseBody(head, decode=keep or exchange.head.http10)
        if endpoint.config.flush_head and not keep:
            self._commit()
        if self._body is None:
            self._first = data if head.verbatim and len(data) == end else None
            self._complete(extra=len(data) > end)
        elif len(data) > end:
            if head.verbatim:
                self._first = data
            self.upstream_data(data[end:])

    def _take_whole(self, head: ResponseHead, data: bytes, end: int, *, keep: bool) -> None:
        """Pass on, or keep, a response that came in one read, as most unary ones do."""
        self._judge()
        exchange = self.exchange
        if not keep:
            exchange.begin_whole(head, data, end)
        self._settle(reusable=head.keep_alive and not self._unsent())
        if keep:
            exchange.kept_response(head, data[end:])
        else:
            exchange.response_ended()

    @property
    def all_sent(self) -> bool:
        """True when the whole request was handed over to the connection."""
        return self._sender is None or self._sender.done

    def _unsent(self) -> bool:
        """Tell whether part of the request is not sent yet, so that its connection cannot be used again."""
        connection = self.connection
        assert connection is not None
        return not self.all_sent or connection.holds_back

    def _feed(self, data: bytes) -> tuple[bytes, int] | None:
        """Feed the body; None after a framing error, which was dealt with."""
        assert self._body is not None
        try:
            return self._body.feed(data)
        except FramingError:
            self._fail(FailedAttempt(Failure.PROTOCOL_ERROR))
            return None

    def _hold(self, data: bytes) -> None:
        """Take body bytes while the head is held back, or while the response is only kept."""
        body = self._body
        fed = self._feed(data)
        if fed is None or body is None:
            return
        piece, end = fed
        if piece:
            self._held.append(piece)
        begun = body.scanner.started or end >= 0
        if begun:
            self._judge()
        if self.phase is KEEPING:
            self._kept_bytes += len(piece)
            if self._kept_bytes > KEPT_BYTES:
                self._stop_keeping()
                return
        elif begun:
            self._commit(self._first if piece is data and len(self._held) == 1 else None)
        if end >= 0:
            self._complete(extra=end < len(data))

    def _judge(self) -> None:
        """Give the breaker its verdict, at the first body byte (or the end, if there is none)."""
        if not self.judged:
            self.judged = True
            head = self.head
            assert head is not None
            if head.status < 500 and not self.probe and self.backend.breaker.sound:
                return  # neither a good verdict nor a neutral one changes anything, and this is nearly every request
            verdict = judge_status(head.status, head.retry_after is not None)
            self.exchange.endpoint.fleet.record_verdict(self.backend, verdict, self.probe, monotonic())

    def _commit(self, whole: bytes | None = None) -> None:
        """Begin the response to the client: from here on there is no other attempt.

        `whole` is the head and the first body bytes as they came in one read, where they can go out so.
        """
        assert self.head is not None
        self.phase = STREAMING
        self.exchange.begin(self.head, b"".join(self._held), whole)
        self._held.clear()
        self._first = None
        if self.judged and self._body is not None and self._body.raw:
            sink = self.exchange.raw_sink()
            if sink is not None and self.connection is not None:
                self.connection.splice(self._body.scanner, sink)

    def upstream_spliced(self, data: bytes, end: int | FramingError) -> None:
        """See connector.Lessee."""
        if isinstance(end, FramingError):
            self._fail(FailedAttempt(Failure.PROTOCOL_ERROR))
            return
        assert self._body is not None
        self.exchange.forward(self._body.forwardable(data, end))
        if end >= 0:
            self._complete(extra=end < len(data))

    def _stream(self, data: bytes) -> None:
        body = self._body
        fed = self._feed(data)
        if fed is None or body is None:
            return
        piece, end = fed
        self.exchange.forward(piece)
        if end >= 0:
            self._complete(extra=end < len(data))
        elif body.scanner.started:
            self._judge()

    def _complete(self, extra: bool) -> None:
        """The response has ended as its framing says; `extra`: bytes followed that nobody asked for."""
        head, exchange = self.head, self.exchange
        assert head is not None
        self._judge()
        if self.phase is HELD:
            self._commit(self._first)
        reusable = head.keep_alive and head.framing is not _CLOSE and not extra and not self._unsent()
        kept = self.phase is KEEPING
        held = b"".join(self._held)
        self._settle(reusable)
        if kept:
            exchange.kept_response(head, held)
        else:
            exchange.response_ended()

    def _stop_keeping(self) -> None:
        """The response is too large or too slow to be kept: it counts as no response."""
        self._judge()
        exchange, head = self.exchange, self.head
        assert head is not None
        self._settle(reusable=False)
        exchange.kept_response(head, None)

    # ------------------------------------------------------------------ ends

    def upstream_ended(self, error: BaseException | None) -> None:
        """See connector.Lessee."""
        if self.phase is ENDED:
            return
        head = self.head
        if head is not None and head.framing is _CLOSE and error is None and self._body is not None:
            self._complete(extra=False)
        elif self.reused and self.reads() == 0:
            self._fail(FailedAttempt(Failure.STALE_CONNECTION))
        else:
            self._fail(FailedAttempt(Failure.CLOSED))

    def check(self, now: float) -> None:
        """See whether a limit has run out; called every now and then while the attempt lives."""
        config = self.exchange.endpoint.config
        connection = self.connection
        if connection is None:
            if now - self.started > config.connect_timeout_s:
                self.backend.failed += 1
                self._time_out(Timeout.CONNECT, Failure.CONNECT_TIMEOUT)
            return
        if self.phase is KEEPING:
            if now - self._progress_at > KEPT_S:
                self._stop_keeping()
            return
        silence = now - self._progress_at
        if self.phase is WAITING:
            if not self.all_sent or connection.paused:
                if not connection.paused or connection.moves():
                    self._progress_at = now
                elif silence > config.write_timeout_s:
                    self._time_out(Timeout.WRITE, Failure.RESPONSE_TIMEOUT)
            elif silence > config.response_timeout_s:
                self._time_out(Timeout.RESPONSE, Failure.RESPONSE_TIMEOUT)
        elif (reads := self.reads()) != self._reads_seen:
            self._reads_seen = reads
            self._progress_at = now
        elif self.exchange.downstream.paused and self.exchange.downstream.moves():
            self._progress_at = now
        elif silence > config.read_timeout_s:
            if self.exchange.downstream.paused:  # the client is not to be waited for, and its backend not to blame
                self.exchange.endpoint.counters.timeouts[Timeout.CLIENT] += 1
                self.exchange.cut(Side.CLIENT)
            else:
                self._time_out(Timeout.READ, Failure.READ_TIMEOUT)

    def _time_out(self, kind: Timeout, failure: Failure) -> None:
        self.exchange.endpoint.counters.timeouts[kind] += 1
        self._fail(FailedAttempt(failure))

    def fail_locally(self) -> None:
        """End the attempt because its backend is being removed: no verdict on the backend."""
        self._fail(FailedAttempt(Failure.CLOSED, local=True))

    def _fail(self, failed: FailedAttempt) -> None:
        if self.phase is ENDED:
            return
        exchange = self.exchange
        self.outcome = failed.failure
        if not self.judged:
            self.judged = True
            self.backend.failures += 1
            exchange.endpoint.fleet.record_verdict(self.backend, judge_failure(failed), self.probe, monotonic())
        self._settle(reusable=False)
        exchange.attempt_failed(self, failed)

    def reads(self) -> int:
        """Give a number that grows with each read of response bytes, from 0 on."""
        connection = self.connection
        return 0 if connection is None else connection.reads - self._reads_before + connection.spliced

    def cancel(self) -> None:
        """End the attempt because its client left: the backend stops working for nobody; neutral for its breaker."""
        if self.phase is not ENDED:
            self.outcome = CANCELLED if self.head is None else self.outcome
            self._settle(reusable=False)

    def _settle(self, reusable: bool) -> None:
        """Give back slot and connection, once; a connection that is not reusable is closed."""
        self.phase = ENDED
        endpoint, now = self.exchange.endpoint, monotonic()
        if self._dialling is not None:
            self._dialling.cancel()
            self._dialling = None
        if self._sender is not None:
            self._sender.stop()
        if not self.judged:
            self.judged = True
            endpoint.fleet.record_verdict(self.backend, Verdict.NEUTRAL, self.probe, now)
        self.exchange.told.append(
            (self.backend.id, self.outcome, self.reused, self.connect_s, self.header_s, now - self.started)
        )
        connection, self.connection = self.connection, None
        endpoint.fleet.release(self.backend)
        self._body = None
        self._held = []
        if connection is not None:
            self.exchange.bytes_out += connection.spliced
            self.backend.reads += connection.reads - self._reads_before + connection.spliced
            connection.release()
            endpoint.connection_back(connection, reusable, now)
        if self.backend.draining:
            endpoint.lease_ended(self.backend)
