"""A request and an event cost no more than their recorded budget, and the guard names what grew."""

from __future__ import annotations

import json

import pytest

from proxy.connector import UpstreamConnection
from tools.benchmark import budget, counts, page
from tools.benchmark.drive import Drive

RECORD = {
    "unary request": {"calls": {"pool.take": 1.0, "pool.give": 1.0}, "garbage": 0.0, "system calls": {"read": 2.0}},
    "streamed event": {"bytecode": {"relay.pass_on": 40.0}, "machine instructions": 8000.0, "blocks kept": 0.1},
}


def found(scenario: str, name: str, figure: object) -> budget.Figures:
    """Make figures of one kind."""
    return {scenario: {name: figure}}


def said(figures: budget.Figures, *, same_version: bool = True, same_build: bool = True) -> list[str]:
    """Compare figures with the record of this file."""
    return budget.grown(RECORD, figures, same_version=same_version, same_build=same_build)


@pytest.mark.slow
def test_nothing_costs_more_than_its_recorded_budget() -> None:
    figures, left_out = budget.measure()
    for line in left_out:
        print("not counted:", line)
    grew = budget.compare(figures)
    assert not grew, (
        "\n".join(["more work than recorded:", *grew])
        + f"\nfind out why; if it is worth it, record the new budget: {budget.RENEW}"
    )


def test_the_record_has_every_scenario_and_says_how_it_is_renewed() -> None:
    record = json.loads(budget.RECORD.read_text())
    drive = Drive()
    assert set(drive.scenarios()) <= set(record["figures"])
    drive.close()
    assert record["renewed by"] == budget.RENEW


def test_the_documentation_shows_the_recorded_budget() -> None:
    record = json.loads(budget.RECORD.read_text())
    assert budget.table(record["figures"]) in page.PAGE.read_text(), f"renew both: {budget.RENEW}"


def test_one_more_call_for_each_event_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    passed_on = UpstreamConnection.data_received

    def detour(self: UpstreamConnection, data: bytes) -> None:
        passed_on(self, data)

    monkeypatch.setattr(UpstreamConnection, "data_received", detour)
    drive = Drive()
    run, units = drive.scenarios()["streamed event"]
    run(units)
    figures = found("streamed event", "calls", counts.calls(run, units))
    drive.close()
    (line,) = budget.compare(figures)
    assert "streamed event" in line
    assert "detour" in line, "the message names what grew"


def test_counting_twice_gives_the_same() -> None:
    drive = Drive()
    drive.warm_up()
    run, units = drive.scenarios()["unary request"]
    assert counts.calls(run, units) == counts.calls(run, units)
    assert counts.left_behind(run, units)[1] == 0, "a request leaves work to the garbage collector"
    drive.close()


def test_more_of_a_part_is_named_with_its_number() -> None:
    (line,) = said(found("unary request", "calls", {"pool.take": 3.0, "pool.give": 1.0, "extra": 1.0}))
    assert line == (
        "unary request: 5 calls, recorded were 2, allowed are 2.06: +2 pool.take, +1 extra"
    )  # the largest growth first


def test_less_is_welcome_and_a_little_more_is_let_pass() -> None:
    assert not said(found("unary request", "system calls", {"read": 1.0}))
    assert not said(found("unary request", "system calls", {"read": 2.1}))
    assert not said(found("streamed event", "blocks kept", 1.0))
    assert said(found("streamed event", "blocks kept", 1.2))


def test_garbage_for_the_collector_is_never_let_pass() -> None:
    assert said(found("unary request", "garbage", 1.0))


def test_what_depends_on_the_python_is_compared_with_the_same_one_only() -> None:
    bytecode = found("streamed event", "bytecode", {"relay.pass_on": 60.0})
    machine = found("streamed event", "machine instructions", 9000.0)
    assert said(bytecode, same_build=False)
    assert not said(bytecode, same_version=False, same_build=False)
    assert said(machine)
    assert not said(machine, same_build=False)


def test_another_version_of_python_may_call_a_little_more() -> None:
    calls = found("unary request", "calls", {"pool.take": 1.2, "pool.give": 1.0})
    assert said(calls)
    assert not said(calls, same_version=False, same_build=False)
