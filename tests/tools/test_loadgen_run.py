"""A whole run against a scripted server: what is counted is what happened, whichever way the run ends."""

from __future__ import annotations

import asyncio
import json
import signal
import ssl
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.tools.scripted_server import TOKEN, Exchange, Server, serving
from tools.load import session
from tools.load.options import parse
from tools.load.report import render
from tools.load.text import table

LOADGEN = Path(__file__).resolve().parents[2] / "tools" / "loadgen.py"


async def measure(server: Server, *arguments: str) -> dict[str, Any]:
    return await session.run(parse(["--url", server.url, "--quiet", "--grace", "5", *arguments]))


async def plain(exchange: Exchange) -> None:
    if exchange.body.get("stream"):
        await exchange.stream(exchange.body["max_tokens"])
    else:
        await exchange.answer()


async def test_a_run_by_count_sends_exactly_so_many_and_reuses_its_connections() -> None:
    with serving(plain) as server:
        figures = await measure(server, "--users", "4", "--requests", "50")
        assert (server.requests, server.connections) == (50, 4)
    assert (figures["completed"], figures["failed"], figures["outcomes"]) == (50, 0, {"ok": 50})
    assert figures["total_output_tokens"] == 200
    assert figures["connections"] == {"opened": 4, "reused": 46, "resent": 0}


async def test_streams_are_measured_event_by_event() -> None:
    async def slow(exchange: Exchange) -> None:
        await exchange.stream(5, pause=0.02)

    with serving(slow) as server:
        figures = await measure(
            server, "--users", "2", "--requests", "6", "--stream", "--output-tokens", "5", "--expect-tokens"
        )
    assert figures["completed"] == 6
    latency = figures["latency_ms"]
    assert latency["itl"]["count"] == 6 * 4
    assert latency["itl"]["low"] >= 0
    assert latency["itl"]["mean"] >= 5
    assert latency["tpot"]["mean"] >= 5
    assert latency["e2el"]["mean"] > latency["ttft"]["mean"]
    assert figures["mean_ttft_ms"] == latency["ttft"]["mean"]


async def test_a_stream_cut_short_is_never_counted_as_completed() -> None:
    async def cut(exchange: Exchange) -> None:
        await exchange.stream(6, end=exchange.number % 3 != 0)

    with serving(cut) as server:
        figures = await measure(server, "--users", "3", "--requests", "30", "--stream")
    assert figures["outcomes"] == {"ok": 20, "truncated": 10}
    assert (figures["completed"], figures["failed"], figures["truncated"]) == (20, 10, 10)
    assert figures["tries"]["looked_whole"] == 0


async def test_a_stream_with_fewer_tokens_than_asked_is_a_fault_when_tokens_are_expected() -> None:
    async def short(exchange: Exchange) -> None:
        await exchange.stream(exchange.body["max_tokens"] - exchange.number % 2)

    with serving(short) as server:
        figures = await measure(
            server, "--users", "1", "--requests", "10", "--stream", "--output-tokens", "8", "--expect-tokens"
        )
    assert figures["outcomes"] == {"ok": 5, "short": 5}


async def test_a_cut_stream_that_its_framing_calls_whole_is_truncated_and_told_at_the_top() -> None:
    async def hidden(exchange: Exchange) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        exchange.writer.write(head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(TOKEN), TOKEN))

    with serving(hidden) as server:
        figures = await measure(server, "--users", "1", "--requests", "3", "--stream")
    assert figures["outcomes"] == {"truncated": 3}
    assert figures["tries"]["looked_whole"] == 3
    assert any("hides cut streams" in note for note in figures["notes"])


async def test_latency_counts_from_the_scheduled_send_so_a_queue_before_the_client_is_seen() -> None:
    async def slow(exchange: Exchange) -> None:
        await asyncio.sleep(0.1)
        await exchange.answer()

    with serving(slow) as server:
        figures = await measure(server, "--rate", "inf", "--requests", "8", "--max-concurrency", "1")
    assert figures["latency_ms"]["e2el"]["high"] >= 790
    assert figures["generator"]["send_delay_p99_ms"] >= 500


async def test_nothing_is_sent_before_it_is_due() -> None:
    with serving(plain) as server:
        for rate in ("40", "1500"):
            engine = session.build_engine(parse(["--url", server.url, "--rate", rate, "--duration", "0.5"]))
            book = await engine.run()
            assert len(book) > 5
            assert min(row.sent - row.due for row in book) >= 0


async def test_the_aimd_client_lowers_its_limit_waits_and_loses_nothing() -> None:
    async def busy(exchange: Exchange) -> None:
        await (exchange.answer(429, b"{}", Retry_After="0.2") if 10 < exchange.number <= 20 else exchange.answer())

    with serving(busy) as server:
        figures = await measure(
            server, "--client", "aimd", "--aimd-start", "8", "--aimd-max", "16", "--users", "12", "--requests", "60"
        )
        assert server.requests == 70
    assert (figures["completed"], figures["failed"]) == (60, 0)
    assert figures["tries"]["client_retries"] == {"http_429": 10}
    assert figures["tries"]["answers"] == {"200": 60, "429": 10}
    assert figures["aimd"]["decreases"] >= 1
    assert len(figures["aimd"]["refused_at"]) == 10


async def test_what_is_refused_without_a_retrying_client_counts_as_failed_under_its_status() -> None:
    async def busy(exchange: Exchange) -> None:
        await exchange.answer(429 if exchange.number % 2 else 200)

    with serving(busy) as server:
        figures = await measure(server, "--users", "1", "--requests", "10")
    assert figures["statuses"] == {"200": 5, "429": 5}
    assert figures["failed"] == 5
    assert list(figures["series"]["errors"]) == ["http 429"]


async def test_the_sdk_client_makes_three_tries() -> None:
    async def broken(exchange: Exchange) -> None:
        await exchange.answer(503, retry_after_ms="10")

    with serving(broken) as server:
        figures = await measure(server, "--client", "sdk", "--users", "1", "--requests", "2")
        assert server.requests == 6
    assert figures["tries"]["client_retries"] == {"http_503": 4}
    assert figures["failed"] == 2


async def test_a_pooled_connection_that_died_is_resent_once_and_not_counted_as_a_fault() -> None:
    async def forgetful(exchange: Exchange) -> None:
        if exchange.nth_on_connection == 2:
            exchange.writer.close()
        else:
            await exchange.answer()

    with serving(forgetful) as server:
        figures = await measure(server, "--users", "1", "--requests", "5")
    assert figures["outcomes"] == {"ok": 5}
    assert figures["connections"]["resent"] == 4


async def test_a_closed_port_is_a_connect_error_for_each_request() -> None:
    with serving(plain) as server:
        pass
    figures = await measure(server, "--users", "1", "--requests", "3")
    assert figures["outcomes"] == {"connect_error": 3}


async def test_clients_that_leave_are_counted_apart_and_the_server_sees_them_go() -> None:
    async def silent(exchange: Exchange) -> None:
        await asyncio.sleep(30)

    with serving(silent) as server:
        figures = await measure(server, "--users", "2", "--requests", "6", "--leave", "1:0.05")
    assert figures["outcomes"] == {"left": 6}
    assert (figures["left"], figures["failed"]) == (6, 0)


async def test_a_slow_reader_takes_as_long_as_its_rate_says() -> None:
    body = b"x" * 30_000

    async def large(exchange: Exchange) -> None:
        await exchange.answer(200, body)

    with serving(large) as server:
        figures = await measure(server, "--users", "1", "--requests", "1", "--slow", "1:60000")
    assert figures["outcomes"] == {"ok": 1}
    assert figures["latency_ms"]["e2el"]["low"] >= 250


async def test_a_timeout_ends_a_request_that_hangs() -> None:
    async def silent(exchange: Exchange) -> None:
        await asyncio.sleep(30)

    with serving(silent) as server:
        figures = await measure(server, "--users", "2", "--requests", "4", "--timeout", "0.1")
    assert figures["outcomes"] == {"timeout": 4}


async def test_what_was_due_in_the_warm_up_is_sent_but_not_counted() -> None:
    with serving(plain) as server:
        figures = await measure(
            server, "--rate", "100", "--arrivals", "constant", "--warmup", "0.3", "--duration", "0.3"
        )
        assert server.requests > figures["requests"] > 0
    assert figures["requests"] <= 31


async def test_requests_still_running_after_the_grace_are_unfinished_and_said_so() -> None:
    async def silent(exchange: Exchange) -> None:
        await asyncio.sleep(30)

    with serving(silent) as server:
        figures = await measure(server, "--users", "3", "--duration", "0.1", "--grace", "0.1")
    assert figures["outcomes"] == {"unfinished": 3}
    assert any("had not ended" in note for note in figures["notes"])
    assert figures["reasons"] == {"unfinished: the run was over": 3}


PAGE = b"""# TYPE dd_proxy_upstream_attempts_total counter
dd_proxy_upstream_attempts_total{backend="a:1"} %d.0
dd_proxy_upstream_attempts_total{backend="b:2"} 5.0
dd_proxy_upstream_responses_total{backend="a:1",code="200"} %d.0
dd_proxy_backend_healthy{backend="a:1"} 1.0
dd_proxy_backend_healthy{backend="b:2"} 0.0
dd_proxy_retries_total{reason="http_503"} %d.0
process_resident_memory_bytes 1.0
"""


async def test_the_side_port_tells_shares_states_and_retries_of_this_run_alone() -> None:
    looks = 0

    async def side(exchange: Exchange) -> None:
        nonlocal looks
        if exchange.path == "/metrics":
            looks += 1
            await exchange.answer(200, PAGE % (100 * looks, 90 * looks, 7 * looks))
        else:
            await asyncio.sleep(0.05)
            await exchange.answer()

    with serving(side) as server:
        figures = await measure(server, "--users", "1", "--requests", "2", "--metrics-url", server.url)
    first, second = figures["replicas"]
    assert (first["backend"], first["attempts"], first["share"]) == ("a:1", 100.0 * (looks - 1), 1.0)
    assert first["answers"] == {"200": 90.0 * (looks - 1)}
    assert {state for _, state in first["states"]} == {"healthy"}
    assert {state for _, state in second["states"]} == {"unhealthy"}
    assert figures["tries"]["proxy_retries"] == {"http_503": 7.0 * (looks - 1)}
    assert "a:1" in render(figures)


async def test_a_side_port_that_is_not_there_costs_a_note_and_not_the_run() -> None:
    with serving(plain) as server:
        figures = await measure(server, "--users", "1", "--requests", "3", "--metrics-url", server.url)
    assert figures["completed"] == 3
    assert any("dd_proxy_" in note for note in figures["notes"])


async def test_page_and_table_tell_the_same_figures_and_the_page_asks_for_nothing_else() -> None:
    with serving(plain) as server:
        figures = await measure(
            server, "--users", "2", "--requests", "20", "--stream", "0.5", "--goodput", "e2el:60000"
        )
    page = render(figures, "A <title>")
    assert "A &lt;title&gt;" in page
    assert "request_goodput" in figures
    assert figures["goodput"]["share"] == 1.0
    for word in ("TTFT", "TPOT", "ITL", "E2E", "p99"):
        assert word in page
    for outside in ("http-equiv", "<script", "src=", "@import", "url(", "<link"):
        assert outside not in page
    assert "Successful requests:" in table(figures)


async def test_a_fault_of_the_generator_itself_ends_the_run_with_that_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("tools.load.engine.Engine._judge", broken)
    with serving(plain) as server, pytest.raises(RuntimeError, match="a bug"):
        await measure(server, "--users", "2", "--requests", "4")


async def test_a_replay_sends_each_line_of_the_trace_once_at_its_time(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(f'{{"timestamp": {5000 + at}, "input_length": 5}}\n' for at in (0, 100, 400)))
    with serving(plain) as server:
        figures = await measure(server, "--trace", str(trace), "--replay", "2")
        assert server.requests == 3
    assert figures["completed"] == 3
    assert figures["elapsed"] >= 0.2


async def test_an_https_endpoint_is_verified_unless_told_otherwise(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with serving(plain, context) as server:
        refused = await measure(server, "--users", "1", "--requests", "1")
        trusting = await measure(server, "--users", "1", "--requests", "2", "--insecure")
    assert refused["outcomes"] == {"connect_error": 1}
    assert "certificate" in next(iter(refused["reasons"])).lower()
    assert trusting["outcomes"] == {"ok": 2}


def command(*arguments: str) -> list[str]:
    return [sys.executable, str(LOADGEN), *arguments]


def test_the_command_works_from_any_directory_and_writes_its_files(tmp_path: Path) -> None:
    with serving(plain) as server:
        done = subprocess.run(
            command("--url", server.url, "--requests", "20", "--json", "out.json", "--report", "out.html"),
            cwd=tmp_path, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Successful requests:" in done.stdout
    figures = json.loads((tmp_path / "out.json").read_text())
    assert figures["completed"] == 20
    assert (tmp_path / "out.html").read_text().startswith("<!doctype html>")


def test_ctrl_c_stops_in_order_and_still_reports(tmp_path: Path) -> None:
    seen = threading.Event()

    async def marked(exchange: Exchange) -> None:
        if exchange.number == 20:
            seen.set()
        await asyncio.sleep(0.01)
        await exchange.answer()

    with serving(marked) as server:
        child = subprocess.Popen(
            command("--url", server.url, "--users", "2", "--duration", "60", "--json", str(tmp_path / "out.json")),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert seen.wait(30)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=30)
    assert child.returncode == 0, err
    assert "stopping" in err
    assert "Successful requests:" in out
    figures = json.loads((tmp_path / "out.json").read_text())
    assert figures["completed"] >= 20
    assert set(figures["outcomes"]) == {"ok"}


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--users", "2", "--rate", "5"], "exclude"),
        (["--rate", "quick"], "number"),
        (["--rate", "inf"], "--requests"),
        (["--replay"], "--trace"),
        (["--goodput", "speed:3"], "ttft"),
        (["--input-tokens", "pareto:1"], "distribution"),
        (["--url", "http://me:secret@h:1"], "--api-key-env"),
        (["--api-key-env", "NOT_SET_ANYWHERE"], "NOT_SET_ANYWHERE"),
        (["--trace", "/nowhere/at/all.jsonl"], "all.jsonl"),
        (["--json", "/nowhere/figures.json"], "--json: there is no folder /nowhere"),
        (["--report", "/nowhere/page.html"], "--report: there is no folder /nowhere"),
        (["--colour", "red"], "--colour"),
    ],
)
def test_bad_usage_is_one_clear_line_and_exit_code_2(arguments: list[str], word: str) -> None:
    done = subprocess.run(
        command("--url", "http://127.0.0.1:1", *arguments), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert word in line
