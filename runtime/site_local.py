"""This machine as the place of an attempt: steps are plain child processes.

Owns their process groups and their death with the controller. Keeps the order of Slurm, where a step ends with all its
processes: whatever a step's first process leaves in its group is killed when that one ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from runtime import steps
from runtime.launcher import Feed, Launcher, Step, StepError
from runtime.layout import AttemptDir
from runtime.own import own_command
from runtime.services import Node
from runtime.site import Refusal
from runtime.state import JobRef
from runtime.steps import StepSpec
from runtime.verdict import JobView

LOCAL_ADDRESS = "127.0.0.1"


class LocalSite:
    """Runs steps on this machine. `environ` is the environment of the attempt, with the plan's own values."""

    def __init__(self, attempt: AttemptDir, environ: dict[str, str]) -> None:
        self._attempt = attempt
        self._environ = environ
        self._launcher = Launcher(attempt.logs)
        self._own = own_command()
        self._warden = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("warden.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def job(self) -> JobRef | None:
        """Say that there is no Slurm job."""
        return None

    @property
    def host(self) -> str:
        """Name this machine."""
        return os.uname().nodename

    async def nodes(self) -> tuple[Node, ...]:
        """Give this machine as the only node."""
        return (Node(self.host, LOCAL_ADDRESS),)

    async def time_left_s(self) -> float | None:
        """Say that nothing limits a local run."""
        return None

    async def kill_wait_s(self) -> float | None:
        """Say that nobody sends KILL."""
        return None

    def start(self, spec: StepSpec, nodes: tuple[Node, ...], feed: Feed | None) -> Step:
        """Start a step in a process group of its own. Raises StepError, KeyError for a missing variable."""
        environment = steps.launcher_environment(self._environ, spec)
        environment |= steps.local_gpu_environment(self._environ, spec)
        arguments = steps.local_arguments(spec, self._attempt.step_json(spec.name), self._own, os.getpid())
        step = self._launcher.start(spec, arguments, environment, feed)
        self._tell_warden(f"+{step.process.pid}\n")
        step.exited.add_done_callback(lambda _: self._sweep(step))
        return step

    async def term(self, step: Step) -> Refusal | None:
        """Send TERM to the step and all processes it started, as Slurm does."""
        return None if self._signal(step, signal.SIGTERM) else Refusal("it is gone")

    def force(self, step: Step) -> None:
        """Kill the step and all processes it started."""
        self._signal(step, signal.SIGKILL)

    async def view(self, node: str | None) -> JobView | None:
        """Say that there is nothing to ask."""
        return None

    async def close(self) -> None:
        """Let the warden end; it finds nothing to kill after an orderly cleanup."""
        if self._warden.stdin is not None:
            with suppress(BrokenPipeError):
                self._warden.stdin.close()
        await asyncio.to_thread(self._warden.wait)

    def _signal(self, step: Step, number: signal.Signals) -> bool:
        try:
            os.killpg(step.process.pid, number)
        except ProcessLookupError:
            return False
        return True

    def _sweep(self, step: Step) -> None:
        # The group's number cannot have been given away while a process of the group lives; an empty group is no group.
        self._signal(step, signal.SIGKILL)
        self._tell_warden(f"-{step.process.pid}\n")

    def _tell_warden(self, line: str) -> None:
        if self._warden.stdin is None:
            raise StepError("the warden has no pipe")
        with suppress(BrokenPipeError):  # somebody killed it: steps still die with the controller themselves
            self._warden.stdin.write(line.encode())
            self._warden.stdin.flush()
