"""The benchmark measures every proxy, says what it lacks, forms ratios inside rounds, and notices what is lost."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from tools import bench
from tools.benchmark import host, scale
from tools.benchmark.contestants import PRODUCT, Launch, nginx, program
from tools.benchmark.replica import END_OF_STREAM, EVENTS
from tools.benchmark.rig import EIGHT, REQUEST, SMALL, Fleet, read_answer
from tools.benchmark.table import Record, failures, notes, table
from tools.launch import Child, ask

ROOT = Path(__file__).resolve().parents[2]
BENCH = [sys.executable, str(ROOT / "tools" / "bench.py")]
EVENTS_SENT = 20
REPLICA = [sys.executable, str(ROOT / "tools" / "benchmark" / "replica.py")]


def run(*args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    return subprocess.run([*BENCH, *args], capture_output=True, text=True, timeout=200, env=env)


# ---------------------------------------------------------------------- the whole command


@pytest.mark.slow
def test_four_hundred_streams_at_once_lose_nothing_and_five_hundred_idle_clients_cost_little() -> None:
    done = run("--scale", "--streams", "400", "--events", "200", "--idle-clients", "500")
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "whole and unaltered: 400 of 400" in done.stdout
    assert "500 idle clients" in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")
def test_one_table_compares_every_proxy_that_is_here() -> None:
    done = run("--quick", "--rounds", "1", "--work", "rest,unary,streams 128")
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    head = done.stdout.splitlines()[0]
    for name in [PRODUCT, "pipe", *(["nginx"] if program("nginx") else [])]:
        assert f" {name} |" in head
    assert f"{PRODUCT} / pipe" in head
    for label in ("at rest: RSS, MiB", "CPU µs/request", "CPU µs/event"):
        assert re.search(rf"{label}.*\|\s+[1-9]", done.stdout), f"no figure for {label}"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")
def test_retries_and_many_backends_are_compared_with_a_plain_request_by_every_proxy_that_can() -> None:
    done = run("--quick", "--rounds", "1", "--work", "unary,retry,256 backends")
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    names, *lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines() if "|" in line
    ]
    cells = {line[0]: dict(zip(names, line, strict=True)) for line in lines}
    for label in ("… × a plain request", "… × a plain request over 8", "… retries per request"):
        assert float(cells[label][PRODUCT]) > 0, f"no figure for {label}"
    assert float(cells["… × a plain request over 8"]["pipe"]) > 0
    assert cells["… × a plain request"]["pipe"] == cells["… retries per request"]["pipe"] == ""


def test_a_machine_without_wrk_is_told_what_to_install(tmp_path: Path) -> None:
    done = run("--quick", env={"PATH": str(tmp_path)})
    assert done.returncode == 2
    assert done.stderr == "bench: wrk is not installed: on Debian, apt-get install wrk\n"


def test_an_unknown_workload_is_answered_with_the_names_there_are() -> None:
    done = run("--work", "unary,nonsense")
    assert done.returncode == 2
    assert "no workload nonsense; there are rest, unary" in done.stderr


def test_each_fleet_of_backends_has_a_proxy_of_its_own_and_the_plain_one_comes_last() -> None:
    works = ["unary", "retry", "64 backends", "rest"]
    assert list(bench.by_fleet(works).items()) == [
        (Fleet(1, refusing=1), ["retry"]),
        (Fleet(64), ["64 backends"]),
        (EIGHT, ["unary", "rest"]),
    ]


def test_too_few_files_for_many_backends_are_said_at_once() -> None:
    bench.check_files(["unary"], 1024)
    with pytest.raises(host.Missing, match="256 backends need 1,524 open files, and 1,024 are allowed"):
        bench.check_files(["unary", "256 backends"], 1024)


def test_nginx_retries_only_where_a_backend_refuses(tmp_path: Path) -> None:
    nginx(Launch(1, [2, 3], 4, tmp_path))
    assert "next_upstream" not in (tmp_path / "nginx.conf").read_text()
    nginx(Launch(1, [2, 3], 4, tmp_path, refusing=1))
    config = (tmp_path / "nginx.conf").read_text()
    assert "proxy_next_upstream error timeout http_429 non_idempotent;" in config
    assert "server 127.0.0.1:2 max_fails=0 weight=1000; server 127.0.0.1:3 max_fails=0;" in config


# ---------------------------------------------------------------------- the replicas


def test_the_replicas_answer_and_count_what_they_see(tmp_path: Path) -> None:
    with Child([*REPLICA, "0", "0"], tmp_path / "log") as replicas:
        first, second = replicas.line["ports"]
        with socket.create_connection(("127.0.0.1", first), 10) as client:
            for piece in (REQUEST % (b"/v1/x", len(SMALL)), SMALL[:5], SMALL[5:]):
                client.sendall(piece)
            assert read_answer(client).startswith(b"HTTP/1.1 200 OK\r\n")
        assert ask(second, "POST", "/v1/x", {"model": "m"})[0] == 200
        seen = json.loads(ask(second, "GET", "/debug/count")[1])
        assert seen["requests"] == 2
        assert ask(first, "GET", "/metrics")[1].endswith(b'vllm:num_requests_waiting{engine="0",model_name="m"} 0.0\n')


def test_a_refusing_replica_answers_every_post_with_429_and_is_healthy(tmp_path: Path) -> None:
    with Child([*REPLICA, "0", "--refusing", "0"], tmp_path / "log") as replicas:
        (port,) = replicas.line["refusing"]
        with socket.create_connection(("127.0.0.1", port), 10) as client:
            for _ in range(2):
                client.sendall(REQUEST % (b"/v1/x", len(SMALL)) + SMALL)
                answer = read_answer(client)
                assert answer.startswith(b"HTTP/1.1 429 ")
                assert b"\r\nretry-after: 0\r\n" in answer
        assert ask(port, "GET", "/health")[0] == ask(port, "GET", "/metrics")[0] == 200
        seen = json.loads(ask(replicas.line["ports"][0], "GET", "/debug/count")[1])
        assert (seen["requests"], seen["refused"]) == (0, 2)


def test_a_stream_of_the_replicas_is_as_long_as_it_was_asked_to_be(tmp_path: Path) -> None:
    body = b'{"stream":true,"max_tokens":7}'
    with Child([*REPLICA, "0"], tmp_path / "log") as replicas:
        port = replicas.line["ports"][0]
        with socket.create_connection(("127.0.0.1", port), 10) as client:
            client.sendall(REQUEST % (b"/v1/x", len(body)) + body)
            data = b""
            while not data.endswith(b"0\r\n\r\n"):
                piece = client.recv(65536)
                assert piece, data
                data += piece
        assert data.count(b"data: {") == 7
        assert data.count(b"data: [DONE]") == 1
        assert json.loads(ask(port, "GET", "/debug/count")[1])["events"] == 7


# ---------------------------------------------------------------------- the table


def records() -> list[Record]:
    """Two rounds in which the machine was twice as slow the second time."""
    return [
        Record(1, "dd-proxy", "unary", {"cpu_us": 20.0, "others": 0.0}),
        Record(1, "nginx", "unary", {"cpu_us": 10.0, "others": 0.3}),
        Record(2, "nginx", "unary", {"cpu_us": 20.0, "others": 0.5}),
        Record(2, "dd-proxy", "unary", {"cpu_us": 40.0, "others": 0.0}, ["3 requests were lost"]),
    ]


def test_ratios_are_formed_inside_each_round() -> None:
    text = table(records(), ["dd-proxy", "nginx"], 0)
    (line,) = [line for line in text.splitlines() if "CPU" in line]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[1:] == ["30.0 [20.0–40.0]", "15.0 [10.0–20.0]", "2.00 [2.00–2.00]"]


def retried() -> list[Record]:
    """A retry in each of the two rounds of `records`, which costs twice as much as a request, then thrice."""
    found = (Record(n, "dd-proxy", "retry", {"cpu_us": us, "retries": 1.0}) for n, us in ((1, 40.0), (2, 120.0)))
    return [*records(), *found]


def test_a_workload_is_compared_with_plain_requests_of_the_same_round_and_proxy() -> None:
    text = table(retried(), ["dd-proxy", "nginx"], 0)
    (line,) = [line for line in text.splitlines() if "× a plain request" in line]
    assert [cell.strip() for cell in line.strip("|").split("|")][1:] == ["2.50 [2.00–3.00]", "", ""]


def test_without_plain_requests_there_is_no_such_comparison() -> None:
    text = table([r for r in retried() if r.work != "unary"], ["dd-proxy", "nginx"], 0)
    assert "answers 429: CPU" in text
    assert "a plain request" not in text


def test_a_proxy_without_figures_leaves_its_cells_empty() -> None:
    text = table(records()[:1], ["dd-proxy", "nginx"], 0)
    (line,) = [line for line in text.splitlines() if "CPU" in line]
    assert [cell.strip() for cell in line.strip("|").split("|")][1:] == ["20.0", "", ""]


def test_neighbours_on_the_proxys_cpu_are_named() -> None:
    assert notes(records(), ["dd-proxy", "nginx"]) == ["nginx: other processes used 40% of its CPU"]


def test_events_that_the_replicas_wrote_together_are_named() -> None:
    late = [Record(1, "pipe", "streams 512", {"cpu_us": 9.0, "merged": 2.04})]
    assert notes(late, ["pipe"]) == [
        "pipe: the replicas were late and wrote up to 2.0 events at once: too cheap an event"
    ]


def test_too_few_retries_are_named() -> None:
    few = [Record(n, "nginx", "retry", {"cpu_us": 9.0, "retries": retries}) for n, retries in ((1, 0.95), (2, 0.5))]
    assert notes(few[:1], ["nginx"]) == []
    assert notes(few, ["nginx"]) == [
        "nginx: as few as 0.50 retries per request: its row shows less than what one costs"
    ]


def test_every_fault_is_a_line() -> None:
    assert failures(records()) == ["round 2, dd-proxy, unary: 3 requests were lost"]


def test_cpu_time_and_memory_of_children_count() -> None:
    burn = "import os, sys; os.fork(); x = bytearray(b'x' * (20 << 20)); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.readline()
        assert len(host.processes(process.pid)) == 2
        assert host.memory(process.pid, "VmRSS") > 40
        with host.Meter(process.pid, None) as meter:
            pass
        assert meter.peak_mib > 40


# ---------------------------------------------------------------------- scale


class Clock:
    """As much of a loop as a stream needs."""

    def time(self) -> float:
        return 0.0


class Wire:
    """A connection that takes the request."""

    def write(self, data: bytes) -> None:
        pass

    def close(self) -> None:
        pass


def stream(sent: bytes, head: bytes = b"HTTP/1.1 200 OK\r\n\r\n") -> scale.Stream:
    """Let a stream receive this."""
    hall = scale.Hall(scale.Script(EVENTS_SENT))
    found = scale.Stream(hall, cast(asyncio.AbstractEventLoop, Clock()))
    found.connection_made(cast(asyncio.Transport, Wire()))
    for piece in (head[:10], head[10:] + sent[:300], sent[300:]):
        found.data_received(piece)
    found.connection_lost(None)
    return found


def test_a_stream_that_lost_an_event_or_changed_is_found_out() -> None:
    sent = b"".join(EVENTS[:EVENTS_SENT]) + END_OF_STREAM
    assert stream(sent).fault is None
    assert stream(sent[:-200]).fault == f"{len(sent) - 200} of {len(sent)} bytes"
    assert stream(sent.replace(b"word000003", b"word000004")).fault == "altered"
    assert stream(b"", b"HTTP/1.1 502 Bad Gateway\r\n\r\n").fault == "status 502"
