"""The fake replica keeps the promises that other tests build on."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import pytest

from tools.fake.faults import KINDS, BadFault, parse_fault
from tools.fake.metrics import Load, MetricsPage
from tools.fake_backend import parse_ports
from tools.launch import FAKE_BACKEND, Fake, ask, wait_until

CHAT = "/v1/chat/completions"
BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
StartFake = Callable[..., Fake]


@pytest.fixture
def start_fake(tmp_path: Path) -> Iterator[StartFake]:
    """Start fake replicas that end with the test."""
    with ExitStack() as stack:
        count = iter(range(1000))

        def start(*args: str) -> Fake:
            return stack.enter_context(Fake(tmp_path / f"fake-{next(count)}.log", *args))

        yield start


def post(fake: Fake, path: str = CHAT, **fields: Any) -> httpx.Response:
    """Send one request on a connection of its own."""
    return httpx.post(fake.urls[0] + path, json={**BODY, **fields}, timeout=10)


def events(text: str) -> list[Any]:
    """Return the payloads of server-sent events; the last must be [DONE]."""
    payloads = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert payloads[-1] == "[DONE]"
    return [json.loads(payload) for payload in payloads[:-1]]


def balanced(counts: dict[str, Any]) -> bool:
    """Tell whether every request that was counted is accounted for once."""
    ways = ("active", "completed", "errors", "cancelled", "broken")
    return bool(counts["requests"] == sum(counts[way] for way in ways))


# answers -----------------------------------------------------------------------------------------------------------


def test_a_unary_answer_has_the_shape_of_openai_and_the_tokens_asked_for(start_fake: StartFake) -> None:
    fake = start_fake()
    answer = post(fake, max_tokens=5)
    body = answer.json()
    assert answer.headers["x-replica"] == f"127.0.0.1:{fake.port}"
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"]["content"].split() == ["word"] * 5
    assert body["usage"]["completion_tokens"] == 5
    text = post(fake, "/v1/completions", max_tokens=2).json()
    assert text["object"] == "text_completion"
    assert text["choices"][0]["text"].split() == ["word"] * 2


def test_a_stream_is_events_of_one_token_each_closed_by_done(start_fake: StartFake) -> None:
    fake = start_fake("--tokens", "7")
    answer = post(fake, stream=True, stream_options={"include_usage": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["transfer-encoding"] == "chunked"
    received = events(answer.text)
    assert received[-1]["usage"]["completion_tokens"] == 7
    assert sum(bool(e["choices"] and e["choices"][0]["delta"].get("content")) for e in received) == 7
    text = events(post(fake, "/v1/completions", stream=True).text)
    assert "".join(e["choices"][0]["text"] for e in text).split() == ["word"] * 7


def test_a_request_id_comes_back_in_the_answer_so_that_mixed_up_answers_are_seen(start_fake: StartFake) -> None:
    answer = httpx.post(start_fake().urls[0] + CHAT, json=BODY, headers={"X-Request-Id": "abc-1"})
    assert answer.json()["id"] == "chatcmpl-abc-1"


def test_bad_bodies_and_unknown_paths_get_errors_in_the_openai_shape(start_fake: StartFake) -> None:
    fake = start_fake()
    for status, answer in (
        (400, httpx.post(fake.urls[0] + CHAT, content=b"not json")),
        (404, httpx.get(fake.urls[0] + "/nothing")),
        (405, httpx.get(fake.urls[0] + CHAT)),
    ):
        assert answer.status_code == status
        assert answer.json()["error"]["code"] == status
    assert httpx.get(fake.urls[0] + "/v1/models").json()["data"][0]["object"] == "model"


def test_one_process_serves_many_ports_with_counts_of_their_own(start_fake: StartFake) -> None:
    fake = start_fake("--ports", "0,0,0")
    assert len(set(fake.ports)) == 3
    httpx.post(fake.urls[1] + CHAT, json=BODY)
    assert [counts["requests"] for counts in fake.routings()] == [0, 1, 0]


# HTTP --------------------------------------------------------------------------------------------------------------


async def exchange(port: int, *messages: bytes) -> bytes:
    """Send bytes, and return all that comes until the replica closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for message in messages:
        writer.write(message)
        await writer.drain()
    received = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return received


async def test_pipelined_requests_are_answered_in_order_on_one_connection(start_fake: StartFake) -> None:
    fake = start_fake()
    request = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n"
    received = await exchange(fake.port, (request + b"\r\n{}") * 3 + request + b"Connection: close\r\n\r\n{}")
    assert received.count(b"HTTP/1.1 200 OK") == 4
    counts = fake.routing()
    assert (counts["connections"], counts["reused"], counts["completed"]) == (1, 3, 4)


async def test_expect_is_answered_and_http10_ends_with_the_connection(start_fake: StartFake) -> None:
    fake = start_fake()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\nExpect: 100-continue\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", fake.port)
    writer.write(head + b"Content-Length: 2\r\n\r\n")
    assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10) == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"{}")
    assert (await asyncio.wait_for(reader.read(), 10)).startswith(b"HTTP/1.1 200 OK")
    writer.close()
    old = b'POST /v1/completions HTTP/1.0\r\nContent-Length: 15\r\n\r\n{"stream":true}'
    received = await exchange(fake.port, old)
    assert b"transfer-encoding" not in received
    assert received.endswith(b"data: [DONE]\n\n")


# queue, metrics, start ---------------------------------------------------------------------------------------------


async def test_requests_beyond_the_slots_wait_and_are_reported(start_fake: StartFake) -> None:
    fake = start_fake("--max-concurrency", "1", "--token-interval", "0.02", "--tokens", "10")
    async with httpx.AsyncClient(timeout=20) as client:
        tasks = [asyncio.create_task(client.post(fake.urls[0] + CHAT, json=BODY)) for _ in range(4)]
        seen: set[str] = set()
        while not all(task.done() for task in tasks):
            page = (await client.get(fake.urls[0] + "/metrics")).text
            seen |= {line.split()[-1] for line in page.splitlines() if line.startswith("vllm:num_requests_waiting{")}
        assert [task.result().status_code for task in tasks] == [200] * 4
    assert "2.0" in seen  # three wait: two in one engine's series, one in the other's
    counts = fake.routing()
    assert (counts["peak"], counts["running"], counts["waiting"], counts["active"]) == (4, 0, 0, 0)


def hold_slot(port: int) -> socket.socket:
    """Ask for an endless stream and do not read it: it keeps its slot until the socket is closed."""
    body = b'{"stream":true,"max_tokens":1000000}'
    sock = socket.create_connection(("127.0.0.1", port))
    sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
    sock.recv(1)
    return sock


async def test_many_waiting_requests_all_get_their_turn(start_fake: StartFake) -> None:
    fake = start_fake("--max-concurrency", "1")
    with hold_slot(fake.port) as hold:
        async with httpx.AsyncClient(timeout=30, limits=httpx.Limits(max_connections=300)) as client:
            calls = asyncio.gather(*(client.post(fake.urls[0] + CHAT, json=BODY) for _ in range(300)))
            await asyncio.to_thread(wait_until, lambda: fake.routing()["waiting"] == 300)
            hold.close()
            answers = await calls
    assert {answer.status_code for answer in answers} == {200}
    assert balanced(fake.routing())


@pytest.mark.parametrize(
    ("engine", "name"), [("vllm", "vllm:num_requests_waiting"), ("sglang", "sglang:num_queue_reqs")]
)
def test_the_metrics_page_has_real_names_a_sum_over_series_and_the_size_asked_for(engine: str, name: str) -> None:
    page = MetricsPage(engine, 4, 300_000, "m").render(Load(7, 3, 0, 0, 0, 8)).decode()
    series = [line for line in page.splitlines() if line.startswith(name + "{")]
    assert len(series) == 4
    assert sum(float(line.split()[-1]) for line in series) == 7
    assert 270_000 <= len(page) <= 300_000
    assert page.index(name) > 100_000  # in the middle, as in a real page


def test_a_starting_replica_is_unhealthy_and_serves_nobody(start_fake: StartFake) -> None:
    fake = start_fake("--startup-delay-s", "1")
    assert httpx.get(fake.urls[0] + "/health").status_code == 503
    assert post(fake).status_code == 503
    wait_until(lambda: httpx.get(fake.urls[0] + "/health").status_code == 200)
    assert post(fake).status_code == 200


def test_the_first_requests_fail_when_told_so(start_fake: StartFake) -> None:
    fake = start_fake("--fail-first", "2", "--fail-status", "502")
    assert [post(fake).status_code for _ in range(3)] == [502, 502, 200]
    assert fake.routing()["errors"] == 2


# faults ------------------------------------------------------------------------------------------------------------


def test_a_status_fault_carries_retry_after_and_ends_after_its_count(start_fake: StartFake) -> None:
    fake = start_fake()
    fake.fault("status", status=429, retry_after=1.5, count=1)
    answer = post(fake)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1.5")
    assert post(fake).status_code == 200
    counts = fake.routing()
    assert (counts["statuses"], counts["struck"], balanced(counts)) == ({"200": 1, "429": 1}, {"status": 1}, True)


def test_a_share_strikes_the_same_requests_for_the_same_seed(start_fake: StartFake) -> None:
    def run() -> list[int]:
        fake = start_fake("--seed", "5")
        fake.fault("status", status=500, share=0.5)
        return [post(fake).status_code for _ in range(20)]

    first = run()
    assert set(first) == {200, 500}
    assert run() == first


def test_a_refusing_replica_keeps_its_port_and_listens_again(start_fake: StartFake) -> None:
    fake = start_fake()
    with closing(HTTPConnection("127.0.0.1", fake.port, timeout=10)) as idle:
        idle.request("POST", CHAT, json.dumps(BODY))
        idle.getresponse().read()
        fake.fault("refuse")
        assert idle.sock.recv(1) == b""
    wait_until(lambda: not _connects(fake.port))
    with socket.socket() as other, pytest.raises(OSError):
        other.bind(("127.0.0.1", fake.port))
    fake.clear()
    wait_until(lambda: _connects(fake.port))
    assert post(fake).status_code == 200
    fake.fault("refuse", for_s=0.2)
    wait_until(lambda: _connects(fake.port))


def _connects(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def test_a_reset_is_a_reset_and_not_an_end_of_file(start_fake: StartFake) -> None:
    fake = start_fake()
    fake.fault("reset")
    with socket.create_connection(("127.0.0.1", fake.port)) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}")
        with pytest.raises(ConnectionResetError):
            sock.recv(100)
    counts = fake.routing()
    assert (counts["broken"], counts["active"]) == (1, 0)


@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_cut_stream_ends_after_its_events_and_never_looks_whole(start_fake: StartFake, how: str) -> None:
    fake = start_fake()
    fake.fault("cut", after=3, how=how)
    received = b""
    with (
        pytest.raises(httpx.HTTPError),
        httpx.stream("POST", fake.urls[0] + CHAT, json={**BODY, "stream": True}) as answer,
    ):
        for piece in answer.iter_raw():
            received += piece
    assert received.count(b'"content":" word"') == 3
    assert b"[DONE]" not in received
    for after, part in ((1, b"{"), (0, b"")):  # a unary answer: half of it, or its head alone
        fake.fault("cut", after=after, how=how)
        with (
            pytest.raises(httpx.HTTPError),
            httpx.stream("POST", fake.urls[0] + CHAT, json=BODY) as answer,
        ):
            received = b""
            for piece in answer.iter_raw():
                received += piece
        assert answer.status_code == 200
        assert received[:1] == part
    assert fake.routing()["broken"] == 3


async def test_a_hanging_replica_goes_on_when_cleared_and_counts_those_who_left(start_fake: StartFake) -> None:
    fake = start_fake()
    fake.fault("hang")
    async with httpx.AsyncClient(timeout=20) as client:
        stays = asyncio.create_task(client.post(fake.urls[0] + CHAT, json=BODY))
        with pytest.raises(httpx.ReadTimeout):
            await client.post(fake.urls[0] + CHAT, json=BODY, timeout=0.2)
        await asyncio.to_thread(wait_until, lambda: fake.routing()["cancelled"] == 1)
        fake.clear()
        assert (await stays).status_code == 200
    assert balanced(fake.routing())


def test_slow_unhealthy_and_spoiled_metrics_do_what_they_say(start_fake: StartFake) -> None:
    fake = start_fake()
    fake.fault("slow", delay_s=0.3)
    assert post(fake).elapsed.total_seconds() >= 0.3
    fake.fault("unhealthy")
    fake.fault("metrics", how="missing")
    assert httpx.get(fake.urls[0] + "/health").status_code == 503
    assert httpx.get(fake.urls[0] + "/metrics").status_code == 404
    fake.fault("metrics", how="garbage")
    assert b"num_requests_waiting" not in httpx.get(fake.urls[0] + "/metrics").content
    fake.clear()
    fake.fault("waiting", value=500)
    assert (
        'vllm:num_requests_waiting{engine="0",model_name="fake-model"} 250.0'
        in httpx.get(fake.urls[0] + "/metrics").text
    )


def test_idle_connections_are_closed_as_uvicorn_does(start_fake: StartFake) -> None:
    fake = start_fake("--keep-alive-s", "0")
    with socket.create_connection(("127.0.0.1", fake.port), timeout=10) as sock:
        sock.sendall(b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n")
        assert sock.recv(65536).startswith(b"HTTP/1.1 200")
        fake.fault("idle_close", seconds=0.2)
        assert sock.recv(100) == b""


def test_faults_that_make_no_sense_are_refused_with_a_reason(start_fake: StartFake) -> None:
    fake = start_fake()
    bad: list[object] = [{}, {"kind": "nonsense"}, {"kind": "status", "code": 1}, {"kind": "status", "status": "x"}, []]
    for spec in bad:
        status, answer = ask(fake.port, "POST", "/debug/fault", spec)
        assert status == 400
        assert json.loads(answer)["error"]["message"]
    assert ask(fake.port, "POST", "/debug/fault?port=1", {"kind": "hang"})[0] == 400
    with pytest.raises(BadFault):
        parse_fault({"kind": "status", "status": 999})
    for kind in KINDS:
        assert parse_fault({"kind": kind}).kind == kind


# departures --------------------------------------------------------------------------------------------------------


async def test_a_departed_client_stops_its_generation_and_frees_its_slot(start_fake: StartFake) -> None:
    fake = start_fake("--max-concurrency", "1", "--token-interval", "0.05", "--tokens", "100000")
    async with httpx.AsyncClient(timeout=20) as client:
        async with client.stream("POST", fake.urls[0] + CHAT, json={**BODY, "stream": True}) as answer:
            await anext(answer.aiter_raw())
        await asyncio.to_thread(wait_until, lambda: fake.routing()["cancelled"] == 1)
        answer = await client.post(fake.urls[0] + CHAT, json={**BODY, "max_tokens": 1})
    assert answer.status_code == 200
    counts = fake.routing()
    assert (counts["completed"], counts["active"], counts["running"]) == (1, 0, 0)


def test_a_client_that_does_not_read_stops_the_generation(start_fake: StartFake) -> None:
    fake = start_fake()
    with hold_slot(fake.port):
        before = -1
        while (tokens := fake.routing()["tokens"]) != before:  # until the buffers between the two are full
            before = tokens
    assert tokens < 1_000_000
    wait_until(lambda: bool(fake.routing()["cancelled"] == 1))


# the command -------------------------------------------------------------------------------------------------------


def test_it_runs_with_nothing_but_the_standard_library(tmp_path: Path) -> None:
    argv = [sys.executable, "-S", "-E", *FAKE_BACKEND[1:]]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=tmp_path, env={"PATH": os.environ["PATH"]}) as process:
        assert process.stdout is not None
        port = json.loads(process.stdout.readline())["ports"][0]
        assert ask(port, "POST", CHAT, BODY)[0] == 200
        process.terminate()
        assert process.wait(10) == 0


def test_a_port_that_is_taken_is_one_clear_line(start_fake: StartFake) -> None:
    fake = start_fake()
    done = subprocess.run([*FAKE_BACKEND, "--port", str(fake.port)], capture_output=True, text=True, timeout=20)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert f"cannot listen on 127.0.0.1:{fake.port}: " in done.stderr


def test_ports_are_ranges_and_lists() -> None:
    assert parse_ports("18001-18003,18010") == [18001, 18002, 18003, 18010]
    for text in ("x", "5-1", "70000", "1-"):
        with pytest.raises(Exception, match="port"):
            parse_ports(text)
