"""Connections in memory, and a loop whose time only a test moves: as much of asyncio as the data path uses.

A `Client` is a test's hand on one client connection, a `Replica` its hand on one upstream connection, a `Dial` decides
what becomes of a connection that the proxy wants to open. Knows nothing of the endpoint (that is kit.py's).
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from proxy.downstream import Downstream

READ_BYTES = 256 * 1024  # as uvloop and asyncio read at most
HIGH_WATER = 64 * 1024  # as asyncio's and uvloop's default


class _Timer:
    """What call_later gives back."""

    def __init__(self, when: float, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.when = when
        self.callback = callback
        self.args = args
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True

    def __lt__(self, other: _Timer) -> bool:
        return self.when < other.when


class Loop:
    """As much of an event loop as the data path uses. `run` runs what is ready; `advance` moves the clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.dials: deque[Dial] = deque()
        self._ready: deque[tuple[Callable[..., object], tuple[Any, ...], contextvars.Context | None]] = deque()
        self._timers: list[_Timer] = []
        self.errors: list[dict[str, Any]] = []

    def as_asyncio(self) -> asyncio.AbstractEventLoop:
        """Give the loop as the type that its users name."""
        return cast(asyncio.AbstractEventLoop, self)

    def time(self) -> float:
        return self.now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_soon(self, callback: Any, *args: Any, context: contextvars.Context | None = None) -> Any:
        self._ready.append((callback, args, context))
        return _Timer(self.now, callback, args)

    def call_later(self, delay: float, callback: Any, *args: Any, context: contextvars.Context | None = None) -> Any:
        timer = _Timer(self.now + delay, callback, args)
        heapq.heappush(self._timers, timer)
        return timer

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self.as_asyncio())

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self.as_asyncio(), name=name)

    def add_reader(self, fd: Any, callback: Any, *args: Any) -> None:
        pass

    def remove_reader(self, fd: Any) -> bool:
        return True

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context)

    def create_connection(self, factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        dial = Dial(self, factory, f"{host}:{port}")
        self.dials.append(dial)
        return dial.wait()

    def run(self) -> None:
        """Run callbacks until none is ready."""
        for _ in range(100_000):
            if not self._ready:
                return
            callback, args, context = self._ready.popleft()
            if context is None:
                callback(*args)
            else:
                context.run(callback, *args)
        raise AssertionError("the loop never comes to rest")

    def advance(self, seconds: float) -> None:
        """Let time pass: timers run in their order, each at its own time."""
        end = self.now + seconds
        self.run()
        while self._timers and self._timers[0].when <= end:
            timer = heapq.heappop(self._timers)
            self.now = max(self.now, timer.when)
            if not timer.cancelled:
                timer.callback(*timer.args)
            self.run()
        self.now = end


class Dial:
    """One connection that the proxy wants to open; the test decides what becomes of it."""

    def __init__(self, loop: Loop, factory: Callable[[], asyncio.BaseProtocol], address: str) -> None:
        self.address = address
        self._loop = loop
        self._factory = factory
        self._result: asyncio.Future[asyncio.BaseProtocol] = loop.create_future()

    @property
    def open(self) -> bool:
        """True while the proxy still waits for it."""
        return not self._result.done()

    async def wait(self) -> tuple[Transport, asyncio.BaseProtocol]:
        protocol = await self._result
        transport: Transport = protocol.transport  # type: ignore[attr-defined]
        return transport, protocol

    def accept(self, *, early: bytes = b"", blocked: bool = False, unseen: bool = False) -> Replica:
        """Connect; `early` bytes arrive before the proxy's dialling task runs again, `blocked`: the peer reads none.

        `unseen`: the task runs later, with whatever happens until then.
        """
        protocol = self._factory()
        transport = Transport(self._loop, protocol)
        transport.blocked = blocked
        protocol.connection_made(transport)
        if early:
            transport.deliver(early)
        self._result.set_result(protocol)
        if not unseen:
            self._loop.run()
        return Replica(transport, self.address)

    def refuse(self, error: OSError | None = None) -> None:
        """Fail to connect."""
        self._result.set_exception(error or ConnectionRefusedError(111, "Connection refused"))
        self._loop.run()


class _Socket:
    """The options that were set on a connection's socket."""

    def __init__(self) -> None:
        self.options: list[tuple[Any, ...]] = []

    def setsockopt(self, *option: Any) -> None:
        self.options.append(option)

    def fileno(self) -> int:
        return -1


class Transport(asyncio.Transport):
    """A connection in memory. `blocked`: the peer takes nothing, so that what is written stays in the buffer."""

    def __init__(self, loop: Loop, protocol: asyncio.BaseProtocol) -> None:
        super().__init__()
        self.loop = loop
        self.protocol: Any = protocol
        self.sent = bytearray()  # what has reached the peer
        self.writes: list[bytes] = []  # the same and what was buffered, call by call
        self.blocked = False
        self.reading = True
        self.half_closed = False  # write_eof was called
        self.eof_arrived = False
        self.closing = False
        self.aborted = False
        self.lost = False  # connection_lost was called
        self.socket = _Socket()
        self._buffer = bytearray()
        self._arrived: deque[bytes] = deque()  # in the socket's buffer, not read yet
        self._told_to_pause = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.socket if name == "socket" else default

    # ------------------------------------------------------------------ the protocol's side

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.half_closed, "written after write_eof"
        self._ensure_alive()
        if self.closing:
            return
        piece = bytes(data)
        self.writes.append(piece)
        if self.blocked or self._buffer:
            self._buffer += piece
            if len(self._buffer) > HIGH_WATER and not self._told_to_pause:
                self._told_to_pause = True
                self.protocol.pause_writing()
        else:
            self.sent += piece

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return len(self._buffer)

    def write_eof(self) -> None:
        self._ensure_alive()
        self.half_closed = True

    def _ensure_alive(self) -> None:
        if self.lost:  # as uvloop; asyncio lets it pass
            raise RuntimeError("the handler is closed")

    def can_write_eof(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return self.closing

    def is_reading(self) -> bool:
        return self.reading

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True
        self.loop.call_soon(self._deliver_arrived)

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            if not self._buffer:
                self.loop.call_soon(self._lose, None)

    def abort(self) -> None:
        self.aborted = True
        self._buffer.clear()
        self.closing = True
        self.loop.call_soon(self._lose, None)

    # ------------------------------------------------------------------ the peer's side

    def deliver(self, data: bytes) -> None:
        """Let bytes arrive; they wait while reading is paused."""
        self._arrived.append(data)
        self._deliver_arrived()

    def _deliver_arrived(self) -> None:
        while self._arrived and self.reading and not self.closing:
            self.protocol.data_received(self._arrived.popleft())

    def deliver_eof(self) -> None:
        """Let the peer's end of file arrive."""
        self.eof_arrived = True
        if not self.closing and not self.protocol.eof_received():
            self.close()

    def break_off(self) -> None:
        """Let a reset arrive."""
        self.closing = self.aborted = True
        self._buffer.clear()
        self._lose(ConnectionResetError(104, "Connection reset by peer"))

    def take(self) -> None:
        """Let the peer take everything that is buffered, as often as more comes of it."""
        self.blocked = False
        while self._buffer:
            self.sent += self._buffer
            self._buffer.clear()
            if self._told_to_pause:
                self._told_to_pause = False
                self.protocol.resume_writing()
        if self.closing:
            self.loop.call_soon(self._lose, None)

    def _lose(self, error: BaseException | None) -> None:
        if not self.lost:
            self.lost = True
            self.protocol.connection_lost(error)


class Peer:
    """A test's hand on the far end of one connection. Every step runs the loop until it rests."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self._read = 0

    @property
    def loop(self) -> Loop:
        return self.transport.loop

    def is_gone(self) -> bool:
        """True when the proxy has closed the connection."""
        return self.transport.closing

    def is_read(self) -> bool:
        """Tell whether the proxy reads what the peer sends."""
        return self.transport.reading

    def send(self, *pieces: bytes) -> None:
        """Send bytes, each piece in a read of its own, or in several when it is longer than one read."""
        for piece in pieces:
            for start in range(0, len(piece), READ_BYTES):
                self.transport.deliver(piece[start : start + READ_BYTES])
        self.loop.run()

    def eof(self) -> None:
        self.transport.deliver_eof()
        self.loop.run()

    def reset(self) -> None:
        self.transport.break_off()
        self.loop.run()

    def stop_taking(self) -> None:
        """Take no more bytes for now."""
        self.transport.blocked = True

    def go_on_taking(self) -> None:
        self.transport.take()
        self.loop.run()

    def received(self) -> bytes:
        """Give what arrived since the last call."""
        data = bytes(self.transport.sent[self._read :])
        self._read += len(data)
        return data


class Client(Peer):
    """A client of the proxy."""

    def __init__(self, transport: Transport, downstream: Downstream) -> None:
        super().__init__(transport)
        self.downstream = downstream


class Replica(Peer):
    """The backend's end of one upstream connection; `address` is the backend's `host:port`."""

    def __init__(self, transport: Transport, address: str) -> None:
        super().__init__(transport)
        self.address = address
