"""One request in a fake replica, from its arrival to its only end.

Owns the faults that strike a request, the wait for a slot, and the generation with its timer. Writes through the
connection that it was given, and stops when that is lost.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from tools.fake import openai
from tools.fake.faults import Fault
from tools.fake.http import Request, chunk, response_head
from tools.fake.replica import End, Replica

JSON = ("content-type", "application/json")
_BURST = 256  # events written at once when there is no interval: a slow reader stops the next burst


class Channel(Protocol):
    """What a job needs of its connection."""

    paused: bool

    def write(self, data: bytes) -> None:
        """Send bytes."""

    def finished(self, *, keep_alive: bool) -> None:
        """Take the next request: this one is answered."""

    def break_off(self, *, reset: bool) -> None:
        """End the connection now."""


class Job:
    """One request that a client waits for."""

    def __init__(self, replica: Replica, channel: Channel, request: Request, loop: asyncio.AbstractEventLoop) -> None:
        self._replica = replica
        self._channel = channel
        self._request = request
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._fault: Fault | None = None
        self._admitted = False
        self._ended = False
        self._chunked = request.http11
        self._keep_alive = request.keep_alive
        self._streaming = False
        self._sent = 0
        self._began = 0.0
        self._ask: openai.Ask | None = None
        self._token = self._closing = b""
        self.hanging = False

    def begin(self) -> None:
        """Meet what is wrong with the replica, then wait for a slot."""
        replica = self._replica
        try:
            self._ask = openai.read_ask(self._request, replica.settings.tokens, replica.counts.requests)
        except openai.BadBody as error:
            self._answer_error(400, str(error))
            return
        replica.counts.body_bytes += self._request.body_bytes
        replica.counts.prompt_tokens += self._ask.prompt_tokens
        replica.counts.streams += self._ask.stream
        if not replica.started:
            self._answer_error(503, "The replica is starting")
            return
        slow = replica.faults.take("slow")
        if slow is None:
            self._meet_fault()
        else:
            self._timer = self._loop.call_later(slow.delay_s, self._meet_fault)

    def start(self) -> None:
        """Generate: the replica has a free slot."""
        ask = self._ask
        assert ask is not None
        self._began = self._loop.time()
        interval = self._replica.settings.token_interval
        if ask.stream:
            self._start_stream(ask)
        elif interval:
            self._timer = self._loop.call_later(ask.tokens * interval, self._answer_unary)
        else:
            self._answer_unary()

    def release(self) -> None:
        """Go on after a hang: the fault was cleared."""
        if self.hanging:
            self.hanging, self._fault = False, None
            self._admit()

    def resume(self) -> None:
        """Go on writing: the client reads again."""
        if self._streaming and self._timer is None and not self._ended:
            self._step()

    def client_left(self) -> None:
        """Stop: nobody waits any more."""
        self._end(End.CANCELLED)

    def _meet_fault(self) -> None:
        self._timer = None
        fault = self._fault = self._replica.faults.strike()
        if fault is None or fault.kind == "cut":
            self._admit()
        elif fault.kind == "status":
            self._answer_error(fault.status, "The replica was told to answer so", fault.retry_after)
        elif fault.kind == "reset":
            self._break_off(reset=True)
        else:
            self.hanging = True

    def _admit(self) -> None:
        self._admitted = True
        self._replica.admit(self)

    def _answer_error(self, status: int, message: str, retry_after: float | None = None) -> None:
        fields = [JSON] if retry_after is None else [JSON, ("retry-after", f"{retry_after:g}")]
        kind = "rate_limit_error" if status == 429 else "server_error" if status >= 500 else "invalid_request_error"
        body = openai.error_body(status, message, kind)
        self._channel.write(response_head(status, fields, len(body), keep_alive=self._keep_alive) + body)
        self._end(End.ERROR if status >= 400 else End.COMPLETED, status)
        self._channel.finished(keep_alive=self._keep_alive)

    def _answer_unary(self) -> None:
        self._timer = None
        ask = self._ask
        assert ask is not None
        body = openai.unary_body(ask)
        data = self._head([JSON], len(body)) + body
        if self._fault is not None:
            sent_body = len(body) // 2 if self._fault.after else 0
            self._channel.write(data[: len(data) - len(body) + sent_body])
            self._break_off(reset=self._fault.how == "reset")
            return
        self._replica.counts.tokens += ask.tokens
        self._channel.write(data)
        self._end(End.COMPLETED, 200)
        self._channel.finished(keep_alive=self._keep_alive)

    def _head(self, fields: list[tuple[str, str]], length: int | None) -> bytes:
        fields = [*fields, ("x-replica", self._replica.name)]
        return response_head(200, fields, length, keep_alive=self._keep_alive)

    def _start_stream(self, ask: openai.Ask) -> None:
        if not self._chunked:
            self._keep_alive = False
        opening, token, closing = openai.stream_events(ask)
        self._token, self._closing = self._frame(token), self._frame(closing)
        head = self._head([("content-type", "text/event-stream; charset=utf-8")], None if self._chunked else -1)
        self._streaming = True
        if self._fault is not None and self._fault.after == 0:
            self._channel.write(head)
            self._break_off(reset=self._fault.how == "reset")
            return
        self._channel.write(head + (self._frame(opening) if opening else b""))
        self._step()

    def _frame(self, data: bytes) -> bytes:
        return chunk(data) if self._chunked else data

    def _step(self) -> None:
        """Write the events that are due, and come back for the next one."""
        self._timer = None
        if self._channel.paused:
            return
        ask = self._ask
        assert ask is not None
        interval = self._replica.settings.token_interval
        due = self._sent + _BURST if not interval else int((self._loop.time() - self._began) / interval + 1e-6) + 1
        if self._fault is not None and min(due, ask.tokens) >= self._fault.after:
            self._write_tokens(max(0, self._fault.after - self._sent))
            self._break_off(reset=self._fault.how == "reset")
            return
        self._write_tokens(min(due, ask.tokens) - self._sent)
        if self._sent >= ask.tokens:
            self._channel.write(self._closing + (b"0\r\n\r\n" if self._chunked else b""))
            self._end(End.COMPLETED, 200)
            self._channel.finished(keep_alive=self._keep_alive)
        elif interval:
            self._timer = self._loop.call_at(self._began + self._sent * interval, self._step)
        else:
            self._timer = self._loop.call_later(0, self._step)

    def _write_tokens(self, number: int) -> None:
        if number > 0:
            self._channel.write(self._token * number)
            self._sent += number
            self._replica.counts.tokens += number

    def _break_off(self, *, reset: bool) -> None:
        self._end(End.BROKEN)
        self._channel.break_off(reset=reset)

    def _end(self, end: End, status: int | None = None) -> None:
        if self._ended:
            return
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._replica.ended(end, status)
        if self._admitted:
            self._replica.leave(self)
