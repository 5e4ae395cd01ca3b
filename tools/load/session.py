"""One run from settings to figures: wires engine, watcher, progress and signals together.

Owns the life of the run inside the event loop; files and exit codes belong to the command.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import sys
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

from tools.load.client import Client
from tools.load.engine import Engine
from tools.load.policy import AimdAdmission, NoRetry, RetryPolicy, SdkRetry, TransportRetry
from tools.load.progress import show_progress
from tools.load.results import summarise
from tools.load.scrape import Watcher
from tools.load.settings import Settings

Result = TypeVar("Result")


def build_engine(settings: Settings) -> Engine:
    """Return the engine that the settings describe. Raises ValueError or OSError for a bad trace file."""
    policies: dict[str, RetryPolicy] = {
        "plain": NoRetry(),
        "sdk": SdkRetry(seed=settings.plan.seed),
        "aimd": TransportRetry(seed=settings.plan.seed),
    }
    admission = AimdAdmission(settings.aimd) if settings.client == "aimd" else None
    client = Client(settings.target, idle_timeout=settings.idle_timeout)
    return Engine(client, settings.jobs(), settings.plan, policies[settings.client], admission)


@contextlib.contextmanager
def _interruptible(engine: Engine) -> Iterator[None]:
    """Let Ctrl-C stop the run in order: the first finishes what runs, the second ends it at once."""
    loop = asyncio.get_running_loop()

    def interrupted() -> None:
        if not engine.stopping:
            print("\nstopping: waiting for what runs (again to end at once)", file=sys.stderr)
        engine.stop()

    with contextlib.ExitStack() as stack:
        for number in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(ValueError, NotImplementedError):
                loop.add_signal_handler(number, interrupted)
                stack.callback(loop.remove_signal_handler, number)
        yield


async def run(settings: Settings) -> dict[str, Any]:
    """Make the run and return its figures. Raises ValueError or OSError for a bad trace file."""
    raise_descriptor_limit()
    engine = build_engine(settings)
    watcher = Watcher(settings.metrics) if settings.metrics else None
    helpers = []
    if watcher:
        await watcher.once(0.0)
        helpers.append(asyncio.create_task(watcher.run()))
    if not settings.quiet:
        helpers.append(asyncio.create_task(show_progress(engine)))
    try:
        with _interruptible(engine):
            book = await engine.run()
    finally:
        for task in helpers:
            task.cancel()
        await asyncio.gather(*helpers, return_exceptions=True)
    if watcher:
        await watcher.once(book.elapsed)
    figures = summarise(book, settings.goals, watcher.snapshots if watcher else ())
    if watcher and watcher.complaint:
        figures["notes"].append(watcher.complaint)
    figures["settings"] = dict(settings.shown)
    return figures


def raise_descriptor_limit() -> None:
    """Allow as many sockets as the system lets this process have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def in_loop(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end on the fastest event loop that is installed."""
    try:
        import uvloop
    except ImportError:
        print("uvloop is not installed: slower, with the same figures", file=sys.stderr)
        return asyncio.run(work)
    return uvloop.run(work)
