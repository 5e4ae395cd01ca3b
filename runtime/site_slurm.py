"""A Slurm allocation as the place of an attempt: steps are `srun` children of the batch process.

Owns how a step is reached under Slurm: TERM goes to the task through scancel after its recorded identity was checked
against the allocation; the launcher is signalled only to kill, because Slurm turns any signal to it into SIGKILL of the
task. Refuses to know what the steps are for.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import TypeVar

from runtime import slurm, steps
from runtime.identity import mismatch, read_identity
from runtime.launcher import Feed, Launcher, Step
from runtime.layout import AttemptDir
from runtime.own import own_command
from runtime.parse import JobInfo
from runtime.services import Node
from runtime.site import Refusal, SiteError
from runtime.slurm import Failure, SlurmError
from runtime.state import JobRef, StateError
from runtime.steps import StepSpec
from runtime.verdict import JobView

VIEW_TIMEOUT_S = 5.0
TRIES, RETRY_PAUSE_S = 3, 0.1
# States in which a job runs as it should. Every other one means that Slurm is ending it, or has.
_LIVE = frozenset({"RUNNING", "CONFIGURING", "SUSPENDED", "RESIZING", "SIGNALING", "STAGE_OUT"})

_Result = TypeVar("_Result")


class SlurmSite:
    """Runs steps in the allocation of this batch process."""

    def __init__(self, attempt: AttemptDir, job: JobRef, environ: dict[str, str]) -> None:
        self._attempt = attempt
        self._job = job
        self._environ = environ
        self._launcher = Launcher(attempt.logs)
        self._own = own_command()
        self._names: tuple[str, ...] = ()

    @property
    def job(self) -> JobRef | None:
        """Give the job and its restart count."""
        return self._job

    @property
    def host(self) -> str:
        """Name the node that the batch process runs on."""
        return self._environ.get("SLURMD_NODENAME") or os.uname().nodename

    async def nodes(self) -> tuple[Node, ...]:
        """List the allocation's nodes, the one of the batch process first, with numeric addresses.

        Addresses are looked up here, on the head node: a node's own idea of its name may be a loopback address.
        Raises SiteError.
        """
        node_list = self._environ.get("SLURM_JOB_NODELIST")
        if not node_list:
            raise SiteError("SLURM_JOB_NODELIST is not set: dd-proxy run --attempt-dir belongs into a Slurm job")
        names = await self._ask(slurm.hostnames, node_list)
        found = await self._ask(slurm.show_nodes, names)
        names = tuple(sorted(names, key=lambda name: name != self.host))  # stable: the others keep their order
        self._names = names
        return tuple([Node(name, await _resolve(name, found[name].address)) for name in names])

    async def time_left_s(self) -> float | None:
        """Tell the seconds until the job's time limit; None without one. Raises SiteError."""
        job = await self._ask(slurm.show_job, self._job.id)
        if job is None or job.end_time is None:
            return None
        with suppress(ValueError):
            return datetime.fromisoformat(job.end_time).timestamp() - time.time()
        return None

    async def kill_wait_s(self) -> float | None:
        """Tell the site's KillWait. Raises SiteError."""
        return await self._ask(slurm.config_kill_wait)

    def start(self, spec: StepSpec, nodes: tuple[Node, ...], feed: Feed | None) -> Step:
        """Start a step through srun. Raises StepError, KeyError for a missing variable."""
        names = [node.name for node in nodes]
        arguments = steps.srun_arguments(spec, names, self._attempt.step_json(spec.name), self._own)
        return self._launcher.start(spec, arguments, steps.launcher_environment(self._environ, spec), feed)

    async def term(self, step: Step) -> Refusal | None:
        """Send TERM to the step's task, after its identity was found to be the one that Slurm shows."""
        try:
            async with asyncio.timeout(slurm.QUERY_TIMEOUT_S):
                return await asyncio.to_thread(_patiently, self._term, step)
        except TimeoutError:
            return Refusal("Slurm does not answer")
        except (SlurmError, StateError) as error:
            return Refusal(str(error))

    def _term(self, step: Step) -> Refusal | None:
        job = slurm.show_job(self._job.id)
        if job is None or not _is_live(job):
            return Refusal(
                f"job {self._job.id} is {job.state if job else 'gone'}: Slurm stops its steps", site_stops=True
            )
        identity = read_identity(self._attempt.step_json(step.name))
        if identity is None or identity.step_id is None:
            return Refusal("its task has not started yet")
        if (identity.job_id, identity.restart_count) != (self._job.id, self._job.restart_count):
            return Refusal(f"its recorded identity belongs to job {identity.job_id}, restart {identity.restart_count}")
        shown = slurm.show_step(f"{identity.job_id}.{identity.step_id}")
        if shown is None:
            return Refusal(f"step {identity.job_id}.{identity.step_id} is gone")
        difference = mismatch(identity, job, shown)
        if difference is not None:
            return Refusal(difference)
        try:
            slurm.signal_step(self._job.id, identity.step_id, "TERM")
        except SlurmError as error:
            # Slurm 22.05 sends the signal to every node of the job, and fails with the words of a node that knows
            # nothing of the step, although the task got it. A completing job fails alike, and stops its steps itself.
            if error.failure is not Failure.NOT_FOUND:
                raise
            again = slurm.show_job(self._job.id)
            if again is None or not _is_live(again):
                return Refusal(f"job {self._job.id} is ending: Slurm stops its steps", site_stops=True)
        return None

    def force(self, step: Step) -> None:
        """Kill the step's task: that is what a TERM to its launcher does, also while the job is completing."""
        with suppress(ProcessLookupError):
            step.process.terminate()

    async def view(self, node: str | None) -> JobView | None:
        """Ask what Slurm does to the job, and whether it lost `node`; None when it forgot the job. Raises SiteError."""
        try:
            async with asyncio.timeout(VIEW_TIMEOUT_S):
                return await asyncio.to_thread(_patiently, self._view, node)
        except TimeoutError:
            raise SiteError(f"Slurm did not answer within {VIEW_TIMEOUT_S:g} s") from None
        except SlurmError as error:
            raise SiteError(str(error)) from None

    def _view(self, node: str | None) -> JobView | None:
        job = slurm.show_job(self._job.id)
        if job is None:
            return None
        requeued = job.restarts > self._job.restart_count
        ending = requeued or not _is_live(job)
        asked = self._names if ending else [node] if node is not None else []
        lost = tuple(name for name, info in slurm.show_nodes(asked).items() if info.lost) if asked else ()
        return JobView(
            completing=ending,
            requeued=requeued,
            preempting=job.preempt_time is not None,
            node_down=(job.reason or "").startswith("NodeDown") or job.state == "NODE_FAIL",
            out_of_time=job.reason == "TimeLimit" or job.state == "TIMEOUT",
            lost_nodes=lost,
        )

    async def close(self) -> None:
        """Give back nothing: steps end with the job."""

    async def _ask(self, question: Callable[..., _Result], *arguments: object) -> _Result:
        try:
            return await asyncio.to_thread(_patiently, question, *arguments)
        except SlurmError as error:
            raise SiteError(str(error)) from None


def _patiently(question: Callable[..., _Result], *arguments: object) -> _Result:
    """Ask again when Slurm's command fails: a TERM to the batch step reaches every process of it, this command too."""
    for _ in range(TRIES - 1):
        try:
            return question(*arguments)
        except SlurmError:
            time.sleep(RETRY_PAUSE_S)
    return question(*arguments)


def _is_live(job: JobInfo) -> bool:
    return job.state in _LIVE


async def _resolve(name: str, address: str) -> str:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(10):
            found = await loop.getaddrinfo(address, None, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError):
        raise SiteError(f"{name}: its address {address} cannot be resolved on the head node") from None
    numeric = [str(entry[4][0]) for entry in found]
    return next((one for one in numeric if ":" not in one), numeric[0])
