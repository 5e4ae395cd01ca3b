"""Live progress: a bar with the current figures on a terminal, plain lines otherwise.

Owns the terminal while the run lasts. Reads the engine, changes nothing in it; `rich` draws the bar when it is
installed.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Protocol

from tools.load.engine import Engine

LINE_INTERVAL = 5.0
BAR_INTERVAL = 0.25
RATE_OVER = 2.0  # seconds that the rate is taken over, or it would jump with every request


class _Display(Protocol):
    def show(self, share: float, text: str) -> None: ...


class _Lines:
    """One line every few seconds."""

    interval = LINE_INTERVAL

    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream

    def show(self, share: float, text: str) -> None:
        print(f"{share:4.0%}  {text}", file=self.stream, flush=True)


class _Bar:
    """A plain bar that rewrites its line, for terminals without rich."""

    interval = BAR_INTERVAL

    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream

    def show(self, share: float, text: str) -> None:
        filled = round(20 * share)
        self.stream.write(f"\r\x1b[2K[{'#' * filled}{'.' * (20 - filled)}] {text}")
        self.stream.flush()

    def close(self) -> None:
        self.stream.write("\r\x1b[2K")
        self.stream.flush()


@contextmanager
def _display(stream: IO[str]) -> Iterator[tuple[_Display, float]]:
    if not stream.isatty():
        yield _Lines(stream), LINE_INTERVAL
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    except ImportError:
        bar = _Bar(stream)
        try:
            yield bar, BAR_INTERVAL
        finally:
            bar.close()
        return
    columns = (BarColumn(24), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(file=stream), transient=True) as progress:
        task = progress.add_task("", total=1.0)

        class Rich:
            def show(self, share: float, text: str) -> None:
                progress.update(task, completed=share, description=text)

        yield Rich(), BAR_INTERVAL


async def show_progress(engine: Engine, stream: IO[str] = sys.stderr, seconds: float = 0.0) -> None:
    """Show how the run goes until cancelled; `seconds` is its length where the plan does not tell."""
    with _display(stream) as (display, interval):
        looks = deque([(0.0, 0)], maxlen=max(1, round(RATE_OVER / interval)))
        while True:
            await asyncio.sleep(interval)
            ended, good = engine.book.progress()
            now = engine.now()
            before, ended_before = looks[0]
            looks.append((now, ended))
            rate = (ended - ended_before) / max(now - before, 1e-9)
            display.show(_share(engine, ended, seconds), _figures(engine, ended, good, rate))


def _share(engine: Engine, ended: int, seconds: float) -> float:
    plan = engine.plan
    shares = [0.0]
    if plan.requests:
        shares.append(ended / plan.requests)
    length = plan.warmup + plan.duration if plan.duration else sum(leg.seconds for leg in plan.legs)
    length = seconds or length
    if 0 < length < float("inf"):
        shares.append(engine.now() / length)
    return min(max(shares), 1.0)


def _figures(engine: Engine, ended: int, good: int, rate: float) -> str:
    text = f"{ended} done, {rate:.0f}/s, {len(engine.client.busy)} in flight, {ended - good} not ok"
    if engine.gate:
        text += f", limit {engine.gate.admission.limit}, {len(engine.gate.waiters)} waiting"
    return text + (", finishing" if engine.stopping else "")
