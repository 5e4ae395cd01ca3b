"""What Slurm 22.05 prints is read as it is meant."""

from __future__ import annotations

import pytest

from runtime.parse import (
    ParseError,
    parse_hostnames,
    parse_job,
    parse_kill_wait,
    parse_nodes,
    parse_step,
    parse_submitted,
)

JOB = (
    "JobId=17 JobName=gen UserId=ann(1000) GroupId=ann(1000) MCS_label=N/A Priority=4294901759 Nice=0 Account=(null) "
    "QOS=(null) JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=2 BatchFlag=1 Reboot=0 ExitCode=0:0 "
    "RunTime=00:00:01 TimeLimit=01:00:00 TimeMin=N/A SubmitTime=2026-11-29T20:26:32 StartTime=2026-11-29T20:26:33 "
    "EndTime=2026-11-29T21:26:33 Deadline=N/A PreemptEligibleTime=2026-11-29T20:26:33 PreemptTime=None "
    "Partition=main ReqNodeList=(null) ExcNodeList=(null) NodeList=node[1-2] BatchHost=node1 NumNodes=2 NumCPUs=4 "
    "Command=/home/ann/my runs/script.sh TresPerNode=gres:gpu:2 \n"
)
STEP = (
    "StepId=17.5 UserId=0 StartTime=2026-11-29T20:26:33 TimeLimit=UNLIMITED State=RUNNING Partition=main "
    "NodeList=node2 Nodes=1 CPUs=1 Tasks=1 Name=llama-replica-0 Network=(null) TRES=cpu=1,mem=100M,node=1 "
    "ResvPorts=(null) SrunHost:Pid=vm:13543 TresPerStep=cpu:1{} TresPerTask=cpu:1\n"
)
NODE = (
    "NodeName={} Arch=x86_64 CPUAlloc=2 NodeAddr=127.0.0.11 NodeHostName=localhost Version=22.05.8 State={} Weight=1\n"
)


def test_a_job_is_read() -> None:
    job = parse_job(JOB)
    assert (job.job_id, job.state, job.restarts, job.reason, job.preempt_time) == ("17", "RUNNING", 2, None, None)
    assert (job.end_time, job.node_list, job.exit_code) == ("2026-11-29T21:26:33", "node[1-2]", "0:0")


def test_a_pending_job_has_no_nodes_but_a_reason() -> None:
    text = JOB.replace("JobState=RUNNING Reason=None", "JobState=PENDING Reason=Resources")
    job = parse_job(text.replace("NodeList=node[1-2] BatchHost=node1", "NodeList=(null)"))
    assert (job.state, job.reason, job.node_list) == ("PENDING", "Resources", None)


def test_a_job_about_to_be_preempted_says_when() -> None:
    text = JOB.replace(" PreemptTime=None", " PreemptTime=2026-11-29T20:30:00")
    assert parse_job(text).preempt_time == "2026-11-29T20:30:00"


def test_a_step_is_read_with_and_without_gpus() -> None:
    step = parse_step(STEP.format(" TresPerNode=gres:gpu:1"))
    assert (step.step_id, step.name, step.state, step.node_list) == ("17.5", "llama-replica-0", "RUNNING", "node2")


@pytest.mark.parametrize(
    ("state", "lost"),
    [
        ("IDLE", False),
        ("MIXED", False),
        ("MIXED+DRAIN", False),
        ("ALLOCATED+COMPLETING", False),
        ("DOWN", True),
        ("DOWN*", True),
        ("IDLE*", True),
        ("DOWN+DRAIN", True),
        ("ALLOCATED+NOT_RESPONDING", True),
        ("FAILING", True),
        ("MIXED+PLANNED", False),
    ],
)
def test_a_nodes_state_tells_whether_it_is_lost(state: str, lost: bool) -> None:
    nodes = parse_nodes(NODE.format("node1", state) + "\n" + NODE.format("node2", "IDLE"))
    assert list(nodes) == ["node1", "node2"]
    assert (nodes["node1"].address, nodes["node1"].lost) == ("127.0.0.11", lost)


def test_hostnames_keep_their_order() -> None:
    assert parse_hostnames("node2\nnode10\nnode1\n") == ("node2", "node10", "node1")
    with pytest.raises(ParseError):
        parse_hostnames("\n")


def test_kill_wait_is_found_among_all_settings() -> None:
    assert parse_kill_wait("KillOnBadExit           = 0\nKillWait                = 30 sec\nMinJobAge = 5") == 30.0
    with pytest.raises(ParseError, match="KillWait"):
        parse_kill_wait("MinJobAge = 5")


@pytest.mark.parametrize("text", ["123\n", "123;cluster\n", "sbatch: a word of the site\n123\n"])
def test_the_job_id_is_read_from_what_sbatch_prints(text: str) -> None:
    assert parse_submitted(text) == "123"


def test_anything_else_is_an_error_that_shows_it() -> None:
    with pytest.raises(ParseError, match="JobId"):
        parse_job("No jobs in the system")
    with pytest.raises(ParseError, match="granted"):
        parse_submitted("granted")
