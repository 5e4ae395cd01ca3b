"""Starts a step as a child of the controller and tells at once when it ends.

Owns the child process of each step (srun on Slurm, the step itself locally), its log files and its exit. Refuses to
know what the command is, and how a step is told to stop (site does).
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from runtime.steps import Role, StepSpec

Feed = Callable[[bytes], None]
# What these write belongs to the attempt and is private; what users' commands write is their affair.
_OWN_STEPS = frozenset({Role.ENDPOINT, Role.MONITOR, Role.PREFLIGHT})


class StepError(Exception):
    """A step that could not even be started. The text is one line for a person."""


class Step:
    """A started step. `exited` gets the exit code of its launcher; -N means killed by signal N.

    `drained` is done once everything it printed was fed, at once when nothing is.
    """

    def __init__(self, spec: StepSpec, process: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop) -> None:
        self.spec = spec
        self.process = process
        self.exited: asyncio.Future[int] = loop.create_future()
        self.drained: asyncio.Future[None] = loop.create_future()
        self.stopping = False

    def __repr__(self) -> str:
        state = f"exit {self.exited.result()}" if self.exited.done() else "stopping" if self.stopping else "running"
        return f"<Step {self.spec.name} pid={self.process.pid} {state}>"

    @property
    def name(self) -> str:
        """Name the step."""
        return self.spec.name

    @property
    def alive(self) -> bool:
        """Tell whether its launcher still runs."""
        return not self.exited.done()

    async def wait(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for its end; tell whether it has ended. Cancelling this wait is harmless."""
        await asyncio.wait({self.exited}, timeout=timeout)
        return self.exited.done()


class Launcher:
    """Starts steps whose output goes to `logs`/NAME.out and NAME.err, mode 0600."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs

    def start(
        self, spec: StepSpec, arguments: Sequence[str], environment: Mapping[str, str], feed: Feed | None
    ) -> Step:
        """Start a step in a process group of its own, so that a Ctrl-C on the terminal reaches the controller alone.

        `feed` gets what the step prints on stdout, which is logged as well. Never suspends, so that no cancellation
        can lose a child. Raises StepError.
        """
        loop = asyncio.get_running_loop()
        out, err = self._open(spec.name, "out"), self._open(spec.name, "err")
        reader, writer = os.pipe2(os.O_CLOEXEC) if feed is not None else (None, None)
        try:
            process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=out if writer is None else writer,
                stderr=err,
                env=dict(environment),
                process_group=0,
                umask=0o077 if spec.role in _OWN_STEPS else -1,
            )
        except OSError as error:
            for descriptor in (out, err, reader, writer):
                if descriptor is not None:
                    os.close(descriptor)
            raise StepError(f"{spec.name}: cannot start {arguments[0]}: {error.strerror}") from None
        os.close(err)
        step = Step(spec, process, loop)
        if reader is None or writer is None or feed is None:
            os.close(out)
            step.drained.set_result(None)
        else:
            os.close(writer)
            _copy(loop, (reader, out), feed, step.drained)
        # A thread for each child: it works on every kernel, and costs a wait in the kernel and nothing else.
        threading.Thread(target=_await_exit, args=(step, loop), name=f"wait-{spec.name}", daemon=True).start()
        return step

    def _open(self, name: str, stream: str) -> int:
        return os.open(self._logs / f"{name}.{stream}", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def _await_exit(step: Step, loop: asyncio.AbstractEventLoop) -> None:
    code = step.process.wait()
    with suppress(RuntimeError):  # the loop is closed: nobody asks any more
        loop.call_soon_threadsafe(_resolve, step.exited, code)


def _resolve(exited: asyncio.Future[int], code: int) -> None:
    if not exited.done():
        exited.set_result(code)


def _copy(loop: asyncio.AbstractEventLoop, pipe: tuple[int, int], feed: Feed, drained: asyncio.Future[None]) -> None:
    """Copy a pipe into a log and hand every piece to `feed`, until the last writer is gone."""
    reader, out = pipe
    os.set_blocking(reader, False)

    def readable() -> None:
        try:
            data = os.read(reader, 65536)
        except BlockingIOError:
            return
        if data:
            with suppress(OSError):  # a full disk must not stop the reading, or the step would block on its pipe
                os.write(out, data)
            feed(data)
            return
        loop.remove_reader(reader)
        os.close(reader)
        os.close(out)
        if not drained.done():
            drained.set_result(None)

    loop.add_reader(reader, readable)
