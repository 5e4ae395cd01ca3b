"""What Slurm's commands print, as records.

Owns the reading of `scontrol`, `sbatch` and host list output. Pure: text in, records out; refuses to run anything.
Fields were read off Slurm 22.05.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_NOTHING = frozenset({"", "(null)", "None", "N/A", "Unknown"})


class ParseError(Exception):
    """Output of a Slurm command that does not look as it should."""


@dataclass(frozen=True, slots=True)
class JobInfo:
    """One line of `scontrol -o show job`. Times as Slurm prints them; None where Slurm has nothing to say.

    `state` is the JobState alone (PENDING, RUNNING, COMPLETING, CANCELLED …).
    """

    job_id: str
    state: str
    restarts: int
    reason: str | None
    preempt_time: str | None
    end_time: str | None
    node_list: str | None
    exit_code: str | None


@dataclass(frozen=True, slots=True)
class StepInfo:
    """One line of `scontrol -o show step`. `step_id` is JOB.STEP."""

    step_id: str
    name: str
    state: str
    node_list: str


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """One line of `scontrol -o show node`. `state` may carry flags (IDLE+DRAIN, DOWN*)."""

    name: str
    address: str
    state: str

    @property
    def lost(self) -> bool:
        """Tell whether Slurm holds the node for dead: down, failing or not answering (a star)."""
        words = re.split(r"[+*~#$@!%^-]", self.state)
        return bool({"DOWN", "FAIL", "FAILING", "NOT_RESPONDING"}.intersection(words)) or "*" in self.state


def parse_job(text: str) -> JobInfo:
    """Read one job. Raises ParseError."""
    return JobInfo(
        job_id=_need(text, "JobId"),
        state=_need(text, "JobState"),
        restarts=int(_field(text, "Restarts") or 0),
        reason=_field(text, "Reason"),
        preempt_time=_field(text, "PreemptTime"),
        end_time=_field(text, "EndTime"),
        node_list=_field(text, "NodeList"),
        exit_code=_field(text, "ExitCode"),
    )


def parse_step(text: str) -> StepInfo:
    """Read one step. Raises ParseError."""
    return StepInfo(
        step_id=_need(text, "StepId"),
        name=_need(text, "Name"),
        state=_need(text, "State"),
        node_list=_need(text, "NodeList"),
    )


def parse_nodes(text: str) -> dict[str, NodeInfo]:
    """Read nodes, one a line, by name. Raises ParseError."""
    nodes = {}
    for line in text.splitlines():
        if line.strip():
            name = _need(line, "NodeName")
            nodes[name] = NodeInfo(name, _field(line, "NodeAddr") or name, _need(line, "State"))
    return nodes


def parse_hostnames(text: str) -> tuple[str, ...]:
    """Read the names that `scontrol show hostnames` prints. Raises ParseError when there are none."""
    names = tuple(text.split())
    if not names:
        raise ParseError("the node list names no node")
    return names


def parse_kill_wait(text: str) -> float:
    """Read KillWait, in seconds, from `scontrol show config`. Raises ParseError."""
    match = re.search(r"^KillWait\s*=\s*(\d+)", text, re.MULTILINE)
    if match is None:
        raise ParseError("`scontrol show config` names no KillWait")
    return float(match[1])


def parse_submitted(text: str) -> str:
    """Read the job id from `sbatch --parsable` ("123" or "123;cluster"). Raises ParseError."""
    match = re.search(r"^(\d+)(?:;\S+)?\s*$", text, re.MULTILINE)
    if match is None:
        raise ParseError(f"sbatch printed no job id: {text.strip()[:200]!r}")
    return match[1]


def _field(text: str, key: str) -> str | None:
    """Take the first word KEY=VALUE; a value with blanks ends at the first of them."""
    match = re.search(rf"(?:^|\s){re.escape(key)}=(\S*)", text)
    return None if match is None or match[1] in _NOTHING else match[1]


def _need(text: str, key: str) -> str:
    value = _field(text, key)
    if value is None:
        raise ParseError(f"no {key} in {text.strip()[:200]!r}")
    return value
