"""The log writer: events as JSON lines on a file descriptor, never at the cost of the traffic.

Events are serialised by the caller and put on a bounded queue; one daemon thread writes them, at most every 50 ms,
and is the only place that may block. What cannot be kept or written is dropped and counted. The descriptor is never
made non-blocking: standard error's description is shared with other processes.

On a pipe, terminal or socket a write holds whole lines and at most PIPE_BUF bytes, which the kernel takes whole or not
at all (pipe(7)): a reader sees whole lines even when this process ends while the pipe is full. An empty pipe takes its
whole capacity in one piece, so that a live reader costs few system calls.
"""

from __future__ import annotations

import fcntl
import os
import select
import stat
import termios
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import orjson

from proxy.events import LEVELS, MAX_LOGGED_CHARACTERS, RequestEntry, clipped, level_of, second_text

WAITING_LIMIT: Final = 2 * 2**20
KEPT_AFTER_JAM: Final = 64 * 2**10
WAKE_INTERVAL_S: Final = 0.05
JAM_S: Final = 0.1
FILE_BATCH: Final = 256 * 2**10
NO_LINE: Final = b"{}\n"

_MILLISECONDS: Final = [b"%03dZ" % number for number in range(1000)]


class _Sink:
    """The file descriptor: how much it takes in one piece, and writing that piece."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._unbounded = self._pipe = False
        self._torn = False  # a line was cut by a full disk: the next one must not continue it
        try:
            mode = os.fstat(fd).st_mode
        except OSError:
            return  # closed: each write says so again
        # A file or /dev/null takes any length whole; a terminal may be held back by its reader as a pipe is.
        self._unbounded = stat.S_ISREG(mode) or (stat.S_ISCHR(mode) and not os.isatty(fd))
        self._pipe = stat.S_ISFIFO(mode)

    def room(self) -> int:
        """Return how many bytes one write takes whole."""
        if self._unbounded:
            return FILE_BATCH
        if self._pipe:
            none = bytes(4)
            try:
                if fcntl.ioctl(self.fd, termios.FIONREAD, none) == none:
                    return max(fcntl.fcntl(self.fd, fcntl.F_GETPIPE_SZ), select.PIPE_BUF)
            except OSError:
                pass  # the write will tell
        return select.PIPE_BUF

    def write(self, data: bytes) -> None:
        """Write all of `data`, however long that blocks; raises OSError."""
        view = whole = memoryview(b"\n" + data if self._torn else data)
        while view:
            try:
                view = view[os.write(self.fd, view) :]
            except BlockingIOError:  # another process made the shared description non-blocking
                poll = select.poll()
                poll.register(self.fd, select.POLLOUT)
                poll.poll()
            except OSError:
                self._torn = self._torn or len(view) < len(whole)
                raise
        self._torn = False


def _nothing() -> None:
    """Do nothing."""


class AccessLog:
    """A queue of log lines and the thread that writes them; `event` and `request` are for one thread, the loop's."""

    def __init__(
        self, fd: int = 2, level: str = "info", clock: Callable[[], float] = time.time, limit: int = WAITING_LIMIT
    ) -> None:
        self._level = LEVELS[level]
        self.clock = clock
        self.before_event: Callable[[], None] = _nothing  # so that what happened before stands before it
        self._limit = limit
        self.wants_requests = self._level <= LEVELS["info"]
        self._second = -1
        self._head = b""
        # Each number has one writing thread, so that none needs a lock: bytes in and refused lines belong to the
        # caller, bytes out and lost lines to the writer.
        self._queue: deque[bytes] = deque()
        self._bytes_in = self._bytes_out = 0
        self._refused = self._lost = 0
        self._overflowed = self._closed = False
        self._closing = threading.Event()
        self._wake = threading.Event()
        self._awake = False
        self._sink = _Sink(fd)
        self._thread = threading.Thread(target=self._write_on, name="log", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<AccessLog fd={self._sink.fd} waiting={self._bytes_in - self._bytes_out} bytes dropped={self.dropped}>"

    @property
    def dropped(self) -> int:
        """Return how many events were dropped: no room, no way to write them, or no JSON."""
        return self._refused + self._lost

    def request(self, entry: RequestEntry) -> bytes:
        """Log one client request that has ended now, and return its line; above the level `info` only returns it."""
        return self.requests([entry], [self.clock()])[0]

    def requests(self, entries: Sequence[RequestEntry], times: Sequence[float]) -> list[bytes]:
        """Log requests that ended at these Unix times, and return their lines; above the level `info` only returns."""
        lines = [self._line(now, b'"event":"request",', entry) for entry, now in zip(entries, times, strict=True)]
        for at, line in enumerate(lines):
            if len(line) > MAX_LOGGED_CHARACTERS:  # what the client chose may be too long
                lines[at] = self._line(times[at], b'"event":"request",', clipped(entries[at]))
        if self.wants_requests:
            self._queue_up(lines)
        return lines

    def event(self, name: str, **fields: object) -> None:
        """Log one event of the process's life; `fields` hold what JSON can, and no secret."""
        self.before_event()
        if level_of(name) >= self._level:
            self._queue_up([self._line(self.clock(), b"", {"event": name, **fields})])

    def close(self, deadline_s: float = 1.0) -> None:
        """Write what waits, for at most `deadline_s`; later events are dropped and counted."""
        self._closed = True
        self._closing.set()
        self._wake.set()
        self._thread.join(deadline_s)

    def _line(self, now: float, first: bytes, fields: object) -> bytes:
        """Make a line; NO_LINE, counted as dropped, of what is no JSON (a lone surrogate, say)."""
        second = int(now)
        if second != self._second:
            self._second = second
            self._head = b'{"ts":"' + second_text(second).encode() + b"."
        try:
            body = orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)
        except TypeError:  # the traffic must not pay for it
            self._refused += 1
            return NO_LINE
        return b"".join((self._head, _MILLISECONDS[int((now - second) * 1000)], b'",', first, body[1:]))

    def _queue_up(self, lines: list[bytes]) -> None:
        if NO_LINE in lines:
            lines = [line for line in lines if line is not NO_LINE]
        if self._bytes_in - self._bytes_out > self._limit or self._closed:
            self._refused += len(lines)
            self._overflowed = True
            return
        self._bytes_in += sum(map(len, lines))
        self._queue.extend(lines)
        if not self._awake:
            self._awake = True
            self._wake.set()

    def _write_on(self) -> None:
        """Write lines until closed: the thread's body. Sleeps without a timer while there are none."""
        while True:
            self._wake.wait()
            self._wake.clear()
            self._closing.wait(WAKE_INTERVAL_S)  # more events may share the next write
            end = self._bytes_in  # what comes meanwhile waits for the next round, or each line would be a write
            while self._queue and self._bytes_out < end:
                self._write_batch()
            self._overflowed = False
            # An event that came before this line saw `_awake` and set no flag, so look once more.
            self._awake = False
            if self._queue:
                self._awake = True
                self._wake.set()
            elif self._closing.is_set():
                return

    def _write_batch(self) -> None:
        batch = self._take(self._sink.room())
        began = time.monotonic()
        try:
            self._sink.write(b"".join(batch))
        except OSError:  # closed, no reader, no space: these lines are lost, later ones may do better
            self._lost += len(batch)
        if self._overflowed and time.monotonic() - began > JAM_S:
            self._skip_backlog()

    def _take(self, room: int) -> list[bytes]:
        """Take whole lines that fit in `room` bytes from the queue, and at least one."""
        queue = self._queue
        batch = [queue.popleft()]
        size = len(batch[0])
        while queue and size + len(queue[0]) <= room:
            line = queue.popleft()
            size += len(line)
            batch.append(line)
        self._bytes_out += size
        return batch

    def _skip_backlog(self) -> None:
        """Drop all but the newest lines after a jam that lost some anyway, so that the log tells of now again."""
        while self._queue and self._bytes_in - self._bytes_out > KEPT_AFTER_JAM:
            self._bytes_out += len(self._queue.popleft())
            self._lost += 1
        self._overflowed = False
