"""The verdict: the first cause is kept, Slurm is believed, and only a clean end is a success."""

from __future__ import annotations

import itertools
import signal

import pytest

from runtime.state import Classification, HealthFailure
from runtime.verdict import (
    Cause,
    Facts,
    JobView,
    Trigger,
    describe_exit,
    judge,
    name_cause,
    needs_slurm,
    slurm_name,
)

C, T = Classification, Trigger
LOSS = HealthFailure("t", "llama", "10.0.0.2:18003", "launcher", "was killed by SIGKILL")
QUIET = JobView(completing=False, requeued=False, preempting=False, node_down=False, out_of_time=False)


def view(**changes: object) -> JobView:
    """Give a view of a job with some things happening to it."""
    return JobView(**{**{name: getattr(QUIET, name) for name in QUIET.__dataclass_fields__}, **changes})


def cause(trigger: Trigger, exit_code: int | None = None, number: int | None = None) -> Cause:
    """Give a cause as the controller reports it."""
    return Cause(trigger, "it happened", exit_code=exit_code, signal=number)


@pytest.mark.parametrize(
    ("seen", "name"),
    [
        (QUIET, None),
        (view(completing=True), C.CANCELLED),
        (view(completing=True, requeued=True), C.PREEMPTED),
        (view(completing=True, requeued=True, lost_nodes=("node3",)), C.NODE_LOST),
        (view(completing=True, node_down=True), C.NODE_LOST),
        (view(preempting=True), C.PREEMPTED),
        (view(completing=True, out_of_time=True), C.TIMED_OUT),
        (view(lost_nodes=("node2",)), C.NODE_LOST),
    ],
)
def test_slurms_view_names_an_end(seen: JobView, name: Classification | None) -> None:
    found = slurm_name(seen)
    assert (found[0] if found else None) is name


def test_a_lost_node_is_named_in_the_reason() -> None:
    named = name_cause(cause(T.SERVICE_LOST), view(lost_nodes=("node3",)))
    assert (named.named, named.reason) == (C.NODE_LOST, "node node3 was lost (first sign: it happened)")


@pytest.mark.parametrize(
    ("trigger", "exit_code", "own"),
    [
        (T.CLIENT_EXITED, 0, None),
        (T.CLIENT_EXITED, 3, C.CLIENT_FAILED),
        (T.STARTUP_FAILED, None, C.STARTUP_FAILED),
        (T.SERVICE_LOST, None, C.SERVICE_LOST),
        (T.SIGNALLED, None, C.CANCELLED),
        (T.TIME_LIMIT, None, C.TIMED_OUT),
        (T.INTERNAL_ERROR, None, C.INTERNAL_ERROR),
    ],
)
def test_a_cause_has_its_own_name_when_slurm_did_nothing(
    trigger: Trigger, exit_code: int | None, own: Classification | None
) -> None:
    for seen in (None, QUIET):
        assert name_cause(cause(trigger, exit_code), seen).named is own


@pytest.mark.parametrize(("trigger", "exit_code"), list(itertools.product(Trigger, (0, 1))))
def test_slurm_is_asked_about_every_end_that_it_may_have_caused(trigger: Trigger, exit_code: int) -> None:
    told = cause(trigger, exit_code)
    own_doing = trigger in (T.TIME_LIMIT, T.INTERNAL_ERROR)
    assert needs_slurm(told) is not own_doing
    named = name_cause(told, view(completing=True, requeued=True)).named
    assert (named is C.PREEMPTED) is not own_doing


def test_success_needs_everything() -> None:
    done = name_cause(cause(T.CLIENT_EXITED, 0), None)
    assert judge(Facts(done)).classification is C.SUCCEEDED
    assert judge(Facts(done)).exit_code == 0
    late = judge(Facts(done, health_failure=LOSS))
    assert (late.classification, late.exit_code) == (C.SERVICE_LOST, 1)
    assert late.reason == "llama (10.0.0.2:18003): was killed by SIGKILL"
    short = judge(Facts(done, output_problems=("out.jsonl: 2 records, the plan wants 3", "b: missing")))
    assert (short.classification, short.exit_code) == (C.OUTPUT_MISMATCH, 1)
    assert short.reason == "out.jsonl: 2 records, the plan wants 3; b: missing"


@pytest.mark.parametrize("trigger", [trigger for trigger in Trigger if trigger is not T.CLIENT_EXITED])
def test_nothing_that_follows_hides_the_first_cause(trigger: Trigger) -> None:
    named = name_cause(cause(trigger), None)
    for failure, problems in itertools.product((None, LOSS), ((), ("out.jsonl: missing",))):
        verdict = judge(Facts(named, failure, problems))
        assert (verdict.classification, verdict.reason) == (named.named, "it happened")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGQUIT, 131)]
)
def test_a_cancel_tells_its_signal_in_the_exit_code(number: int, code: int) -> None:
    assert judge(Facts(name_cause(cause(T.SIGNALLED, number=number), None))).exit_code == code


def test_a_cancel_that_only_slurm_knows_of_exits_as_after_term() -> None:
    named = name_cause(cause(T.SERVICE_LOST), view(completing=True))
    assert judge(Facts(named)).exit_code == 143


def test_a_preemption_that_reached_the_controller_as_term_is_no_cancel() -> None:
    named = name_cause(cause(T.SIGNALLED, number=signal.SIGTERM), view(completing=True, requeued=True))
    assert (judge(Facts(named)).classification, judge(Facts(named)).exit_code) == (C.PREEMPTED, 1)


def test_exit_codes_are_told_to_people() -> None:
    assert [describe_exit(code) for code in (0, 3, -9, 137, 200)] == [
        "exited with 0", "exited with 3", "was killed by SIGKILL", "was killed by SIGKILL", "exited with 200",
    ]  # fmt: skip
