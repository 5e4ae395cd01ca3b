"""How a step is reached under Slurm: only with the identity that Slurm shows, and never twice by mistake."""

from __future__ import annotations

import asyncio
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtime import slurm
from runtime.identity import StepIdentity
from runtime.launcher import Step
from runtime.layout import AttemptDir
from runtime.parse import JobInfo, NodeInfo, StepInfo
from runtime.site import SiteError
from runtime.site_slurm import SlurmSite
from runtime.slurm import Failure, SlurmError
from runtime.state import JobRef, write_json
from runtime.steps import Role, StepSpec

JOB = JobInfo("77", "RUNNING", 1, None, None, "t", "node[1-2]", None)
STEP = StepInfo("77.5", "llama-endpoint", "RUNNING", "node1")
IDENTITY = StepIdentity("llama-endpoint", "endpoint", "77", 1, "5", "node1", 4711, "t")
GONE = SlurmError(Failure.NOT_FOUND, "scancel: error: Kill job error on job step id 77: Invalid job id specified")


class FakeSlurm:
    """Stands in for the module that runs Slurm's commands.

    `jobs` are the answers, one after the other; the last stays.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.jobs: list[JobInfo | SlurmError | None] = [JOB]
        self.step: StepInfo | None = STEP
        self.nodes: dict[str, NodeInfo] = {}
        self.refusal: SlurmError | None = None
        self.signalled: list[tuple[str, str, str]] = []
        for name in ("show_job", "show_step", "show_nodes", "signal_step"):
            monkeypatch.setattr(slurm, name, getattr(self, name))

    def show_job(self, job_id: str) -> JobInfo | None:
        answer = self.jobs.pop(0) if len(self.jobs) > 1 else self.jobs[0]
        if isinstance(answer, SlurmError):
            raise answer
        return answer

    def show_step(self, step_id: str) -> StepInfo | None:
        assert step_id == "77.5"
        return self.step

    def show_nodes(self, names: Any) -> dict[str, NodeInfo]:
        return {name: self.nodes[name] for name in names}

    def signal_step(self, job_id: str, step: str, signal: str) -> None:
        self.signalled.append((job_id, step, signal))
        if self.refusal is not None:
            raise self.refusal


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """A Slurm that shows the recorded step."""
    return FakeSlurm(monkeypatch)


@pytest.fixture
def site(tmp_path: Path) -> SlurmSite:
    """The second start of job 77, whose endpoint has recorded itself."""
    attempt = AttemptDir(tmp_path / "attempt-2")
    attempt.create()
    write_json(attempt.step_json("llama-endpoint"), IDENTITY)
    return SlurmSite(attempt, JobRef("77", 1), {})


async def term(site: SlurmSite) -> tuple[str, bool] | None:
    """Send TERM to the endpoint; None when it was sent, else why not and whether Slurm stops the step itself."""
    process = subprocess.Popen(["true"])
    process.wait()
    spec = StepSpec("llama-endpoint", Role.ENDPOINT, ("x",), "node1")
    refusal = await site.term(Step(spec, process, asyncio.get_running_loop()))
    return None if refusal is None else (refusal.reason, refusal.site_stops)


async def test_a_step_that_is_the_recorded_one_is_signalled(site: SlurmSite, fake: FakeSlurm) -> None:
    assert await term(site) is None
    assert fake.signalled == [("77", "5", "TERM")]


@pytest.mark.parametrize(
    "shown",
    [replace(STEP, name="llama-replica-0"), replace(STEP, node_list="node2"), replace(STEP, step_id="77.6"), None],
)
async def test_another_step_is_never_signalled(site: SlurmSite, fake: FakeSlurm, shown: StepInfo | None) -> None:
    fake.step = shown
    assert await term(site) is not None
    assert fake.signalled == []


@pytest.mark.parametrize(
    "recorded", [replace(IDENTITY, restart_count=0), replace(IDENTITY, job_id="76"), replace(IDENTITY, step_id=None)]
)
async def test_an_identity_of_another_allocation_is_never_signalled(
    site: SlurmSite, fake: FakeSlurm, tmp_path: Path, recorded: StepIdentity
) -> None:
    write_json(tmp_path / "attempt-2" / "steps" / "llama-endpoint.json", recorded)
    told = await term(site)
    assert told is not None and told[1] is False
    assert fake.signalled == []


async def test_a_step_that_has_not_recorded_itself_is_not_waited_for(
    site: SlurmSite, fake: FakeSlurm, tmp_path: Path
) -> None:
    (tmp_path / "attempt-2" / "steps" / "llama-endpoint.json").unlink()
    assert await term(site) == ("its task has not started yet", False)
    assert fake.signalled == []


async def test_steps_of_a_completing_job_are_left_to_slurm(site: SlurmSite, fake: FakeSlurm) -> None:
    fake.jobs = [replace(JOB, state="COMPLETING")]
    assert await term(site) == ("job 77 is COMPLETING: Slurm stops its steps", True)
    assert fake.signalled == []


async def test_the_words_of_nodes_without_the_step_are_no_failure(site: SlurmSite, fake: FakeSlurm) -> None:
    fake.refusal = GONE
    assert await term(site) is None
    fake.jobs = [JOB, replace(JOB, state="COMPLETING")]
    told = await term(site)
    assert told is not None and told[1] is True


async def test_a_question_that_was_killed_is_asked_again(site: SlurmSite, fake: FakeSlurm) -> None:
    killed = SlurmError(Failure.REFUSED, "scontrol: exit code -15")
    fake.jobs = [killed, killed, replace(JOB, restarts=2, state="COMPLETING")]
    view = await site.view(None)
    assert view is not None and view.requeued and view.completing
    fake.jobs = [killed]
    with pytest.raises(SiteError, match="exit code -15"):
        await site.view(None)


@pytest.mark.parametrize(
    ("job", "fields"),
    [
        (JOB, {"completing": False, "requeued": False, "preempting": False, "lost_nodes": ()}),
        (replace(JOB, state="COMPLETING"), {"completing": True, "requeued": False}),
        (replace(JOB, restarts=2), {"completing": True, "requeued": True}),
        (replace(JOB, state="COMPLETING", reason="NodeDown"), {"node_down": True}),
        (replace(JOB, preempt_time="t"), {"preempting": True, "completing": False}),
        (replace(JOB, state="COMPLETING", reason="TimeLimit"), {"out_of_time": True}),
    ],
)
async def test_the_job_is_read_as_it_is(site: SlurmSite, fake: FakeSlurm, job: JobInfo, fields: dict[str, Any]) -> None:
    fake.jobs = [job]
    view = await site.view(None)
    assert {name: getattr(view, name) for name in fields} == fields


async def test_a_lost_node_counts_where_the_step_was(site: SlurmSite, fake: FakeSlurm) -> None:
    fake.nodes = {"node1": NodeInfo("node1", "10.0.0.1", "ALLOCATED"), "node2": NodeInfo("node2", "10.0.0.2", "DOWN*")}
    for node, lost in (("node1", ()), ("node2", ("node2",)), (None, ())):
        view = await site.view(node)
        assert view is not None and view.lost_nodes == lost


async def test_a_job_that_slurm_forgot_says_nothing(site: SlurmSite, fake: FakeSlurm) -> None:
    fake.jobs = [None]
    assert await site.view(None) is None
