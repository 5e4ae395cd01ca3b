"""The log writer on real files, pipes and closed descriptors."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from proxy.access_log import JAM_S, KEPT_AFTER_JAM, AccessLog
from proxy.events import RequestEntry

LIMIT_S = 20.0


def entry(number: int, path: str | None = "/v1/chat/completions") -> RequestEntry:
    return {
        "request_id": f"r{number}",
        "method": "POST",
        "path": path,
        "final_status": 200,
        "attempts": 1,
        "failover": False,
        "complete": True,
        "bytes_in": 18,
        "bytes_out": 10,
        "total_s": 0.25,
        "upstreams": [
            {
                "backend": "127.0.0.1:1",
                "outcome": "200",
                "reused": True,
                "connect_s": None,
                "header_s": 0.1,
                "total_s": 0.2,
            }
        ],
    }


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read_end, write_end = os.pipe()
    fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, 4096)
    yield read_end, write_end
    for descriptor in (read_end, write_end):
        with contextlib.suppress(OSError):
            os.close(descriptor)


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < end, "not within the limit"
        time.sleep(0.005)


def read_until(descriptor: int, mark: bytes) -> bytes:
    data = b""
    while mark not in data:
        ready, _, _ = select.select([descriptor], [], [], LIMIT_S)
        assert ready, f"{mark!r} did not come"
        part = os.read(descriptor, 65536)
        assert part, f"the end came before {mark!r}"
        data += part
    return data


def waiting(log: AccessLog) -> int:
    return int(repr(log).partition("waiting=")[2].partition(" ")[0])


def lines_of(data: bytes) -> list[dict[str, object]]:
    return [json.loads(line) for line in data.splitlines()]


def test_a_request_is_one_json_line_in_the_contract_s_order(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        log = AccessLog(file.fileno(), clock=lambda: 1795947300.125)
        log.request(entry(1))
        log.event("stopped", reason="SIGTERM")
        log.close(LIMIT_S)
    request, stopped = lines_of(path.read_bytes())
    assert list(request) == ["ts", "event", *RequestEntry.__annotations__]
    assert request == {"ts": "2026-11-29T10:15:00.125Z", "event": "request", **entry(1)}
    assert stopped == {"ts": "2026-11-29T10:15:00.125Z", "event": "stopped", "reason": "SIGTERM"}
    assert log.dropped == 0


def test_the_time_follows_the_clock(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "log"
    times = iter([59.999, 60.0, 60.0421])
    with path.open("wb") as file:
        log = AccessLog(file.fileno(), clock=lambda: next(times))
        for number in range(3):
            log.event("n", number=number)
        log.close(LIMIT_S)
    assert [line["ts"] for line in lines_of(path.read_bytes())] == [
        "1970-01-01T00:00:59.999Z",
        "1970-01-01T00:01:00.000Z",
        "1970-01-01T00:01:00.042Z",
    ]


def test_levels_leave_out_what_ranks_below(tmp_path: pathlib.Path) -> None:
    written = {}
    for level in ("debug", "info", "warning", "error"):
        path = tmp_path / level
        with path.open("wb") as file:
            log = AccessLog(file.fileno(), level)
            log.request(entry(1))
            for name in ("listening", "backend_unhealthy", "error"):
                log.event(name)
            log.close(LIMIT_S)
            assert log.wants_requests == (level in ("debug", "info"))
        written[level] = [line["event"] for line in lines_of(path.read_bytes())]
    assert written["debug"] == written["info"] == ["request", "listening", "backend_unhealthy", "error"]
    assert written["warning"] == ["backend_unhealthy", "error"]
    assert written["error"] == ["error"]


def test_a_long_path_is_cut_and_an_unreadable_one_is_null(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        log = AccessLog(file.fileno())
        log.request(entry(1, "/" + "p" * 9000))
        log.request(entry(2, None))
        log.close(LIMIT_S)
    long, none = lines_of(path.read_bytes())
    assert long["path"] == "/" + "p" * 1023
    assert none["path"] is None


def test_what_is_not_json_is_dropped_and_counted(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        log = AccessLog(file.fileno())
        log.request(entry(1, "/\udcff"))
        log.event("odd", value=object())
        log.request(entry(2))
        log.close(LIMIT_S)
    assert [line["request_id"] for line in lines_of(path.read_bytes())] == ["r2"]
    assert log.dropped == 2


def test_every_event_of_a_burst_reaches_a_file_in_order(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        log = AccessLog(file.fileno())
        for number in range(5000):
            log.request(entry(number))
        log.close(LIMIT_S)
    assert [line["request_id"] for line in lines_of(path.read_bytes())] == [f"r{number}" for number in range(5000)]
    assert log.dropped == 0


def test_events_reach_a_live_reader_without_a_close(pipe: tuple[int, int]) -> None:
    read_end, write_end = pipe
    log = AccessLog(write_end)
    for number in range(3):
        log.request(entry(number))
        assert b'"event":"request"' in read_until(read_end, f'"r{number}"'.encode())
    log.close(LIMIT_S)


def test_the_descriptor_stays_blocking(pipe: tuple[int, int]) -> None:
    log = AccessLog(pipe[1])
    log.event("x")
    log.close(LIMIT_S)
    assert os.get_blocking(pipe[1])


def test_a_full_pipe_drops_and_counts_and_logging_comes_back(pipe: tuple[int, int]) -> None:
    read_end, write_end = pipe
    log = AccessLog(write_end, limit=4 * KEPT_AFTER_JAM)
    number = 0
    while log.dropped < 100:  # the writer is stuck after one pipe's worth: nothing here waits for it
        log.request(entry(number))
        number += 1
    data = read_until(read_end, b'"r0"')
    wait_until(lambda: waiting(log) < 4 * KEPT_AFTER_JAM)
    log.request({**entry(0), "request_id": "last"})
    data += read_until(read_end, b'"last"')
    seen = lines_of(data)
    assert seen[-1]["request_id"] == "last"
    assert log.dropped + len(seen) == number + 1
    log.close(LIMIT_S)


def test_after_a_jam_only_the_newest_of_the_backlog_is_written(pipe: tuple[int, int]) -> None:
    read_end, write_end = pipe
    log = AccessLog(write_end, limit=8 * KEPT_AFTER_JAM)
    number = 0
    while log.dropped < 1:
        log.request(entry(number))
        number += 1
    wait_until(lambda: select.select([read_end], [], [], 0) != ([], [], []))
    time.sleep(5 * JAM_S)  # the jam itself: nothing happens while it lasts, so there is no event to wait for
    data = read_until(read_end, f'"r{number - 2}"'.encode())
    assert len(data) < KEPT_AFTER_JAM + 3 * 4096 + 1024
    log.close(LIMIT_S)


def test_a_reader_that_left_costs_events_and_nothing_else(pipe: tuple[int, int]) -> None:
    read_end, write_end = pipe
    log = AccessLog(write_end)
    os.close(read_end)
    log.request(entry(1))
    wait_until(lambda: log.dropped == 1)
    log.request(entry(2))
    wait_until(lambda: log.dropped == 2)
    log.close(LIMIT_S)


def test_a_closed_descriptor_costs_events_until_it_is_there_again(tmp_path: pathlib.Path) -> None:
    descriptor = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    os.close(descriptor)
    log = AccessLog(descriptor)
    log.request(entry(1))
    wait_until(lambda: log.dropped == 1)
    again = os.open(tmp_path / "log", os.O_WRONLY)
    os.dup2(again, descriptor)
    log.request(entry(2))
    log.close(LIMIT_S)
    assert [line["request_id"] for line in lines_of((tmp_path / "log").read_bytes())] == ["r2"]
    os.close(descriptor)
    if again != descriptor:
        os.close(again)


def test_a_full_disk_costs_events_and_nothing_else() -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    log = AccessLog(descriptor)
    log.request(entry(1))
    wait_until(lambda: log.dropped == 1)
    log.close(LIMIT_S)
    os.close(descriptor)


LIMITED_CHILD = """
import os, resource, sys, time
from proxy.access_log import AccessLog
log = AccessLog(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT))
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
for number in range(20):
    log.event("before", padding="x" * 100)
while not log.dropped:
    time.sleep(0.005)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
log.event("after")
log.close(20)
"""


def test_a_line_that_a_full_disk_cut_spoils_no_later_one(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "log"
    subprocess.run([sys.executable, "-c", LIMITED_CHILD, str(path)], timeout=LIMIT_S, check=True)
    first, *_, cut, last = path.read_bytes().splitlines()
    assert json.loads(first)["event"] == "before"
    assert not cut.endswith(b"}")
    assert json.loads(last)["event"] == "after"


def test_a_pipe_that_others_made_non_blocking_loses_nothing(pipe: tuple[int, int]) -> None:
    read_end, write_end = pipe
    os.set_blocking(write_end, False)
    log = AccessLog(write_end)
    for number in range(200):
        log.request(entry(number))
    data = read_until(read_end, b'"r199"')
    assert [line["request_id"] for line in lines_of(data)] == [f"r{number}" for number in range(200)]
    assert log.dropped == 0
    log.close(LIMIT_S)


def test_events_after_close_are_dropped_and_counted(tmp_path: pathlib.Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        log = AccessLog(file.fileno())
        log.close(LIMIT_S)
        log.event("late")
        log.close(LIMIT_S)
    assert log.dropped == 1
    assert (tmp_path / "log").read_bytes() == b""


def test_close_gives_up_on_a_pipe_that_nobody_reads(pipe: tuple[int, int]) -> None:
    log = AccessLog(pipe[1])
    for number in range(200):
        log.request(entry(number))
    log.close(0.05)
    assert waiting(log) > 0
    read_until(pipe[0], b'"r199"')
    log.close(LIMIT_S)


CHILD = """
import os
from proxy.access_log import AccessLog
log = AccessLog(2)
for number in range(3000):
    log.event("n", number=number, padding="x" * 300)
log.close(0.2)
os.write(1, b"done")
"""


@pytest.mark.parametrize("size", [4096, 65536])
def test_a_process_that_ends_while_its_pipe_is_full_leaves_whole_lines(size: int) -> None:
    read_end, write_end = os.pipe()
    fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, size)
    done = subprocess.run(
        [sys.executable, "-c", CHILD], stdout=subprocess.PIPE, stderr=write_end, timeout=LIMIT_S, check=True
    )
    os.close(write_end)
    assert done.stdout == b"done"
    with open(read_end, "rb") as file:
        data = file.read()
    assert data.endswith(b"\n")
    assert [line["number"] for line in lines_of(data)] == list(range(data.count(b"\n")))
