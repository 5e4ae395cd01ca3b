"""Shows dd-proxy at work: eight fake replicas, real traffic, faults in the middle of it, and whether anything was lost.

Owns the story and its table; load, replicas and proxy are those that the other tools use. Nothing of it needs a GPU.

    python tools/demo.py

A request is lost when its client did not get a whole answer with every token that it asked for. An answer that was cut
off after it had begun cannot be replayed by any proxy: the client sees that it is incomplete and asks again, as the
clients of such endpoints do; those are counted and told.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs as a script from anywhere

from tools.launch import DdProxy, Fake, Metrics, StartError, start_fakes
from tools.load.book import Book
from tools.load.client import Client, Target
from tools.load.engine import Engine, Plan
from tools.load.jobs import Job, Jobs, Template, parse_sizes
from tools.load.progress import show_progress
from tools.load.results import summarise
from tools.load.wire import Answer, Outcome

REPLICAS = 8
KILLED, OVERLOADED, CUTTING = 2, 4, 6
REPLICA_OPTIONS = ("--token-interval", "0.004", "--max-concurrency", "32")
CHAT = "/v1/chat/completions"


class AskAgainWhenCut:
    """Repeat only what no proxy can repair: an answer that broke off after it had begun."""

    def delay(self, answer: Answer, tries: int, wall: float) -> float | None:
        """Return the wait before the next try in seconds, or None to give up."""
        return 0.1 if answer.outcome is Outcome.TRUNCATED and tries < 3 else None


@dataclass(frozen=True, slots=True)
class Act:
    """Something that happens to a replica once a share of the requests has been sent."""

    share: float
    replica: int
    kind: str
    text: str
    fields: dict[str, Any] = field(default_factory=dict)


STORY = (
    Act(0.15, CUTTING, "idle_close", "closes idle connections after 10 ms", {"seconds": 0.01}),
    Act(0.25, OVERLOADED, "status", "answers 429, Retry-After 1", {"status": 429, "retry_after": 1}),
    Act(0.40, KILLED, "kill", "is killed"),
    Act(0.55, OVERLOADED, "waiting", "reports 500 waiting requests", {"value": 500}),
    Act(0.80, OVERLOADED, "clear", "has recovered"),
)


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What is left to look at when the last request has ended; taken while the proxy still runs."""

    book: Book
    metrics: Metrics
    elapsed_s: float
    cpu_s: float
    peak_rss_bytes: int

    @property
    def answered(self) -> int:
        """Return how many requests ended with a whole answer."""
        return self.book.progress()[1]


def say(text: str) -> None:
    """Print one line of the story, clear of a progress bar."""
    print(text, file=sys.stderr, flush=True)


class StoryJobs(Jobs):
    """The requests of the demo; each act is put on stage when its request is made."""

    def __init__(self, template: Template, requests: int) -> None:
        super().__init__(template)
        self.stage: asyncio.Queue[Act] = asyncio.Queue()
        self._acts = deque((round(act.share * requests), act) for act in STORY)

    def __next__(self) -> Job:
        while self._acts and self.made >= self._acts[0][0]:
            self.stage.put_nowait(self._acts.popleft()[1])
        return super().__next__()


async def play(jobs: StoryJobs, replicas: list[Fake]) -> None:
    """Let the acts happen."""
    while True:
        act = await jobs.stage.get()
        replica = replicas[act.replica]
        if act.kind == "kill":
            replica.kill()
        elif act.kind == "clear":
            await asyncio.to_thread(replica.clear)
        else:
            await asyncio.to_thread(partial(replica.fault, act.kind, **act.fields))
        say(f"{act.share:4.0%}  replica {act.replica + 1} {act.text}")


async def drive(proxy: DdProxy, replicas: list[Fake], requests: int, users: int) -> Outcomes:
    """Send the requests, half of them streamed, while the story is played."""
    template = Template(
        authority=f"127.0.0.1:{proxy.port}",
        path=CHAT,
        inputs=parse_sizes("uniform:16:256"),
        outputs=parse_sizes("uniform:8:32"),
        stream_share=0.5,
        timeout=30.0,
    )
    jobs = StoryJobs(template, requests)
    plan = Plan(users=users, requests=requests, expect_tokens=True)
    engine = Engine(Client(Target("127.0.0.1", proxy.port)), jobs, plan, AskAgainWhenCut())
    helpers = [asyncio.create_task(play(jobs, replicas)), asyncio.create_task(show_progress(engine))]
    cpu_before, began = proxy.cpu_s(), time.monotonic()
    try:
        book = await engine.run()
    finally:
        for task in helpers:
            task.cancel()
        await asyncio.gather(*helpers, return_exceptions=True)
    elapsed = time.monotonic() - began
    metrics = await asyncio.to_thread(proxy.metrics)
    return Outcomes(book, metrics, elapsed, proxy.cpu_s() - cpu_before, proxy.peak_rss_bytes())


def replica_rows(metrics: Metrics, replicas: list[Fake]) -> list[str]:
    """Return a line for each replica: what the proxy sent there and what came of it."""
    lines = [f"{'replica':<18}{'attempts':>9}{'answered':>10}{'retried':>9}{'opened':>8}{'reused':>8}  what happened"]
    for index, replica in enumerate(replicas):
        name = f"127.0.0.1:{replica.port}"
        cells = counts_of(metrics, backend=name)
        told = "; ".join(act.text for act in STORY if act.replica == index)
        lines.append(f"{index + 1}  {name:<15}" + cells + (f"  {told}" if told else ""))
    return [*lines, f"{'all':<18}" + counts_of(metrics)]


def counts_of(metrics: Metrics, **labels: str) -> str:
    """Return the cells of one replica, or of all."""
    attempts = metrics.total("upstream_attempts_total", **labels)
    answered = metrics.total("upstream_responses_total", code="200", **labels)
    opened = metrics.total("upstream_connections_opened_total", **labels)
    reused = metrics.total("upstream_connections_reused_total", **labels)
    share = f"{reused / (opened + reused):.0%}" if opened + reused else "-"
    return f"{attempts:>9.0f}{answered:>10.0f}{attempts - answered:>9.0f}{opened:>8.0f}{share:>8}"


def totals(outcomes: Outcomes) -> list[str]:
    """Return lines on retries, latency and what the proxy used."""
    figures = summarise(outcomes.book)
    requests = len(outcomes.book)
    retries = outcomes.metrics.by("retries_total", "reason")
    words = ", ".join(f"{name} {count:.0f}" for name, count in sorted(retries.items())) or "none"
    lines = [f"retries by reason  {words}"]
    for name, title in (("ttft", "first token"), ("e2el", "whole answer")):
        spread = figures["latency_ms"].get(name)
        if spread:
            lines.append(f"{title:<19}p50 {spread['median']:.0f} ms, p99 {spread['p99']:.0f} ms")
    share = outcomes.cpu_s / outcomes.elapsed_s
    lines.append(
        f"dd-proxy           {requests / outcomes.elapsed_s:.0f} requests/s, {share:.0%} of a core, "
        f"{outcomes.cpu_s / requests * 1e3:.2f} ms CPU per request, peak RSS {outcomes.peak_rss_bytes / 2**20:.0f} MiB"
    )
    return lines


def verdict(outcomes: Outcomes) -> tuple[bool, str]:
    """Tell whether all is well, and say so in one line."""
    requests, answered = len(outcomes.book), outcomes.answered
    cut = outcomes.book.retries[Outcome.TRUNCATED.label]
    metrics = outcomes.metrics
    whole = metrics.total("responses_total", code="200") - metrics.total("incomplete_responses_total")
    again = f" ({cut} cut short with the killed replica after having begun, then asked for again)" if cut else ""
    if answered < requests:
        worst = ", ".join(f"{reason} ({count})" for reason, count in outcomes.book.reasons.most_common(3))
        return False, f"LOST: {requests - answered} of {requests} requests had no whole answer: {worst or 'see above'}"
    if whole != answered:
        return False, f"COUNTERS DISAGREE: dd-proxy counts {whole:.0f} whole answers, the clients {answered}"
    return True, f"Nothing was lost: all {requests} requests were answered whole{again}."


def run(requests: int, users: int) -> bool:
    """Run the demo; tell whether nothing was lost. Raises StartError."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        directory = Path(folder)
        replicas = start_fakes(stack, directory, REPLICAS, *REPLICA_OPTIONS)
        proxy = stack.enter_context(DdProxy(directory / "proxy.log", [replica.urls[0] for replica in replicas]))
        proxy.wait_ready()
        say(
            f"dd-proxy at {proxy.url} (status page http://{proxy.line['metrics']}/) before {REPLICAS} fake replicas; "
            f"{requests} requests from {users} clients, half of them streamed"
        )
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            outcomes = runner.run(drive(proxy, replicas, requests, users))
        well, line = verdict(outcomes)
        print("\n".join(["", *replica_rows(outcomes.metrics, replicas), *totals(outcomes), "", line]))
        if proxy.stop() != 0:
            well = False
            print("dd-proxy did not stop cleanly")
    return well


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=6000, help="how many (default %(default)s)")
    parser.add_argument("--users", type=int, default=48, help="clients at a time (default %(default)s)")
    args = parser.parse_args()
    try:
        return 0 if run(args.requests, args.users) else 1
    except (StartError, OSError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
