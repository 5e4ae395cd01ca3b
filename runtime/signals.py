"""Signals to the controller, from its first to its last moment.

Owns the handlers. A signal is kept until somebody takes it, so that none is lost before the event loop runs, and none
kills the process after its verdict: the event loop's own handlers would give way to the default action when it closes.
Refuses to know what a signal means.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a command holds its signals before it spends time on imports
    import asyncio

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


@contextmanager
def held_signals() -> Iterator[None]:
    """Keep signals pending until a SignalInbox is installed, so that none kills a process that is still importing.

    The mask of before is put back at the end.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class SignalInbox:
    """Collects signals from `install` on, and hands each to the listener that `attach` names."""

    def __init__(self) -> None:
        self._received: deque[int] = deque()

    def install(self) -> None:
        """Keep every handled signal from now on, those that were held first; nohup's choice to ignore HUP stands."""
        for number in HANDLED:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda received, _frame: self._received.append(received))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)

    def attach(self, loop: asyncio.AbstractEventLoop, listener: Callable[[int], None]) -> None:
        """Hand signals to `listener` in the loop, those that came before it first."""
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

        def deliver() -> None:
            with suppress(BlockingIOError):
                os.read(reader, 4096)
            while self._received:
                listener(self._received.popleft())

        loop.add_reader(reader, deliver)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        loop.call_soon(deliver)

    def finish(self) -> None:
        """Let no signal change anything any more: the verdict is written, the process is about to exit."""
        for number in HANDLED:
            signal.signal(number, signal.SIG_IGN)
