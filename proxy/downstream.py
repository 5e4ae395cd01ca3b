"""One client connection: reads requests whole, runs one exchange at a time, keeps order, and notices who leaves.

Owns what was read from the client. How the connection ends is client_connection.py's, what a head means headers.py's,
what is answered handler.py's. Limits in time are kept by client_limits.py and the sweeper of endpoint.py; there is no
timer object per connection.
"""

from __future__ import annotations

import asyncio
from time import monotonic

from proxy import replies, wire
from proxy.body import RequestBody, SpoolError
from proxy.client_connection import BODY, BUSY, CLOSED, HEAD, NEXT, ClientConnection
from proxy.framing import FramingError
from proxy.handler import Exchange
from proxy.headers import HeadError, RequestHead
from proxy.outcome import Rejection, Timeout
from proxy.upload import Upload

_REJECTION_OF_STATUS = {413: Rejection.BODY_TOO_LARGE, 414: Rejection.HEAD_TOO_LARGE, 431: Rejection.HEAD_TOO_LARGE}
_REJECTION_OF_STATUS |= {501: Rejection.UNSUPPORTED, 505: Rejection.UNSUPPORTED, 408: Rejection.TIMEOUT}
_REJECTION_OF_STATUS |= {503: Rejection.DRAINING}


class Downstream(ClientConnection):
    """One client connection."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<Downstream {self._phase.value} buffered={len(self._buffer)} {self.exchange!r}>"

    @property
    def idle(self) -> bool:
        """True when no byte of a request is here."""
        return self._phase in (HEAD, NEXT) and not self._buffer

    # ------------------------------------------------------------------ asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self.connected(transport)
        self.endpoint.downstream_made(self)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        phase = self._phase
        if phase is HEAD:
            self._read_head(self._buffer + data if self._buffer else data)
        elif phase is BODY:
            self._read_body(data)
        elif phase is BUSY or phase is NEXT:
            self._buffer += data
            if len(self._buffer) > self.endpoint.config.max_head_bytes and not self._reading_stopped:
                self._reading_stopped = True
                self.transport.pause_reading()
                self._watch_for_reset()

    def eof_received(self) -> bool:
        """See asyncio.Protocol. An end of file behind a whole request may be a half-closed client that still reads."""
        self._eof = True
        if self._phase is NEXT and self._buffer:
            self._watch_for_reset()
            return True
        if self._phase is not BUSY:
            return False
        self._ask_whether_it_reads()
        self._watch_for_reset()
        return True

    def connection_lost(self, exc: BaseException | None) -> None:
        """See asyncio.Protocol."""
        super().connection_lost(exc)
        self._phase = CLOSED
        self.endpoint.downstream_lost(self)
        if self._upload is not None:
            self._upload.body.close()
            self._upload = None
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.client_left()
        self._buffer = b""

    def pause_writing(self) -> None:
        """See asyncio.Protocol: a slow client slows its upstream down."""
        self.paused = True
        self.hold_back_if_paused()

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self.paused = False
        self._go_on_soon()
        attempt = self.exchange.attempt if self.exchange is not None else None
        if attempt is not None and attempt.connection is not None:
            attempt.connection.resume_reading()

    def hold_back_if_paused(self) -> None:
        """Stop reading from the upstream while the client takes nothing."""
        if self.paused:
            attempt = self.exchange.attempt if self.exchange is not None else None
            if attempt is not None and attempt.connection is not None:
                attempt.connection.pause_reading()

    def _watch_for_reset(self) -> None:
        sock = self.transport.get_extra_info("socket")
        if sock is not None:
            ended = self._ask_whether_it_reads if self._reading_stopped else None
            self.endpoint.departures.watch(sock.fileno(), self, self.transport.abort, ended)

    def _ask_whether_it_reads(self) -> None:
        """Send a client whose end of file has come one interim response: a closed socket answers with a reset."""
        exchange = self.exchange
        if exchange is not None and not exchange.begun and not exchange.head.http10 and not exchange.asked:
            exchange.asked = True
            self.send(replies.CONTINUE)

    # ------------------------------------------------------------------ heads

    def _read_head(self, data: bytes) -> None:
        if data[:2] == b"\r\n":  # empty lines before a request line (RFC 9112 section 2.2)
            data = data[wire.skip_empty_lines(data) :]
        end = data.find(b"\r\n\r\n") + 4
        if end < 4:
            self._take_part_of_head(data)
            return
        if end > self.endpoint.config.max_head_bytes:
            self._refuse_long_head(data[:end])
            return
        try:
            head = self.endpoint.memo_requests.understand(data[:end])
            assert head is not None
        except HeadError as e:
            self._refuse_head(e, data)
            return
        self._buffer = b""
        if head.for_proxy:
            self._answer_health(head, data[end:])
        else:
            self._take_request(head, data, end)

    def _take_part_of_head(self, data: bytes) -> None:
        if len(data) > self.endpoint.config.max_head_bytes:
            self._refuse_long_head(data)
        elif wire.has_bare_lf(data):
            self._refuse_head(HeadError(400, "a bare line feed in the head"), data)
        elif self._eof:
            self._close()  # the rest will never come
        else:
            if data and not self._buffer:
                self.endpoint.limits.waits(self)
            self._buffer = data

    def _refuse_long_head(self, data: bytes) -> None:
        limit = self.endpoint.config.max_head_bytes
        self._refuse_head(wire.long_head(data, limit, replies.MESSAGES[Rejection.HEAD_TOO_LARGE]), data)

    def _refuse_head(self, error: HeadError, data: bytes) -> None:
        """Answer a head that no exchange can be made of, and read no further request."""
        rejection = _REJECTION_OF_STATUS.get(error.status, Rejection.BAD_REQUEST)
        answer = replies.error(error.status, str(error), close=True)
        self.send(answer)
        self.endpoint.refused_head(error, rejection, len(data), len(answer))
        self._linger()

    def _answer_health(self, head: RequestHead, rest: bytes) -> None:
        ready = self.endpoint.fleet.readiness()
        draining = self.endpoint.draining
        has_body = head.chunked or bool(head.length)  # of no use here: it is thrown away
        close = draining or has_body or not head.keep_alive
        ok = ready.ok and not draining
        self.send(replies.health(ok, ready.ready, ready.backends, close=close, bodyless=head.bodyless_response))
        self._buffer = rest
        self.exchange_done(keep_alive=not close, linger=has_body)

    # ------------------------------------------------------------------ bodies

    def _take_request(self, head: RequestHead, data: bytes, end: int) -> None:
        endpoint = self.endpoint
        self.waits_since = None
        self.exchange = exchange = Exchange(self, head, monotonic())
        exchange.bytes_in = end
        length = head.length or 0
        if endpoint.draining:
            self._refuse(503, Rejection.DRAINING)
        elif length > endpoint.config.max_request_body_bytes:
            self._refuse(413, Rejection.BODY_TOO_LARGE)
        elif head.chunked or len(data) - end < length:
            self._begin_upload(head, data[end:])
        else:
            self._phase = BUSY
            if length:
                stop = end + length
                exchange.bytes_in = stop
                self._buffer = data[stop:]
                exchange.run(data[end:stop])
            else:
                self._buffer = data[end:]
                exchange.run(None)

    def _begin_upload(self, head: RequestHead, rest: bytes) -> None:
        endpoint, now = self.endpoint, monotonic()
        rejection = endpoint.fleet.refusal(now)
        if rejection is not None:
            self._refuse(503 if rejection is Rejection.NO_BACKEND else 429, rejection)
            return
        if head.expects_continue and not rest:
            self.send(replies.CONTINUE)
        body = RequestBody(endpoint.config.body_memory_bytes, endpoint.config.spool_dir)
        self._upload = Upload(body, None if head.chunked else head.length, now)
        self._phase = BODY
        if rest:
            self._read_body(rest)
        if self._eof and self._phase is BODY:  # the rest will never come
            self.transport.abort()

    def _read_body(self, data: bytes) -> None:
        upload = self._upload
        assert upload is not None
        try:
            end = upload.feed(data)
        except FramingError as e:
            self._refuse(400, Rejection.BAD_REQUEST, str(e))
        except SpoolError as e:
            self._refuse(503, Rejection.SPOOL, str(e))
        else:
            if upload.body.size > self.endpoint.config.max_request_body_bytes:
                self._refuse(413, Rejection.BODY_TOO_LARGE)
            elif end >= 0:
                self._body_is_whole(upload, data[end:])

    def _body_is_whole(self, upload: Upload, rest: bytes) -> None:
        exchange = self.exchange
        assert exchange is not None
        self._upload = None
        self._buffer = rest
        self._phase = BUSY
        exchange.bytes_in += upload.body.size
        exchange.run(upload.body if upload.body.spooled else upload.body.in_memory())

    def _refuse(self, status: int, rejection: Rejection, message: str | None = None) -> None:
        """Answer before the request was read whole."""
        exchange = self.exchange
        assert exchange is not None
        exchange.reply(status, rejection, message or replies.MESSAGES[rejection], close=True)

    # ------------------------------------------------------------------ after an exchange

    def exchange_done(self, *, keep_alive: bool, linger: bool) -> None:
        """Go on with the next request, or end the connection (lingering when a rest of this one may still come)."""
        self.exchange = None
        if self._phase is CLOSED:
            return
        if linger or (not keep_alive and self._buffer):
            self._linger()
        elif not keep_alive:
            self._close()
        else:
            self.endpoint.limits.waits(self)
            if self.paused:
                self.moves()  # from now on
            if not self._buffer and (self._eof or self.endpoint.draining):
                self._close()
            elif self._buffer or self.paused:
                self._phase = NEXT
                self._go_on_soon()
            else:
                self._phase = HEAD
                self._read_on()

    def _go_on_soon(self) -> None:
        """Have the next request read unless the client takes nothing: what it does not take would fill the memory."""
        if self._phase is NEXT and not self.paused:
            self.endpoint.loop.call_soon(self._go_on)  # not called, so that a long pipeline is no deep recursion

    def _go_on(self) -> None:
        if self._phase is not NEXT or self.paused:
            return
        self._phase = HEAD
        data, self._buffer = self._buffer, b""
        if data:
            self._read_head(data)
        elif self._eof or self.endpoint.draining:
            self._close()
        self._read_on()

    def drain(self) -> None:
        """Close a connection on which no request is under way, and refuse one of which only a part of the head came."""
        if self.idle:
            self._close()
        elif self._phase is HEAD:
            self._refuse_head(HeadError(503, replies.MESSAGES[Rejection.DRAINING]), self._buffer)

    # ------------------------------------------------------------------ limits in time

    def check_body(self, now: float) -> None:
        """Answer 408 when a body comes too slowly."""
        upload = self._upload
        if upload is None:
            return
        if upload.too_slow(now, self.endpoint.config.client_timeout_s):
            self.endpoint.counters.timeouts[Timeout.CLIENT] += 1
            self._refuse(408, Rejection.TIMEOUT)

    def head_timed_out(self) -> None:
        """See ClientConnection."""
        if self._buffer and self._phase is HEAD:
            self.endpoint.counters.timeouts[Timeout.CLIENT] += 1
            self._refuse_head(HeadError(408, replies.MESSAGES[Rejection.TIMEOUT]), self._buffer)
        elif self.transport.get_write_buffer_size() and self.moves():
            self.endpoint.limits.waits(self)  # it still takes the answer
        else:
            self._close()
