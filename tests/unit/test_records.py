"""What is told of ended requests, and when."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator
from datetime import datetime
from time import monotonic, time

import orjson
import pytest

from proxy.access_log import AccessLog
from proxy.events import AttemptRecord, Event, RequestRecord
from proxy.records import BATCH, DELAY_S, Records
from tests.unit.memory import Loop


class Told:
    """Records whose log goes to a file, on a loop whose time stands still."""

    def __init__(self, path: pathlib.Path) -> None:
        self.loop = Loop()
        self._path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT)
        self.log = AccessLog(self._fd)
        self.records = Records(self.log, self.loop.as_asyncio())

    def add(self, number: int, ended_at: float | None = None) -> None:
        at = monotonic() if ended_at is None else ended_at
        attempts: list[AttemptRecord] = [("10.0.0.1:80", 200, True, None, 0.1234567, 0.25)]
        record: RequestRecord = (at, f"r{number}", b"POST", "/v1", 200, True, 18, 10, 0.2500009, attempts, None)
        self.records.add(record)

    def lines(self) -> list[dict[str, object]]:
        """Close the log and read it."""
        self.log.close()
        return [orjson.loads(line) for line in self._path.read_bytes().splitlines()]

    def close(self) -> None:
        self.log.close()
        os.close(self._fd)


@pytest.fixture
def told(tmp_path: pathlib.Path) -> Iterator[Told]:
    found = Told(tmp_path / "log")
    yield found
    found.close()


def test_a_record_is_told_a_moment_later(told: Told) -> None:
    told.add(1)
    told.loop.advance(DELAY_S / 2)
    waiting = repr(told.records)
    told.loop.advance(DELAY_S)
    assert ("waiting=1" in waiting, "waiting=0" in repr(told.records)) == (True, True)
    assert [line["request_id"] for line in told.lines()] == ["r1"]


def test_a_full_batch_is_told_at_once(told: Told) -> None:
    for number in range(BATCH + 1):
        told.add(number)
    assert [line["request_id"] for line in told.lines()] == [f"r{number}" for number in range(BATCH)]


def test_whoever_asks_for_the_recent_requests_gets_all(told: Told) -> None:
    told.add(1)
    told.add(2)
    assert [orjson.loads(line)["request_id"] for line in told.records.recent.lines(10)] == ["r2", "r1"]


def test_other_events_stand_behind_what_happened_before_them(told: Told) -> None:
    told.add(1)
    told.log.event(Event.DRAINING, active=0)
    told.add(2)
    told.log.event(Event.STOPPED, code=0)
    assert [line.get("request_id") or line["event"] for line in told.lines()] == ["r1", "draining", "r2", "stopped"]


def test_a_line_bears_the_time_of_the_end(told: Told) -> None:
    ended = time() - 3600
    told.add(1, monotonic() - 3600)
    told.records.tell()
    stamp = datetime.fromisoformat(str(told.lines()[0]["ts"]))
    assert abs(stamp.timestamp() - ended) < 0.5


def test_times_are_told_to_the_microsecond_and_what_was_not_reached_is_null(told: Told) -> None:
    told.add(1)
    told.records.tell()
    line = told.lines()[0]
    assert line["total_s"] == 0.25
    assert line["upstreams"] == [
        {
            "backend": "10.0.0.1:80",
            "outcome": 200,
            "reused": True,
            "connect_s": None,
            "header_s": 0.123456,
            "total_s": 0.25,
        }
    ]
