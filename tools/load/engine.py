"""Run a load: send jobs when they are due, try again where the policy says so, write one row each into the book.

Owns the tasks of a run and their end (by count, by time, by a stop from outside). Latency counts from the moment a
request was due, not from when it was sent, so a stalled endpoint or generator cannot hide its stall. Knows no file and
no figure.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import deque
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from time import monotonic
from typing import Any

from tools.load.book import NOT_A_TIME, Book, Row, Sample
from tools.load.client import Client
from tools.load.jobs import Job, Jobs
from tools.load.pace import Leg, arrivals
from tools.load.policy import AimdAdmission, RetryPolicy, Ticket, retry_after
from tools.load.wire import Answer, Outcome, ResponseReader

SAMPLE_INTERVAL = 0.1
LONG_PAUSE = 0.01


@dataclass(frozen=True)
class Plan:
    """How much, how fast, how long; in seconds. Exactly one of `users`, `legs` and `replay` drives the run."""

    users: int = 0
    legs: tuple[Leg, ...] = ()
    replay: float = 0.0
    burstiness: float | None = None
    requests: int = 0
    duration: float = 0.0
    warmup: float = 0.0
    max_in_flight: int = 0
    think: float = 0.0
    ramp_up: float = 0.0
    grace: float = 30.0
    expect_tokens: bool = False
    seed: int = 0


class Gate:
    """Let requests pass in order of arrival as the admission controller allows."""

    def __init__(self, admission: AimdAdmission) -> None:
        self.admission = admission
        self.loop = asyncio.get_running_loop()
        self.waiters: deque[asyncio.Future[Ticket]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    async def enter(self) -> Ticket:
        """Wait for leave to send; a cancelled wait gives back what it may have been given."""
        waiter: asyncio.Future[Ticket] = self.loop.create_future()
        self.waiters.append(waiter)
        self.pump()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.admission.failed(waiter.result())
                self.pump()
            raise

    def pump(self) -> None:
        """Admit as many as the limit allows; look again when the cooldown ends."""
        now = monotonic()
        while self.waiters:
            if self.waiters[0].done():
                self.waiters.popleft()
                continue
            ticket = self.admission.admit(now)
            if ticket is None:
                break
            self.waiters.popleft().set_result(ticket)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.waiters and self.admission.blocked_until > now:
            self._timer = self.loop.call_later(self.admission.blocked_until - now + 0.001, self.pump)

    def leave(self, ticket: Ticket, answer: Answer | None) -> None:
        """Report how the admitted request ended (None: it was abandoned)."""
        now = monotonic()
        if answer is not None and answer.status == 429:
            self.admission.refused(ticket, now, retry_after(answer.headers, time.time()))
        elif answer is not None and answer.outcome is Outcome.OK:
            self.admission.succeeded(ticket, now)
        else:
            self.admission.failed(ticket)
        self.pump()


class Engine:
    """One run against one endpoint."""

    def __init__(
        self, client: Client, jobs: Jobs, plan: Plan, policy: RetryPolicy, admission: AimdAdmission | None = None
    ) -> None:
        self.client = client
        self.jobs = jobs
        self.plan = plan
        self.policy = policy
        self.gate = Gate(admission) if admission else None
        self.book = Book()
        self.started = 0
        self.start = 0.0
        self.running: set[asyncio.Task[None]] = set()
        self._unsent: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()
        self._kill = asyncio.Event()
        self._fault: BaseException | None = None
        self._slots = asyncio.Semaphore(plan.max_in_flight) if plan.max_in_flight and not plan.users else None

    def stop(self) -> None:
        """Start nothing more; what runs may finish within the grace. A second call ends that too."""
        if self._stop.is_set():
            self._kill.set()
        self._stop.set()

    @property
    def stopping(self) -> bool:
        """Whether nothing more will be started."""
        return self._stop.is_set()

    def now(self) -> float:
        """Seconds since the start of the run."""
        return monotonic() - self.start

    async def run(self) -> Book:
        """Drive the whole run and return its book; after a cancellation every connection is closed."""
        self.start = monotonic()
        book = self.book
        book.started_wall = time.time()
        book.counted_from = self.plan.warmup
        cpu = time.process_time()
        watch = asyncio.create_task(self._watch())
        drive = asyncio.create_task(self._drive())
        try:
            await self._until_over(drive)
            book.counted_to = self.now()
            self._stop.set()
            await self._finish(drive)
        finally:
            for task in (watch, drive, *self.running):
                task.cancel()
            await asyncio.gather(watch, drive, *self.running, return_exceptions=True)
            self.client.close()
        if self._fault is not None:
            raise self._fault
        book.elapsed = self.now()
        book.cpu_seconds = time.process_time() - cpu
        book.opened, book.reused, book.resent = self.client.opened, self.client.reused, self.client.resent
        if self.gate:
            book.decreases, book.increases = self.gate.admission.decreases, self.gate.admission.increases
        return book

    async def _until_over(self, drive: asyncio.Task[None]) -> None:
        """Return when everything was sent and answered, the time is up, or a stop came."""
        stop = asyncio.create_task(self._stop.wait())
        limit = self.plan.warmup + self.plan.duration if self.plan.duration else None
        try:
            await asyncio.wait({drive, stop}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
        if drive.done():
            drive.result()

    async def _finish(self, drive: asyncio.Task[None]) -> None:
        drive.cancel()
        self.book.unsent += sum(task.cancel() for task in self._unsent)
        kill = asyncio.create_task(self._kill.wait())
        try:
            ends: list[asyncio.Future[Any]] = [asyncio.gather(*self.running, return_exceptions=True), kill]
            await asyncio.wait(ends, timeout=self.plan.grace, return_when=asyncio.FIRST_COMPLETED)
        finally:
            kill.cancel()
        self.client.give_up("the run was over")
        if self.running:
            await asyncio.wait(set(self.running), timeout=SAMPLE_INTERVAL)  # those that were given up write their rows

    async def _drive(self) -> None:
        plan = self.plan
        if plan.users:
            for index in range(plan.users):
                if plan.ramp_up and index:
                    await asyncio.sleep(plan.ramp_up / plan.users)
                self._spawn(self._user())
        else:
            await self._pace(self._offsets())
        while self.running:
            await asyncio.wait(set(self.running))

    def _offsets(self) -> Iterator[tuple[float, Job]]:
        if not self.plan.replay:
            for due in arrivals(self.plan.legs, self.plan.burstiness, self.plan.seed):
                yield due, next(self.jobs)
            return
        first = None
        for job in itertools.islice(self.jobs, len(self.jobs.trace or ())):
            at = job.at or 0.0
            first = at if first is None else first
            yield (at - first) / self.plan.replay, job

    async def _pace(self, due_jobs: Iterator[tuple[float, Job]]) -> None:
        for due, job in due_jobs:
            if self.plan.requests and self.started >= self.plan.requests:
                return
            if due > self.now():
                await self._until(due)
            elif self.started % 32 == 0:
                await asyncio.sleep(0)
            if self._slots is not None:
                await self._slots.acquire()
            self.started += 1
            self._spawn(self._perform(job, due))

    async def _until(self, due: float) -> None:
        """Return when a request is due, never before: event loops round their timers, and may even wake early.

        After a long pause the last stretch is spent looking at the clock, which costs little then and makes the send
        exact.
        """
        exact = due - self.now() > LONG_PAUSE
        while (ahead := due - self.now()) > 0:
            if not exact:
                await asyncio.sleep(ahead + 0.0005)
            else:
                await asyncio.sleep(ahead - 0.0015 if ahead > 0.002 else 0.0)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self.running.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Let a fault of the generator itself end the run instead of passing for a quiet endpoint."""
        self.running.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._fault = self._fault or task.exception()
            self._stop.set()
            self._kill.set()

    async def _user(self) -> None:
        plan = self.plan
        while not self.stopping and not (plan.requests and self.started >= plan.requests):
            self.started += 1
            await self._perform(next(self.jobs), self.now())
            if plan.think:
                await self._idle(plan.think)

    async def _idle(self, seconds: float) -> None:
        """Sleep between requests; ends at once when the run stops."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop.wait()

    async def _perform(self, job: Job, due: float) -> None:
        counted = due >= self.plan.warmup
        trail = _Trail(due)
        try:
            await self._tries(job, trail, counted)
        finally:
            if self._slots is not None:
                self._slots.release()
            if trail.tries:
                self.book.add(self._row(job, trail, counted))

    async def _tries(self, job: Job, trail: _Trail, counted: bool) -> None:
        """Bring one request to its end; with an admission controller, a refused one queues up again."""
        while True:
            ticket = await self._admission(trail) if self.gate else None
            try:
                answer = await self._send(job, trail, counted)
            finally:
                if self.gate and ticket is not None:
                    self.gate.leave(ticket, trail.answer)
            if self.gate is None or answer.status != 429:
                return
            self._retry(answer)
            trail.answer = None

    async def _send(self, job: Job, trail: _Trail, counted: bool) -> Answer:
        """Send until the policy is content or gives up; the answer is on the trail only once it is final."""
        gaps = self.book.gaps if counted else None
        expect_done = job.stream and self.jobs.template.expects_done
        for failures in itertools.count(1):
            trail.tries += 1
            if trail.tries == 1:
                trail.sent = self.now()
            answer = await self.client.exchange(job.request, lambda: ResponseReader(expect_done, gaps), job.manners)
            self._judge(job, answer)
            wait = None
            if answer.outcome is not Outcome.OK:
                wait = self.policy.delay(answer, failures, time.time())
            if wait is None:
                break
            self._retry(answer)
            await asyncio.sleep(wait)
        trail.answer = answer
        return answer

    async def _admission(self, trail: _Trail) -> Ticket:
        assert self.gate is not None
        task = asyncio.current_task()
        assert task is not None
        if not trail.tries:
            self._unsent.add(task)
        try:
            return await self.gate.enter()
        finally:
            self._unsent.discard(task)

    def _judge(self, job: Job, answer: Answer) -> None:
        if answer.outcome is Outcome.OK and self.plan.expect_tokens and answer.tokens != job.tokens_out:
            answer.outcome = Outcome.SHORT
            answer.reason = f"{answer.tokens} tokens instead of {job.tokens_out}"
        self.book.tries[answer.outcome.label, answer.status] += 1
        if answer.framed and answer.outcome in (Outcome.TRUNCATED, Outcome.SHORT):
            self.book.looked_whole += 1
        if answer.status == 429 and b"retry-after" not in answer.headers:
            self.book.bare_refusals += 1
        if answer.reason:
            self.book.reasons[f"{answer.outcome.label}: {answer.reason}"] += 1

    def _retry(self, answer: Answer) -> None:
        reason = f"http_{answer.status}" if answer.outcome is Outcome.HTTP_ERROR else answer.outcome.label
        self.book.retries[reason] += 1
        if answer.status == 429:
            self.book.refused_at.append(self.now())

    def _row(self, job: Job, trail: _Trail, counted: bool) -> Row:
        answer = trail.answer
        first, tokens, outcome, status = NOT_A_TIME, 0, Outcome.UNFINISHED, 0
        if answer is not None:
            outcome, status, tokens = answer.outcome, answer.status, answer.tokens
            if answer.meter is not None and answer.meter.events:
                first = answer.meter.first_at - self.start
        return Row(
            trail.due, trail.sent, first, self.now(), job.tokens_in, tokens, outcome, status, trail.tries, counted
        )

    async def _watch(self) -> None:
        """Sample the run, and measure how late this very loop wakes up: the generator's own lag."""
        while True:
            wanted = monotonic() + SAMPLE_INTERVAL
            await asyncio.sleep(SAMPLE_INTERVAL)
            self.book.lag.add(monotonic() - wanted)
            gate = self.gate
            limit, waiting, blocked = 0, 0, False
            if gate is not None:
                limit, waiting = gate.admission.limit, len(gate.waiters)
                blocked = gate.admission.blocked_until > monotonic()
            self.book.samples.append(Sample(self.now(), len(self.client.busy), waiting, limit, blocked))


@dataclass
class _Trail:
    """What happened to one request so far; `answer` is its final one."""

    due: float
    sent: float = 0.0
    tries: int = 0
    answer: Answer | None = None
