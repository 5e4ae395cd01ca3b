"""The data path driven in one process without a socket, a timer or a clock that matters: the same steps every time.

Owns fixed inputs and transports that take everything. What is counted while they run is counts.py's and budget.py's.
Run as a script it goes through every scenario for a tool that counts instructions from outside, and calls
`os.getppid()` before and behind each measured part, a C function that nothing else here calls.

    python tools/benchmark/drive.py --time      # microseconds in Python: the least of many short runs
    valgrind --tool=callgrind --dump-before=getppid python tools/benchmark/drive.py
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

if __name__ == "__main__":  # so that it runs as a script from anywhere
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from proxy.access_log import AccessLog
from proxy.config import parse_options
from proxy.connector import UpstreamConnection
from proxy.downstream import Downstream
from proxy.endpoint import Endpoint
from proxy.queue_depth import DepthReader
from proxy.server import loop_factory

BACKENDS = 8
UNITS = 256  # of each scenario; as many as a memo holds heads, so that what it forgets counts evenly
WARM_UP = 1100  # more than the ring of recent requests holds
SHORT_RUNS = 400
DIFFERENT = 2048
UPLOAD_PIECE = 256 * 1024  # as much as one read of uvloop brings

_BODY = b'{"model":"m","max_tokens":16,"messages":[{"role":"user","content":"' + b"x" * 1920 + b'"}]}'
_HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nAccept-Encoding: identity\r\n"
    b"Accept: application/json\r\nContent-Type: application/json\r\nUser-Agent: OpenAI/Python 1.99.0\r\n"
    b"Authorization: Bearer sk-0123456789abcdef0123456789abcdef\r\nX-Stainless-Lang: python\r\n"
    b"X-Request-Id: %b\r\nContent-Length: %d\r\n\r\n"
)
_ANSWER = b'{"id":"chatcmpl-1","object":"chat.completion","choices":[{"index":0,"message":{"content":"' + b"y" * 1400
_ANSWER += b'"}}]}'
_ANSWER_HEAD = (
    b"HTTP/1.1 200 OK\r\ndate: Mon, 01 Jan 2035 00:%02d:%02d GMT\r\nserver: uvicorn\r\ncontent-length: %d\r\n"
    b"content-type: application/json\r\n\r\n"
)
_REFUSAL = b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 0\r\ncontent-length: 2\r\n\r\n{}"
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ndate: Mon, 01 Jan 2035 00:00:00 GMT\r\nserver: uvicorn\r\n"
    b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
_EVENT = b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{"delta":{"content":" word"}}]}\n\n'
EVENT = b"%x\r\n%b\r\n" % (len(_EVENT), _EVENT)
END_OF_STREAM = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
_PAGE = b"".join(b'vllm:other_%04d{engine="0",model_name="m"} %d.0\n' % (n, n) for n in range(6000))
METRICS_PAGE = memoryview(_PAGE + b'vllm:num_requests_waiting{engine="0",model_name="m"} 3.0\n' + _PAGE)


def _varied() -> list[tuple[bytes, bytes]]:
    """Make more requests and answers than any memo remembers, no two of them with the same head."""
    found = []
    for n in range(DIFFERENT):
        body, answer = _BODY[: 1000 + n % 256], _ANSWER[: 400 + n % 1000]
        request = _HEAD % (b"%016x" % n, len(body)) + body
        found.append((request, _ANSWER_HEAD % (n // 60 % 60, n % 60, len(answer)) + answer))
    return found


class _Socket:
    """A socket that takes every option and every byte."""

    nowhere = os.open(os.devnull, os.O_WRONLY)

    def setsockopt(self, *option: Any) -> None:
        """Do nothing."""

    def fileno(self) -> int:
        """Give a descriptor to write to."""
        return self.nowhere


class Wire:
    """A transport whose peer takes everything at once; `write` is a C function, so that it costs next to nothing."""

    def __init__(self) -> None:
        self.written: deque[bytes] = deque(maxlen=1)
        self.write = self.written.append
        self.get_write_buffer_size = int
        self._socket = _Socket()

    def get_extra_info(self, name: str) -> _Socket | None:
        """Give the socket; there is nothing else, TLS least of all."""
        return self._socket if name == "socket" else None

    def abort(self) -> None:
        """Do nothing."""

    close = write_eof = pause_reading = resume_reading = abort

    def is_closing(self) -> bool:
        """Never is."""
        return False

    def as_transport(self) -> asyncio.Transport:
        """Give it as the type that its users name."""
        return cast(asyncio.Transport, self)


class Turns:
    """A loop as far as connections ask it: what they want called soon is called by `run`."""

    def __init__(self) -> None:
        self._due: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()

    def call_soon(self, callback: Callable[..., object], *arguments: object) -> None:
        """See asyncio."""
        self._due.append((callback, arguments))

    def run(self) -> None:
        """Call what is due until nothing is."""
        while self._due:
            callback, arguments = self._due.popleft()
            callback(*arguments)


class Drive:
    """One endpoint with eight backends, a pooled connection to each, and one client."""

    def __init__(self) -> None:
        urls = [f"http://10.0.0.{n + 1}:80" for n in range(BACKENDS)]
        config, errors = parse_options({"listen_port": 8000, "backend": urls, "queue_stale_after": 1e6}, "drive")
        assert config is not None, errors
        self.loop = loop_factory()[0]()
        log = AccessLog(os.open(os.devnull, os.O_WRONLY), "error", clock=lambda: 2e9)  # its thread has nothing to do
        self.endpoint = Endpoint(config, log, self.loop)
        self.turns = Turns()
        self.endpoint.loop = cast(asyncio.AbstractEventLoop, self.turns)
        self.connections = [UpstreamConnection(b, self.endpoint.idle_event) for b in self.endpoint.fleet]
        for connection in self.connections:
            connection.connection_made(Wire().as_transport())
            self.endpoint.fleet.record_probe(connection.backend, True)
            self.endpoint.fleet.record_depth(connection.backend, 0.0, time.monotonic())
            self.endpoint.pool.give(connection, time.monotonic())
        self.client = self.connect()
        self.reader = DepthReader("auto")
        self._varied = itertools.cycle(_varied())

    def connect(self, wire: Wire | None = None) -> Downstream:
        """Open a client connection."""
        client = Downstream(self.endpoint)
        client.connection_made((wire or Wire()).as_transport())
        return client

    def close(self) -> None:
        """End everything."""
        self.endpoint.departures.close()
        self.endpoint.log.close()
        self.loop.close()

    def _leased(self) -> UpstreamConnection:
        for connection in self.connections:
            if connection.lessee is not None:
                return connection
        raise AssertionError("no attempt is under way")

    # ------------------------------------------------------------------ scenarios: each runs `units` of its unit

    def unary(self, units: int) -> None:
        """Requests and answers that are the same every time, each in one read."""
        request = _HEAD % (b"0" * 16, len(_BODY)) + _BODY
        answer = _ANSWER_HEAD % (0, 0, len(_ANSWER)) + _ANSWER
        for _ in range(units):
            self.client.data_received(request)
            self._leased().data_received(answer)

    def varying(self, units: int) -> None:
        """Requests with an id and a length of their own, answers with another date and length each."""
        for request, answer in itertools.islice(self._varied, units):
            self.client.data_received(request)
            self._leased().data_received(answer)

    def retry(self, units: int) -> None:
        """Requests that one backend refuses with 429 and another one answers."""
        request = _HEAD % (b"0" * 16, len(_BODY)) + _BODY
        answer = _ANSWER_HEAD % (0, 0, len(_ANSWER)) + _ANSWER
        for _ in range(units):
            self.client.data_received(request)
            self._leased().data_received(_REFUSAL)
            self._leased().data_received(answer)

    def stream(self, units: int) -> None:
        """Streams of two events: request, head, event, event, end, each in a read of its own."""
        request = _HEAD % (b"0" * 16, len(_BODY)) + _BODY
        for _ in range(units):
            self.client.data_received(request)
            connection = self._leased()
            connection.data_received(_STREAM_HEAD)
            connection.data_received(EVENT)
            connection.data_received(EVENT)
            connection.data_received(END_OF_STREAM)

    def event(self, units: int) -> None:
        """Events of one running stream, a chunk and a read each."""
        connection = self._running_stream()
        for _ in range(units):
            connection.data_received(EVENT)
        connection.data_received(END_OF_STREAM)

    def _running_stream(self) -> UpstreamConnection:
        self.client.data_received(_HEAD % (b"0" * 16, len(_BODY)) + _BODY)
        connection = self._leased()
        connection.data_received(_STREAM_HEAD + EVENT)
        return connection

    def upload(self, units: int) -> None:
        """Pieces of a large request body that is read whole, then forwarded."""
        self.client.data_received(_HEAD % (b"0" * 16, units * UPLOAD_PIECE))
        piece = b"z" * UPLOAD_PIECE
        for _ in range(units):
            self.client.data_received(piece)
        self.turns.run()
        self._leased().data_received(_ANSWER_HEAD % (0, 0, len(_ANSWER)) + _ANSWER)

    def sample(self, units: int) -> None:
        """Pages of 600 KB of which one number is read."""
        for _ in range(units):
            self.reader.begin()
            self.reader.feed(METRICS_PAGE[: 256 * 1024])
            self.reader.feed(METRICS_PAGE[256 * 1024 : 512 * 1024])
            self.reader.feed(METRICS_PAGE[512 * 1024 :])
            assert self.reader.finish() == 3.0

    def scenarios(self) -> dict[str, tuple[Callable[[int], None], int]]:
        """Give each scenario with the number of units to run of it."""
        return {
            "unary request": (self.unary, UNITS),
            "unary request, heads vary": (self.varying, UNITS),
            "request with one retry": (self.retry, UNITS),
            "stream of two events": (self.stream, UNITS),
            "streamed event": (self.event, 8 * UNITS),
            "upload, 256 KiB": (self.upload, 64),
            "metrics page, 600 KB": (self.sample, 32),
        }

    def warm_up(self) -> None:
        """Bring every memo and ring to its size."""
        self.unary(WARM_UP)
        for run, units in self.scenarios().values():
            run(units // 4)


def least_us(run: Callable[[int], None], units: int) -> float:
    """Time many short runs and give the least, in microseconds per unit: neighbours disturb some of them, never all."""
    times = []
    for _ in range(SHORT_RUNS):
        began = time.perf_counter()
        run(units)
        times.append(time.perf_counter() - began)
    return min(times) / units * 1e6


def main() -> None:
    """Run every scenario, with a call of getppid before and behind it; with --time, time it instead."""
    drive = Drive()
    drive.warm_up()
    for name, (run, units) in drive.scenarios().items():
        if "--time" in sys.argv[1:]:
            print(f"{name}: {least_us(run, units // 8):.2f} µs")
            continue
        os.getppid()
        run(units)
        os.getppid()
    drive.close()


if __name__ == "__main__":
    main()
