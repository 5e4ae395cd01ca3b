"""Run one drill: put its loads on, play its events meanwhile, gather the evidence, have it judged.

Owns the order: start, load and events, stop of the load, mending, evidence, verdicts. A drill that cannot be carried
out ends with an exception, never with a verdict.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tools.drilling.checks import State, Verdict, judge
from tools.drilling.evidence import ClientFacts, Evidence, ProxyFacts
from tools.drilling.spec import Drill, Event
from tools.drilling.stage import Stage
from tools.launch import Metrics, ask
from tools.load.book import Book
from tools.load.client import Target
from tools.load.engine import Engine
from tools.load.options import parse
from tools.load.progress import show_progress
from tools.load.results import summarise
from tools.load.scrape import Watcher
from tools.load.session import build_engine, in_loop
from tools.load.wire import Outcome

ENDLESS = 86400.0
Say = Callable[[str], None]


@dataclass(frozen=True)
class Endpoint:
    """A running dd-proxy: base URL of its client port, and its side port if that is on this machine."""

    url: str
    side_port: int | None = None


@dataclass(frozen=True)
class Report:
    """What came out of one drill. `happened` are (seconds, words); `figures` belong to the loads in order."""

    drill: Drill
    seconds: float
    verdicts: Sequence[Verdict]
    figures: Sequence[dict[str, Any]]
    happened: Sequence[tuple[float, str]]
    skipped: str = ""

    @property
    def passed(self) -> bool:
        """Whether no promise was broken."""
        return not self.skipped and all(verdict.state is not State.BROKEN for verdict in self.verdicts)


class Timeline:
    """Plays the events of a drill on its stage, each when it is due."""

    def __init__(self, events: Sequence[Event], seconds: float, stage: Stage | None) -> None:
        self.events = events
        self.seconds = seconds
        self.stage = stage
        self.happened: list[tuple[float, str]] = []

    async def play(self, runs: Sequence[asyncio.Task[Book]]) -> None:
        """Return when the last event is over and either the time of the drill is up or every load has ended."""
        start = time.monotonic()
        for event in self.events:
            await asyncio.sleep(max(event.at * self.seconds - (time.monotonic() - start), 0.0))
            self.happened.append((time.monotonic() - start, event.words))
            if self.stage is not None:
                await asyncio.to_thread(self.stage.act, event)
        await asyncio.wait(runs, timeout=max(self.seconds - (time.monotonic() - start), 0.0))


def run_drill(drill: Drill, seconds: float, directory: Path, say: Say, command: Sequence[str] = ()) -> Report:
    """Start replicas and proxy, run the drill on them for about so many seconds, and judge it.

    Raises StartError, OSError or TimeoutError when it could not be carried out.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for log in directory.glob("*.log"):
        log.unlink()  # logs are appended to, and those of an earlier drill would be counted again
    with Stage(drill, directory, command) as stage:
        say(f"{drill.name}: {drill.replicas.count} replicas and dd-proxy are ready")
        proxy = stage.proxy
        timeline = Timeline(drill.events, seconds, stage)
        books, watcher = in_loop(_load(drill, seconds, Endpoint(proxy.url, proxy.side_port), timeline))
        stage.mend()
        stage.settle()
        replicas = [replica.facts() for replica in stage.replicas]
        evidence = Evidence(client_facts(books), stage.proxy_facts(), replicas)
    return _report(drill, seconds, evidence, books, watcher, timeline)


def run_on(drill: Drill, seconds: float, endpoint: Endpoint, say: Say) -> Report:
    """Run the drill against a running endpoint; one that does something to replicas is skipped."""
    if drill.needs_replicas:
        return Report(drill, seconds, (), (), (), "it does things to replicas, which a running endpoint does not allow")
    say(f"{drill.name}: on {endpoint.url}")
    before = _metrics(endpoint)
    timeline = Timeline((), seconds, None)
    books, watcher = in_loop(_load(drill, seconds, endpoint, timeline))
    after = _metrics(endpoint)
    proxy = ProxyFacts(after, before, None) if before and after else None
    return _report(drill, seconds, Evidence(client_facts(books), proxy, ()), books, watcher, timeline)


def _metrics(endpoint: Endpoint) -> Metrics | None:
    if endpoint.side_port is None:
        return None
    return Metrics(ask(endpoint.side_port, "GET", "/metrics")[1].decode())


async def _load(
    drill: Drill, seconds: float, endpoint: Endpoint, timeline: Timeline
) -> tuple[list[Book], Watcher | None]:
    """Run all loads of the drill until the timeline is over (or they are done before), and let them finish."""
    engines = [_engine(drill, index, seconds, endpoint) for index in range(len(drill.loads))]
    watcher = Watcher(Target("127.0.0.1", endpoint.side_port)) if endpoint.side_port else None
    helpers: list[asyncio.Task[None]] = []
    if watcher:
        await watcher.once(0.0)
        helpers.append(asyncio.create_task(watcher.run()))
    if sys.stderr.isatty():
        helpers.append(asyncio.create_task(show_progress(engines[0], seconds=seconds)))
    runs = [asyncio.create_task(engine.run()) for engine in engines]
    try:
        await timeline.play(runs)
        for engine in engines:
            engine.stop()
        books = list(await asyncio.gather(*runs))
    finally:
        for task in (*runs, *helpers):
            task.cancel()
        await asyncio.gather(*runs, *helpers, return_exceptions=True)
    if watcher:
        await watcher.once(max(book.elapsed for book in books))
    return books, watcher


def _engine(drill: Drill, index: int, seconds: float, endpoint: Endpoint) -> Engine:
    arguments = ["--url", endpoint.url, "--expect-tokens", "--quiet", *drill.load_arguments(index, seconds)]
    settings = parse(arguments)
    plan = replace(settings.plan, duration=0.0 if settings.plan.requests else ENDLESS)
    return build_engine(replace(settings, plan=plan))


def client_facts(books: Sequence[Book]) -> ClientFacts:
    """Add up what the clients of all loads saw; the limits are those of the first AIMD client."""
    tries: Counter[tuple[str, int]] = Counter()
    reasons: Counter[str] = Counter()
    lost = 0
    limits = None
    for book in books:
        tries.update(book.tries)
        reasons.update(book.reasons)
        lost += sum(row.outcome not in (Outcome.OK, Outcome.LEFT) for row in book)
        seen = [sample.limit for sample in book.samples if sample.limit]
        if seen and limits is None:
            limits = (seen[0], min(seen), seen[-1])
    return ClientFacts(
        requests=sum(len(book) for book in books),
        lost=lost,
        tries=tries,
        bare_refusals=sum(book.bare_refusals for book in books),
        looked_whole=sum(book.looked_whole for book in books),
        resent=sum(book.resent for book in books),
        reasons=dict(reasons.most_common(8)),
        limits=limits,
    )


def _report(
    drill: Drill, seconds: float, evidence: Evidence, books: Sequence[Book], watcher: Watcher | None, timeline: Timeline
) -> Report:
    snapshots = watcher.snapshots if watcher else ()
    figures = [summarise(book, (), snapshots if index == 0 else ()) for index, book in enumerate(books)]
    return Report(drill, seconds, judge(drill.holds, evidence), figures, timeline.happened)
