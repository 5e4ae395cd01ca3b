"""What an attempt is doing right now, for a person: replicas becoming ready, outputs growing, requests and retries.

Owns the sampling and the two ways to show it: one line that is rewritten on a terminal, plain lines elsewhere. Reads
only what anybody may read: state files, outputs and the endpoints' side ports. Has no effect on the attempt.
"""

from __future__ import annotations

import asyncio
import io
import select
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TextIO

from runtime.layout import AttemptDir
from runtime.outputs import open_output
from runtime.plan import Plan
from runtime.probe import get
from runtime.state import ReadinessRecord, StateError, read_attempt, read_readiness
from runtime.units import human_duration

INTERVAL_S = 1.0
QUIET_S = 10.0  # on a log, mere growth is told this often; a change of state at once
SIDE_PORT_TIMEOUT_S = 1.0
_BLOCK = 1 << 20
MOST_AT_ONCE = select.PIPE_BUF // 4  # characters: a pipe that is writable takes as many whole


@dataclass(frozen=True, slots=True)
class Growth:
    """One output so far. `expected` None: the plan gives no number."""

    path: str
    records: int
    expected: int | None


@dataclass(frozen=True, slots=True)
class ProgressView:
    """One sample. `requests` and what follows are None while no endpoint can be asked."""

    state: str
    replicas: tuple[tuple[str, int, int], ...]
    outputs: tuple[Growth, ...]
    elapsed_s: float
    requests: int | None = None
    retries: int | None = None
    requests_per_s: float | None = None


class Progress:
    """Samples one attempt again and again; counts only what was added to an output since."""

    def __init__(self, attempt: AttemptDir, plan: Plan) -> None:
        self._attempt = attempt
        self._plan = plan
        self._counted: dict[str, tuple[int, int]] = {}
        self._before: tuple[float, int] | None = None
        self._started = asyncio.get_running_loop().time()

    async def sample(self) -> ProgressView:
        """Take one sample. Raises StateError for a broken state file."""
        now = asyncio.get_running_loop().time()
        record, readiness = read_attempt(self._attempt.path), read_readiness(self._attempt.path)
        outputs = await asyncio.to_thread(self._outputs)
        requests, retries = await self._traffic(readiness)
        state = "unknown" if record is None else record.state.value
        if readiness is not None and state == "running":
            state = readiness.state.value
        deployments = () if readiness is None else readiness.deployments
        return ProgressView(
            state=state,
            replicas=tuple((one.name, one.ready_backends, one.expected_backends) for one in deployments),
            outputs=outputs,
            elapsed_s=now - self._started,
            requests=requests,
            retries=retries,
            requests_per_s=self._rate(now, requests),
        )

    def _rate(self, now: float, requests: int | None) -> float | None:
        before, self._before = self._before, None if requests is None else (now, requests)
        if before is None or requests is None or now <= before[0]:
            return None
        return max(0, requests - before[1]) / (now - before[0])

    def _outputs(self) -> tuple[Growth, ...]:
        wanted = self._plan.client.outputs
        return tuple(Growth(output.path, self._count(output.path), output.records) for output in wanted)

    def _count(self, path: str) -> int:
        offset, records = self._counted.get(path, (0, 0))
        try:
            with open_output(self._attempt.path / path) as file:
                if file.seek(0, 2) < offset:
                    offset, records = 0, 0  # written anew
                file.seek(offset)
                while block := file.read(_BLOCK):
                    offset += len(block)
                    records += block.count(b"\n")
        except OSError:
            return records
        self._counted[path] = offset, records
        return records

    async def _traffic(self, readiness: ReadinessRecord | None) -> tuple[int | None, int | None]:
        side_ports = [one.metrics for one in readiness.deployments if one.metrics] if readiness is not None else []
        answers = await asyncio.gather(*(get(one, "/metrics", SIDE_PORT_TIMEOUT_S, body=True) for one in side_ports))
        pages = [answer.body.decode("utf-8", "replace") for answer in answers if answer.good]
        if not pages:
            return None, None
        return (
            sum(_total(page, "dd_proxy_requests_total") for page in pages),
            sum(_total(page, "dd_proxy_retries_total") for page in pages),
        )


def _total(page: str, name: str) -> int:
    """Add up all series of one counter on a page of Prometheus text."""
    total = 0.0
    for line in page.splitlines():
        if line.startswith(name) and line[len(name) : len(name) + 1] in (" ", "{"):
            total += float(line.rpartition(" ")[2])
    return int(total)


def render(view: ProgressView) -> str:
    """Write a sample as one line."""
    parts = [view.state]
    parts += [f"{name} {ready}/{expected} replicas" for name, ready, expected in view.replicas]
    parts += [f"{one.path} {one.records}{'' if one.expected is None else f'/{one.expected}'}" for one in view.outputs]
    if view.requests is not None:
        rate = "" if view.requests_per_s is None else f", {view.requests_per_s:.1f}/s"
        parts.append(f"{view.requests} requests{rate}")
        parts.append(f"{view.retries} retries")
    return f"[{human_duration(int(view.elapsed_s))}] " + " · ".join(parts)


def say(stream: TextIO, text: str, patience_s: float = 0.0) -> None:
    """Write to a stream as long as its reader takes anything, now or within `patience_s`: a full pipe holds up nobody.

    Raises OSError, ValueError when nobody reads any more.
    """
    for start in range(0, len(text), MOST_AT_ONCE):
        with suppress(io.UnsupportedOperation):  # no file: it takes everything
            _, writable, _ = select.select([], [stream.fileno()], [], patience_s)
            if not writable:
                return
        stream.write(text[start : start + MOST_AT_ONCE])
        stream.flush()


class Screen:
    """Shows samples on a stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._told: tuple[object, ...] = ()
        self._told_at = -QUIET_S

    def show(self, view: ProgressView) -> None:
        """Show one sample: in place on a terminal, else when it says something new."""
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1  # a line that wraps could not be rewritten
            self._write(f"\r\x1b[K{render(view)[:width]}")
            return
        news = (view.state, view.replicas)
        grown = (view.outputs, view.requests)
        if news != self._told[:2] or (grown != self._told[2:] and view.elapsed_s - self._told_at >= QUIET_S):
            self._told, self._told_at = (*news, *grown), view.elapsed_s
            self._write(f"{render(view)}\n")

    def close(self) -> None:
        """Leave the terminal with a clean line."""
        if self._terminal:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        try:
            say(self._stream, text)
        except (OSError, ValueError):  # nobody reads any more; the attempt goes on
            self._terminal = False


async def follow(attempt: AttemptDir, plan: Plan, stream: TextIO, ended: Callable[[], bool] | None = None) -> None:
    """Show an attempt until `ended` says so, or until cancelled; the terminal's line is clean afterwards."""
    progress, screen = Progress(attempt, plan), Screen(stream)
    try:
        while True:
            over = ended is not None and ended()  # asked before the sample, so that the last one is complete
            try:
                screen.show(await progress.sample())
            except StateError as error:
                stream.write(f"{error}\n")
            if over:
                return
            await asyncio.sleep(INTERVAL_S)
    finally:
        screen.close()
