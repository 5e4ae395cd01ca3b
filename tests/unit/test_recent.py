"""The rings of recent requests keep what was promised and stay bounded."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from proxy.recent import RecentRequests


def line(request_id: str, **fields: object) -> bytes:
    return orjson.dumps(event(request_id, **fields))


def event(request_id: str, **fields: object) -> Any:
    plain = {"event": "request", "request_id": request_id, "path": "/v1", "final_status": 200}
    return plain | {"failover": False, "complete": True} | fields


def test_a_request_is_found_by_its_id_as_the_log_wrote_it() -> None:
    recent = RecentRequests()
    recent.add(event("a"), line("a"), [None, {"tried": ["u1:1"]}])
    recent.add(event("b"), line("b"), None)
    kept = recent.find("a")
    assert kept is not None
    assert (kept.line, kept.choices) == (line("a"), [None, {"tried": ["u1:1"]}])
    assert recent.find("c") is None


def test_the_latest_request_wins_when_clients_reuse_an_id() -> None:
    recent = RecentRequests()
    recent.add(event("same", path="/old"), line("same", path="/old"), None)
    recent.add(event("same", path="/new"), line("same", path="/new"), None)
    kept = recent.find("same")
    assert kept is not None
    assert b"/new" in kept.line


def test_only_the_last_requests_are_kept() -> None:
    recent = RecentRequests(max_recent=3)
    for n in range(10):
        recent.add(event(str(n)), line(str(n)), None)
    assert [orjson.loads(kept)["request_id"] for kept in recent.lines(99)] == ["9", "8", "7"]
    assert recent.find("6") is None


@pytest.mark.parametrize(
    "fields",
    [{"failover": True}, {"complete": False}, {"final_status": 502}, {"final_status": 503}, {"final_status": 429}],
)
def test_a_request_that_went_wrong_outlives_many_good_ones(fields: dict[str, object]) -> None:
    recent = RecentRequests(max_recent=3, max_notable=2)
    recent.add(event("bad", **fields), line("bad", **fields), None)
    for n in range(10):
        recent.add(event(str(n)), line(str(n)), None)
    assert recent.find("bad") is not None
    assert [orjson.loads(kept)["request_id"] for kept in recent.lines(9, notable=True)] == ["bad"]


@pytest.mark.parametrize("fields", [{"final_status": 200}, {"final_status": 404}, {"path": '/"failover":true'}])
def test_a_plain_request_is_not_taken_for_a_failure(fields: dict[str, object]) -> None:
    recent = RecentRequests()
    recent.add(event("good", **fields), line("good", **fields), None)
    assert recent.lines(9, notable=True) == []


def test_memory_stays_bounded_when_paths_are_as_long_as_heads() -> None:
    recent = RecentRequests(max_bytes=100_000)
    for n in range(50):
        recent.add(
            event(str(n), path="/" + "x" * 60_000, complete=False),
            line(str(n), path="/" + "x" * 60_000, complete=False),
            None,
        )
    assert len(recent.lines(99)) == len(recent.lines(99, notable=True)) == 1
    recent.add(event("huge", path="/" + "x" * 200_000), line("huge", path="/" + "x" * 200_000), None)
    assert recent.lines(99) == []


def test_memory_stays_bounded_when_hundreds_of_backends_are_left_out_of_every_choice() -> None:
    recent = RecentRequests(max_bytes=100_000)
    ids = [f"127.0.0.1:{port}" for port in range(1000)]
    for n in range(100):
        recent.add(
            event(str(n), failover=True),
            line(str(n), failover=True),
            [{"queue_depth": ids}, {"tried": ids[:1], "queue_depth": ids}],
        )
    assert len(recent.lines(999)) == len(recent.lines(999, notable=True)) < 10
