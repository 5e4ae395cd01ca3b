"""The controller of one attempt: brings it up, waits for the first cause of its end, takes it down, and judges.

Owns that order and the entry point of `dd-proxy run`. The parts do the work: opening, startup, teardown, verdict,
report.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from runtime import outputs, report, slurm
from runtime.attempt import Attempt
from runtime.journal import Journal
from runtime.layout import AttemptDir, LayoutError
from runtime.opening import AlreadyWon, OpeningError, fresh_readiness, open_local, open_slurm
from runtime.outputs import Inspection
from runtime.placement import PlacementError, place, place_locally
from runtime.plan import Plan
from runtime.planfile import read_resolved
from runtime.preflight import StartupError
from runtime.progress import follow, say
from runtime.signals import SignalInbox
from runtime.site import Site
from runtime.site_local import LocalSite
from runtime.site_slurm import SlurmSite
from runtime.slurm import SlurmError
from runtime.startup import Startup
from runtime.state import (
    AttemptRecord,
    Classification,
    ControllerRef,
    HealthFailure,
    JobRef,
    StateError,
    WinnerRecord,
    read_attempt,
    read_readiness,
    utc_now,
    write_json,
)
from runtime.steps import Role, stats_path
from runtime.teardown import Teardown
from runtime.verdict import (
    Cause,
    Facts,
    JobView,
    Trigger,
    Verdict,
    describe_failure,
    judge,
    name_cause,
    needs_slurm,
    slurm_name,
)

# A client that lost its endpoint may end before the endpoint's own end has been seen.
LOSS_GRACE_S = 0.5
LOOK_AGAIN_S = (0.3, 0.7)
READING_S = 2.0
PATIENCE_S = 1.0  # with whoever reads the last lines
_EXIT_REASONS = {
    signal.SIGTERM: "cancelled by SIGTERM",
    signal.SIGINT: "cancelled by SIGINT",
    signal.SIGHUP: "cancelled by SIGHUP",
    signal.SIGQUIT: "cancelled by SIGQUIT",
}


class Controller:
    """Runs one attempt from its first step to its verdict."""

    def __init__(self, attempt: Attempt, environ: dict[str, str]) -> None:
        self._attempt = attempt
        self._environ = environ
        self._started = time.monotonic()
        self._inspecting: asyncio.Task[Inspection] | None = None
        self._stop_reading = threading.Event()
        self.summary: list[str] = []

    async def run(self) -> Verdict:
        """Run the attempt to its terminal state. Raises OSError when its state cannot be written."""
        attempt = self._attempt
        attempt.journal.run(ControllerRef(attempt.site.host, os.getpid()), attempt.site.job)
        cause = await self._name(await self._live())
        attempt.journal.event("ending", classification=cause.named, reason=cause.reason)
        if cause.failure is not None and cause.named in (Classification.SERVICE_LOST, Classification.NODE_LOST):
            self._record_loss(cause.failure)
        if cause.named is None:  # the client exited 0: every output has to be read, however long that takes
            self._inspecting = asyncio.create_task(self._inspect())
        await Teardown(attempt, cause).run()
        return await self._conclude(cause)

    def _record_loss(self, failure: HealthFailure) -> None:
        try:
            self._attempt.journal.lose(failure)
        except OSError as error:  # the steps must be taken down all the same
            self._attempt.journal.event("readiness_failed", reason=str(error))

    def signalled(self, number: int) -> None:
        """Take a signal. Safe at every moment and any number of times: only the first cause of an end counts."""
        attempt = self._attempt
        attempt.journal.event("signal_received", signal=signal.Signals(number).name)
        if number == signal.SIGUSR2:
            return
        if attempt.ended.done():
            attempt.watching = False  # probes count no more, whatever ended the attempt
        elif number == signal.SIGUSR1:
            attempt.end(Cause(Trigger.TIME_LIMIT, "the job's time limit is near"))
        else:
            attempt.end(Cause(Trigger.SIGNALLED, _EXIT_REASONS[signal.Signals(number)], signal=number))

    async def _live(self) -> Cause:
        """Bring the attempt up and wait for the first cause of its end."""
        attempt = self._attempt
        startup = asyncio.create_task(Startup(attempt, self._environ).run())
        either: tuple[asyncio.Future[Any], ...] = (startup, attempt.ended)
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if startup.done():
            try:
                startup.result()
            except StartupError as error:
                attempt.end(Cause(Trigger.STARTUP_FAILED, str(error)))
            except Exception as error:  # noqa: BLE001  a fault of the controller still takes the steps down in order
                traceback.print_exc()
                attempt.end(Cause(Trigger.INTERNAL_ERROR, f"{type(error).__name__}: {error}"))
        cause = await attempt.ended
        startup.cancel()
        await asyncio.gather(startup, return_exceptions=True)
        return cause

    async def _name(self, cause: Cause) -> Cause:
        """Find out what the site had to do with the end, and name it."""
        if cause.trigger is Trigger.CLIENT_EXITED and cause.exit_code != 0:
            cause = await self._earlier_loss(cause)
        if not needs_slurm(cause):
            return name_cause(cause, None)
        node = next((node for failure, node in self._attempt.losses if failure == cause.failure), None)
        return name_cause(
            cause, await self._look(node, cause.trigger in (Trigger.SERVICE_LOST, Trigger.STARTUP_FAILED))
        )

    async def _look(self, node: str | None, unexplained: bool) -> JobView | None:
        """Ask the site what it does, and again for a second when that does not explain a step's end.

        The launcher of a step on a lost node ends before Slurm shows what happened to node and job.
        """
        attempt = self._attempt
        view = await attempt.view(node)
        for pause_s in LOOK_AGAIN_S if unexplained and attempt.site.job is not None else ():
            if view is not None and slurm_name(view) is not None:
                break
            await asyncio.sleep(pause_s)
            view = await attempt.view(node)
        return view

    async def _earlier_loss(self, cause: Cause) -> Cause:
        attempt = self._attempt
        services = {step.exited for step in attempt.of(Role.REPLICA, Role.ENDPOINT)}
        if not attempt.losses and services:
            await asyncio.wait(services, timeout=LOSS_GRACE_S, return_when=asyncio.FIRST_COMPLETED)
        if not attempt.losses:
            return cause
        failure = attempt.losses[0][0]
        return Cause(Trigger.SERVICE_LOST, f"{describe_failure(failure)} ({cause.reason})", failure=failure)

    async def _inspect(self) -> Inspection:
        """Read the outputs as the client left them, beside the cleanup: a mismatch is known before any late loss."""
        attempt = self._attempt
        wanted = attempt.plan.client.outputs
        return await asyncio.to_thread(outputs.inspect, attempt.directory.path, wanted, self._stop_reading)

    async def _inspect_briefly(self) -> Inspection:
        """Read the outputs for the report of an attempt that failed anyway: its verdict must not come too late."""
        reading = asyncio.create_task(self._inspect())
        await asyncio.wait({reading}, timeout=READING_S)
        self._stop_reading.set()
        return await reading

    async def _conclude(self, cause: Cause) -> Verdict:
        """Judge, report, publish and close, in that order."""
        attempt = self._attempt
        inspection = await (self._inspecting or self._inspect_briefly())
        verdict = judge(Facts(cause, attempt.journal.readiness.health_failure, inspection.problems))
        closed = attempt.journal.closed_elsewhere()
        if closed is not None and closed.classification is not None:
            attempt.journal.event("closed_elsewhere", classification=closed.classification, own=verdict.classification)
            return Verdict(closed.classification, f"closed from outside: {closed.reason}", verdict.exit_code or 1)
        if attempt.steps:
            self._write_report(verdict, inspection)
        if verdict.classification is Classification.SUCCEEDED:
            verdict = self._publish(verdict, inspection)
        try:
            attempt.journal.stop_readiness()
        except OSError as error:  # the verdict matters more
            attempt.journal.event("readiness_failed", reason=str(error))
        attempt.journal.end(verdict.classification, verdict.reason)
        attempt.journal.event("verdict", classification=verdict.classification, reason=verdict.reason)
        return verdict

    def _publish(self, verdict: Verdict, inspection: Inspection) -> Verdict:
        record = self._attempt.journal.attempt
        winner = WinnerRecord(record.run, record.attempt, inspection.found, utc_now())
        try:
            write_json(self._attempt.directory.winner_json, winner, once=True)
        except OSError as error:
            reason = f"winner.json cannot be published: {error.strerror}"
            return Verdict(Classification.INTERNAL_ERROR, reason, 1)
        return verdict

    def _write_report(self, verdict: Verdict, inspection: Inspection) -> None:
        attempt = self._attempt
        elapsed_s = round(time.monotonic() - self._started, 3)
        found = report.report_outputs(attempt.plan.client.outputs, inspection)
        endpoints = tuple(
            report.read_endpoint(one.name, stats_path(attempt.directory, one.endpoint_name()))
            for one in attempt.plan.deployments
        )
        rate = report.per_minute(found, elapsed_s)
        written = report.Report(verdict.classification, verdict.reason, elapsed_s, found, rate, endpoints)
        record = attempt.journal.attempt
        self.summary = report.summary(written, record.run, record.attempt)
        try:
            write_json(attempt.directory.report_json, written)
        except OSError as error:
            attempt.journal.event("report_failed", reason=str(error))


async def _conduct(opened: tuple[AttemptDir, AttemptRecord, Plan], environ: dict[str, str], inbox: SignalInbox) -> int:
    """Run an opened attempt on its site and return the exit code."""
    directory, record, plan = opened
    fresh_readiness(plan, directory)
    readiness = read_readiness(directory.path)
    assert readiness is not None
    journal = Journal(directory, record, readiness)
    site: Site = LocalSite(directory, environ) if record.job is None else SlurmSite(directory, record.job, environ)
    attempt = Attempt(plan, site, journal, place_locally(plan) if record.job is None else place(plan))
    controller = Controller(attempt, environ)
    inbox.attach(asyncio.get_running_loop(), controller.signalled)
    progress = asyncio.create_task(follow(directory, plan, sys.stderr)) if record.job is None else None
    try:
        verdict = await controller.run()
    finally:
        if progress is not None:
            progress.cancel()
            await asyncio.gather(progress, return_exceptions=True)
        await site.close()
        journal.close()
    for line in controller.summary or [
        f"{record.run} attempt {record.attempt}: {verdict.classification}: {verdict.reason}"
    ]:
        with suppress(OSError):  # nobody reads any more
            say(sys.stderr, f"{line}\n", PATIENCE_S)
    return verdict.exit_code


def main_run(*, attempt_dir: Path | None, plan: Plan | None, local: bool) -> int:
    """Run an attempt to its end: of a Slurm job in `attempt_dir`, or of `plan` on this machine.

    Returns 0 when it succeeded, 1 when it failed, 128 + N when signal N cancelled it.
    """
    inbox = SignalInbox()
    inbox.install()
    try:
        if local and plan is not None:
            directory, plan, values = open_local(plan)
            environ = {**os.environ, **values}
            print(json.dumps({"run_dir": str(directory.run_dir), "attempt_dir": str(directory.path)}), flush=True)
            record = read_attempt(directory.path)
            if record is None:
                raise OpeningError(f"{directory.attempt_json} is gone")
        elif attempt_dir is not None:
            directory, record = open_slurm(AttemptDir(attempt_dir.absolute()), _this_job(os.environ), _lost_nodes)
            plan, environ = read_resolved(directory), dict(os.environ)
        else:
            raise OpeningError("nothing to run: give --attempt-dir, or a plan with --local")
        return _run_to_the_end((directory, record, plan), environ, inbox)
    except AlreadyWon as won:
        print(f"dd-proxy run: {won}", file=sys.stderr)
        return 0
    except (LayoutError, OpeningError, PlacementError, StateError, OSError, ValueError) as error:
        print(f"dd-proxy run: {error}", file=sys.stderr)
        return 1


def _run_to_the_end(opened: tuple[AttemptDir, AttemptRecord, Plan], environ: dict[str, str], inbox: SignalInbox) -> int:
    with asyncio.Runner() as runner:
        try:
            return runner.run(_conduct(opened, environ, inbox))
        finally:
            inbox.finish()


def _this_job(environ: Mapping[str, str]) -> JobRef:
    job_id = environ.get("SLURM_JOB_ID")
    if not job_id:
        raise OpeningError("SLURM_JOB_ID is not set: dd-proxy run --attempt-dir belongs into a Slurm job")
    return JobRef(job_id, int(environ.get("SLURM_RESTART_COUNT") or 0))


def _lost_nodes(names: tuple[str, ...]) -> tuple[str, ...]:
    """Ask which nodes are lost; a Slurm that does not answer lost none."""
    try:
        return tuple(name for name, node in slurm.show_nodes(names).items() if node.lost)
    except SlurmError:
        return ()
