"""The order of the cleanup, read as data."""

from __future__ import annotations

import pytest

from runtime.cleanup import CLEANUP_ORDER, Act
from runtime.state import Classification

NAMED = [one for one in Classification if one not in (Classification.SUCCEEDED, Classification.OUTPUT_MISMATCH)]
EVERY = [None, *NAMED]


def test_every_end_that_begins_a_cleanup_has_an_order() -> None:
    assert set(CLEANUP_ORDER) == set(EVERY)


@pytest.mark.parametrize("end", EVERY)
def test_no_act_is_done_twice(end: Classification | None) -> None:
    order = CLEANUP_ORDER[end]
    assert len(set(order)) == len(order)


@pytest.mark.parametrize("end", EVERY)
def test_launchers_and_replicas_outlive_every_endpoint(end: Classification | None) -> None:
    order = CLEANUP_ORDER[end]
    wanted = [Act.DRAIN_ENDPOINTS, Act.AWAIT_ENDPOINTS, Act.FORCE_ENDPOINTS, Act.STOP_REST, Act.READ_HEALTH]
    assert [act for act in order if act in wanted] == wanted
    assert order[-1] is Act.READ_HEALTH


@pytest.mark.parametrize("end", EVERY)
def test_the_monitor_stops_before_any_service_is_taken_down(end: Classification | None) -> None:
    order = CLEANUP_ORDER[end]
    assert order.index(Act.STOP_MONITOR) < order.index(Act.DRAIN_ENDPOINTS)


@pytest.mark.parametrize("end", [Classification.SERVICE_LOST, Classification.INTERNAL_ERROR])
def test_a_client_whose_output_no_longer_counts_is_stopped_first(end: Classification) -> None:
    assert CLEANUP_ORDER[end][0] is Act.TERM_CLIENT


@pytest.mark.parametrize(
    "end",
    [Classification.CANCELLED, Classification.TIMED_OUT, Classification.PREEMPTED, Classification.NODE_LOST],
)
def test_an_ordered_end_tells_the_client_together_with_the_drain(end: Classification) -> None:
    order = CLEANUP_ORDER[end]
    assert order.index(Act.TERM_CLIENT) == order.index(Act.DRAIN_ENDPOINTS) + 1
    assert order.index(Act.TERM_CLIENT) < order.index(Act.AWAIT_ENDPOINTS)


@pytest.mark.parametrize("end", [None, Classification.CLIENT_FAILED, Classification.STARTUP_FAILED])
def test_a_client_that_ended_or_never_started_is_told_nothing(end: Classification | None) -> None:
    assert Act.TERM_CLIENT not in CLEANUP_ORDER[end]
