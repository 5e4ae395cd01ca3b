#!/usr/bin/env python3
"""Replicas that cost next to nothing, for the benchmark: `replica.py PORTS [--refusing PORT]`, one process on uvloop.

Owns answers that are made beforehand and streams that are written from one timer. Trusts its clients: a request comes
with a Content-Length, and one at a time on a connection. `GET /debug/count` tells what all replicas have seen.

A JSON body with `"stream":true` is answered by `max_tokens` events 20 ms apart, one with `"vary":true` by a head and a
length that differ from request to request, any other one by the same 1.5 KB; a refusing replica answers all with a 429.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from typing import cast

import uvloop

EVENT_INTERVAL_S = 0.02
SLOTS = 20  # the streams of one slot are written in the same millisecond
MAX_EVENTS = 5000
OPTIONS_BYTES = 8192  # of a body in which its options stand

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_MAX_TOKENS = re.compile(rb'"max_tokens": ?(\d+)')
_TEXT = b'{"id":"chatcmpl-1","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"'
_HEAD = b"HTTP/1.1 200 OK\r\ndate: %b\r\nserver: uvicorn\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
_DATE = b"Mon, 01 Jan 2035 00:%02d:%02d GMT"
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ndate: Mon, 01 Jan 2035 00:00:00 GMT\r\nserver: uvicorn\r\n"
    b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
REFUSAL = (
    b"HTTP/1.1 429 Too Many Requests\r\ndate: Mon, 01 Jan 2035 00:00:00 GMT\r\nserver: uvicorn\r\n"
    b"retry-after: 0\r\ncontent-type: application/json\r\ncontent-length: 22\r\n\r\n"
    b'{"error":"overloaded"}'
)
END_OF_STREAM = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


def _answer(size: int, date: bytes) -> bytes:
    body = (_TEXT + b"y" * size)[: size - 6] + b'"}}]} '
    return _HEAD % (date, b"application/json", len(body)) + body


def _event(number: int) -> bytes:
    text = (
        b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"%b"}}]}'
    )
    event = text % b" word%06d" % number + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(event), event)


def _page() -> bytes:
    other = b"".join(b'vllm:other_%04d{engine="0",model_name="m"} %d.0\n' % (n, n) for n in range(1000))
    page = other + b'vllm:num_requests_waiting{engine="0",model_name="m"} 0.0\n'
    return _HEAD % (_DATE % (0, 0), b"text/plain; version=0.0.4", len(page)) + page


ANSWER = _answer(1500, _DATE % (0, 0))
VARYING = [_answer(700 + 2 * n, _DATE % (n // 60 % 60, n % 60)) for n in range(1000)]
EVENTS = [_event(n) for n in range(MAX_EVENTS)]
PAGE = _page()


class Clock:
    """Writes the events of every stream when they are due: a step of a millisecond is a slot of streams."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._began = loop.time()
        self._step = 0
        self._slots: list[set[Replica]] = [set() for _ in range(SLOTS)]
        loop.call_later(EVENT_INTERVAL_S / SLOTS, self._tick)

    def begin(self, stream: Replica) -> int:
        """Take a stream up; returns its slot."""
        slot = self._now() % SLOTS
        self._slots[slot].add(stream)
        return slot

    def end(self, stream: Replica, slot: int) -> None:
        """Let go of a stream."""
        self._slots[slot].discard(stream)

    def _now(self) -> int:
        return int((self._loop.time() - self._began) / EVENT_INTERVAL_S * SLOTS)

    def _tick(self) -> None:
        now = self._now()
        for step in range(self._step, min(now, self._step + SLOTS)):
            laps = (now - step - 1) // SLOTS + 1  # more than one when this process comes too late
            for stream in list(self._slots[step % SLOTS]):
                stream.emit(laps)
        self._step = now
        self._loop.call_later(EVENT_INTERVAL_S / SLOTS, self._tick)


class Seen:
    """What the replicas have seen."""

    def __init__(self) -> None:
        self.requests = 0  # answered with a 200
        self.refused = 0
        self.body_bytes = 0
        self.events = 0
        self.writes = 0  # of events: fewer than these when the machine was too busy to write each in its time

    def response(self) -> bytes:
        """Make the answer to `GET /debug/count`."""
        body = json.dumps(vars(self)).encode()
        return _HEAD % (_DATE % (0, 0), b"application/json", len(body)) + body


class Replica(asyncio.Protocol):
    """One connection to a replica."""

    def __init__(self, clock: Clock, seen: Seen) -> None:
        self._clock = clock
        self._seen = seen
        self._transport: asyncio.Transport
        self._head = b""
        self._options = b""
        self._missing = 0
        self._slot = -1
        self._next = self._owed = self._total = 0
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Take a piece of a request."""
        if self._missing:
            self._take_body(data)
            return
        data = self._head + data
        end = data.find(b"\r\n\r\n") + 4
        if end < 4:
            self._head = data
            return
        self._head = b""
        if not data.startswith(b"POST"):
            self._transport.write(self._told(data))
            return
        length = _LENGTH.search(data, 0, end)
        self._missing = int(length[1]) if length else 0
        self._options = b""
        self._take_body(data[end:])

    def _told(self, data: bytes) -> bytes:
        if data.startswith(b"GET /debug/count "):
            return self._seen.response()
        return PAGE if data.startswith(b"GET /metrics ") else ANSWER

    def _take_body(self, data: bytes) -> None:
        self._seen.body_bytes += len(data)
        self._missing -= len(data)
        if len(self._options) < OPTIONS_BYTES:
            self._options += data[:OPTIONS_BYTES]
        if self._missing <= 0:
            self._missing = 0
            self._serve()

    def _serve(self) -> None:
        seen, options = self._seen, self._options
        seen.requests += 1
        if b'"stream":true' in options:
            self._begin_stream(options)
        elif b'"vary":true' in options:
            self._transport.write(VARYING[seen.requests % len(VARYING)])
        else:
            self._transport.write(ANSWER)

    def _begin_stream(self, options: bytes) -> None:
        asked = _MAX_TOKENS.search(options)
        self._total = min(int(asked[1]) if asked else 16, MAX_EVENTS)
        self._next = self._owed = 0
        self._transport.write(_STREAM_HEAD)
        self._slot = self._clock.begin(self)
        self.emit(1)

    def emit(self, laps: int) -> None:
        """Write the next events; while the client takes nothing they are owed."""
        self._owed = min(self._owed + laps, self._total - self._next)
        if self._paused:
            return
        stop = self._next + self._owed
        data = EVENTS[self._next] if self._owed == 1 else b"".join(EVENTS[self._next : stop])
        self._seen.events += self._owed
        self._seen.writes += 1
        self._next, self._owed = stop, 0
        if stop == self._total:
            self._end_stream()
            data += END_OF_STREAM
        self._transport.write(data)

    def _end_stream(self) -> None:
        if self._slot >= 0:
            self._clock.end(self, self._slot)
            self._slot = -1

    def pause_writing(self) -> None:
        """Write no more for now."""
        self._paused = True

    def resume_writing(self) -> None:
        """Write again from the next step on."""
        self._paused = False

    def connection_lost(self, exc: BaseException | None) -> None:
        """End."""
        self._end_stream()


class Refusing(Replica):
    """One connection to a replica that takes no request, although its health and its queue are good."""

    def _serve(self) -> None:
        self._seen.refused += 1
        self._transport.write(REFUSAL)


async def serve(ports: list[int], refusing: list[int]) -> None:
    """Serve on every port until the process ends. Raises OSError when a port is taken."""
    loop = asyncio.get_running_loop()
    clock, seen = Clock(loop), Seen()

    async def listen(kind: type[Replica], port: int) -> asyncio.Server:
        return await loop.create_server(lambda: kind(clock, seen), "127.0.0.1", port, backlog=4096)

    kinds = {"ports": (Replica, ports), "refusing": (Refusing, refusing)}
    servers = {key: [await listen(kind, port) for port in wanted] for key, (kind, wanted) in kinds.items()}
    found = {key: [server.sockets[0].getsockname()[1] for server in each] for key, each in servers.items()}
    print(json.dumps(found), flush=True)
    await asyncio.gather(*(server.serve_forever() for each in servers.values() for server in each))


def main() -> None:
    """Read the ports and serve."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("ports", nargs="+", type=int, help="of replicas that answer; 0 picks a free one")
    parser.add_argument("--refusing", action="append", default=[], type=int, metavar="PORT", help="of one that refuses")
    options = parser.parse_args()
    uvloop.run(serve(options.ports, options.refusing))


if __name__ == "__main__":
    main()
