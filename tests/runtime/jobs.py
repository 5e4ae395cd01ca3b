"""Submitted runs for tests on the real Slurm, watched from outside.

Owns the submission, the attempts of a run and the proof that its job left no process and no step.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from runtime.own import own_command
from tests.runtime.lifecycle import DEADLINE_S, Attempt, Scenario
from tests.runtime.minislurm import MiniSlurm, wait_until

ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")


class SlurmRun:
    """`dd-proxy submit PLAN` and what becomes of it."""

    def __init__(self, slurm: MiniSlurm, plan: Path) -> None:
        self.slurm = slurm
        self._folder = plan.parent
        said = json.loads(self.command("submit", str(plan)).stdout)
        self.job_id = str(said["job_id"])
        self.run_dir = Path(said["run_dir"])
        self.attempt = Attempt(Path(said["attempt_dir"]))

    def command(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a dd-proxy command against the cluster."""
        done = subprocess.run(
            [*own_command(), *arguments],
            cwd=self._folder,
            env=self.slurm.environment(),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        assert not check or done.returncode == 0, done.stderr
        return done

    def next_attempt(self) -> Attempt:
        """Let a requeued job start at once and give its second attempt."""
        self.slurm.wait_job(self.job_id, "PENDING")
        self.slurm.hasten(self.job_id)
        second = Attempt(self.run_dir / "attempt-2")
        wait_until((second.path / "attempt.json").exists, DEADLINE_S, (self.run_dir / "slurm.out").read_text)
        return second

    def end(self, classification: str, *, attempt: Attempt | None = None) -> str:
        """Wait for the end of an attempt and of its job, check both, and return the recorded reason."""
        ended = attempt or self.attempt
        record = ended.wait_state("succeeded", "failed", "cancelled")
        assert record["classification"] == classification, ended.story()
        if self.slurm.job(self.job_id)["JobState"] != "PENDING":
            self.slurm.wait_job(self.job_id, *ENDED, "PENDING")
        self.assert_nothing_left()
        assert not ended.events("cleanup_failed"), ended.story()
        return str(record["reason"])

    def assert_nothing_left(self) -> None:
        """Prove that no process and no step of the job lives any more."""
        wait_until(
            lambda: not self.slurm.job_processes() and not self.slurm.step_daemons(),
            10,
            lambda: f"left: {self.slurm.job_processes()} {self.slurm.step_daemons()}",
        )
        assert "RUNNING" not in self.slurm.run("scontrol", "-o", "show", "step", self.job_id, check=False)

    def launcher(self, step: str) -> int:
        """Find the srun of a step."""
        for pid in _pids():
            words = _command(pid)
            mine = str(self.attempt.path) in " ".join(words)
            if words and words[0].endswith("srun") and mine and f"--job-name={step}" in words:
                return pid
        raise AssertionError(f"no launcher of {step}")

    def steps(self) -> dict[str, dict[str, str]]:
        """List what Slurm says about each running step, by name."""
        found = {}
        for line in self.slurm.run("scontrol", "-o", "show", "step", self.job_id).splitlines():
            fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
            found[fields["Name"]] = fields
        return found

    def cancel(self) -> subprocess.CompletedProcess[str]:
        """Run `dd-proxy cancel`."""
        return self.command("cancel", str(self.run_dir), check=False)

    def kill_step(self, step: str, number: int) -> None:
        """Signal the recorded process of a step, as a fault of its own would."""
        os.kill(self.attempt.pid(step), number)


def scenario(**changes: object) -> Scenario:
    """Give a scenario on all three nodes with a GPU for each replica."""
    wide: dict[str, object] = {"nodes": 3, "gpus_per_node": 2, "gpus_per_replica": 1, "replicas": 5, **changes}
    return Scenario(**wide)  # type: ignore[arg-type]  # the fields are those of the record


@contextmanager
def lost_node(slurm: MiniSlurm, node: str) -> Iterator[None]:
    """Take a node away as a crash does: its daemon is silent and Slurm is told that it is down."""
    daemon = next(pid for pid in _pids() if _command(pid)[:4] == ["slurmd", "-D", "-N", node] and _is_of(pid, slurm))
    os.kill(daemon, signal.SIGSTOP)
    try:
        slurm.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
        yield
    finally:
        os.kill(daemon, signal.SIGCONT)


def _is_of(pid: int, slurm: MiniSlurm) -> bool:
    return str(slurm.config) in _command(pid)


def _pids() -> list[int]:
    return [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()]


def _command(pid: int) -> list[str]:
    try:
        return [word.decode(errors="replace") for word in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")]
    except OSError:
        return []


StartSlurm = Callable[[Scenario], SlurmRun]
