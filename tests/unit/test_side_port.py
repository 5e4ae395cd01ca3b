"""The side port's HTTP: keep-alive, bounds, errors as JSON, and an end that leaves nothing running."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy import side_port
from proxy.side_port import MAX_BODY_BYTES, SidePort, start_side_port
from tests.unit.stand_in import StandIn, stand_in, until

GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


@dataclass
class Answer:
    status: int
    fields: dict[str, str]
    body: bytes

    @property
    def error(self) -> Any:
        return json.loads(self.body)["error"]


@dataclass
class Client:
    """A raw connection; `read` takes one whole answer."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    answers: list[Answer] = field(default_factory=list)

    async def read(self, *, bodyless: bool = False) -> Answer:
        async with asyncio.timeout(10):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            fields = {name.lower(): text for name, _, text in (line.partition(": ") for line in head[1:-2])}
            length = 0 if bodyless else int(fields.get("content-length", "0"))
            return Answer(int(head[0].split(" ")[1]), fields, await self.reader.readexactly(length))

    async def ask(self, data: bytes, *, bodyless: bool = False) -> Answer:
        self.writer.write(data)
        return await self.read(bodyless=bodyless)

    async def ended(self) -> bool:
        """Wait for the end of the connection; True when nothing came before it."""
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionError):
                return await self.reader.read() == b""
            return True


@dataclass
class Served:
    endpoint: StandIn
    port: SidePort
    address: tuple[str, int]

    async def connect(self) -> Client:
        return Client(*await asyncio.open_connection(*self.address))


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[Served]:
    endpoint = stand_in(2)
    sock = socket.create_server(("127.0.0.1", 0))
    port = await start_side_port(endpoint, sock)
    yield Served(endpoint, port, sock.getsockname())
    port.close()
    async with asyncio.timeout(5):
        await port.wait_closed()
    assert not port.tasks, "a task outlives the side port"


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving() as started:
        yield started


async def test_one_connection_serves_many_requests(served: Served) -> None:
    client = await served.connect()
    for _ in range(5):
        answer = await client.ask(GET)
        assert (answer.status, answer.body) == (200, b'{"status":"ok"}\n')
        assert "connection" not in answer.fields


async def test_pipelined_requests_are_answered_in_order(served: Served) -> None:
    client = await served.connect()
    paths = ["/healthz", "/nothing", "/metrics", "/backends", "/healthz"]
    client.writer.write(b"".join(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode() for path in paths))
    answers = [await client.read() for _ in paths]
    assert [answer.status for answer in answers] == [200, 404, 200, 200, 200]
    assert answers[0].body == answers[4].body


async def test_a_request_may_arrive_byte_by_byte(served: Served) -> None:
    client = await served.connect()
    body = b'{"url":"http://127.0.0.1:9009"}'
    for byte in b"POST /backends HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body:
        client.writer.write(bytes((byte,)))
        await client.writer.drain()
    assert (await client.read()).status == 201


async def test_a_chunked_body_is_read(served: Served) -> None:
    client = await served.connect()
    head = b"POST /backends HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert (await client.ask(head + b'7\r\n{"url":\r\n18\r\n"http://127.0.0.1:9009"}\r\n0\r\n\r\n')).status == 201


async def test_head_has_the_fields_of_get_and_no_body(served: Served) -> None:
    client = await served.connect()
    got = await client.ask(b"GET /backends HTTP/1.1\r\nHost: x\r\n\r\n")
    head = await client.ask(b"HEAD /backends HTTP/1.1\r\nHost: x\r\n\r\n", bodyless=True)
    assert (head.status, head.fields) == (got.status, got.fields)
    assert (await client.ask(GET)).status == 200, "nothing of a body stands between the answers"


async def test_http_1_0_and_close_end_the_connection_after_the_answer(served: Served) -> None:
    for head in (b"GET /healthz HTTP/1.0\r\n\r\n", b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"):
        client = await served.connect()
        answer = await client.ask(head)
        assert (answer.status, answer.fields["connection"]) == (200, "close")
        assert await client.ended()


async def test_a_half_closed_client_gets_its_answer(served: Served) -> None:
    client = await served.connect()
    client.writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    client.writer.write_eof()
    assert (await client.read()).status == 200
    assert await client.ended()


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"NONSENSE\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 40_000 + b"\r\n\r\n", 431),
        (b"POST /backends HTTP/1.1\r\nHost: x\r\nContent-Length: 65537\r\n\r\n", 413),
    ],
)
async def test_what_is_not_proper_is_refused_as_json_and_the_connection_closed(
    served: Served, head: bytes, status: int
) -> None:
    client = await served.connect()
    answer = await client.ask(head)
    assert (answer.status, answer.error["code"], answer.fields["connection"]) == (status, status, "close")
    client.writer.write_eof()
    assert await client.ended()


async def test_a_client_that_still_sends_a_body_that_is_too_large_can_read_why(served: Served) -> None:
    client = await served.connect()
    client.writer.write(b"POST /backends HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(40):
        client.writer.write(b"4000\r\n" + b"x" * 0x4000 + b"\r\n")
        await client.writer.drain()
    answer = await client.read()
    assert (answer.status, str(MAX_BODY_BYTES) in answer.error["message"]) == (413, True)


async def test_expect_continue_is_answered_before_the_body(served: Served) -> None:
    client = await served.connect()
    body = b'{"url":"http://127.0.0.1:9009"}'
    head = b"POST /backends HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body)
    assert (await client.ask(head)).status == 100
    assert (await client.ask(body)).status == 201


async def test_a_slow_client_is_cut_off(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_port, "IDLE_S", 0.05)
    for start in (b"", b"GET /hea", b"POST /backends HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{"):
        client = await served.connect()
        client.writer.write(start)
        assert await client.ended()


async def test_connections_are_bounded(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_port, "MAX_CONNECTIONS", 2)
    first, second = await served.connect(), await served.connect()
    assert (await first.ask(GET)).status == (await second.ask(GET)).status == 200
    third = await served.connect()
    assert (await third.read()).status == 503
    assert (await first.ask(GET)).status == 200


async def test_a_fault_in_one_answer_is_500_and_told_to_the_loop_and_the_next_one_works(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
    monkeypatch.setattr(served.endpoint, "active_requests", lambda: 1 // 0)
    client = await served.connect()
    assert (await client.ask(b"GET /status.json HTTP/1.1\r\nHost: x\r\n\r\n")).status == 500
    assert isinstance(told[0]["exception"], ZeroDivisionError)
    monkeypatch.undo()
    assert (await client.ask(b"GET /status.json HTTP/1.1\r\nHost: x\r\n\r\n")).status == 200


async def test_a_client_that_leaves_during_its_answer_leaves_nothing_behind(served: Served) -> None:
    client = await served.connect()
    client.writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    await client.writer.drain()
    client.writer.transport.abort()
    other = await served.connect()
    assert (await other.ask(GET)).status == 200
    await until(lambda: not served.port.tasks and len(served.port.connections) == 1)


async def test_closing_ends_open_connections(served: Served) -> None:
    client = await served.connect()
    await client.ask(GET)
    served.port.close()
    assert await client.ended()


@pytest.mark.parametrize(("host", "word"), [("127.0.0.1", "open"), ("0.0.0.0", "refused")])
async def test_changes_without_a_token_depend_on_where_the_port_is_bound(host: str, word: str) -> None:
    sock = socket.create_server((host, 0))
    port = await start_side_port(stand_in(1), sock)
    assert port.admin.changes() == word
    port.close()
    await port.wait_closed()


PIECES = [
    *(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"POST /backends HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n{}}"),
    *(b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n", b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", b"\r\n", b"\n", b"\0"),
    *(
        b"GET http://a/ HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
        b"GET /requests/%ff%00 HTTP/1.0\r\n\r\n",
    ),
    *(
        b"PUT /scale HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"3\r\nabc\r\n",
        b"0\r\n\r\n",
        b"zz\r\n",
    ),
    *(
        b"Expect: 100-continue\r\n",
        b"DELETE /backends/%2F?timeout=%00 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"HEAD /metrics HTTP/1.1\r\n",
    ),
]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(PIECES) | st.binary(max_size=40), max_size=6), st.integers(1, 50), st.booleans())
def test_whatever_arrives_it_answers_or_closes_and_nothing_fails_inside(
    pieces: list[bytes], cut: int, fast: bool
) -> None:
    async def story() -> None:
        told: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
        data = b"".join(pieces)
        async with serving() as served:
            client = await served.connect()
            with contextlib.suppress(ConnectionError):
                for start in range(0, len(data), cut):
                    client.writer.write(data[start : start + cut])
                    await client.writer.drain()
                client.writer.write_eof()
            await client.ended()
            assert (await (await served.connect()).ask(GET)).status == 200
        assert told == []

    with asyncio.Runner(loop_factory=uvloop.new_event_loop if fast else None) as runner:
        runner.run(story())


def test_it_serves_on_uvloop_as_on_asyncio() -> None:
    async def story() -> None:
        async with serving() as served:
            for test in (
                test_one_connection_serves_many_requests,
                test_pipelined_requests_are_answered_in_order,
                test_a_half_closed_client_gets_its_answer,
                test_a_client_that_still_sends_a_body_that_is_too_large_can_read_why,
                test_a_client_that_leaves_during_its_answer_leaves_nothing_behind,
                test_closing_ends_open_connections,
            ):
                await test(served)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(story())


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"POST /backends?token=topsecret HTTP/9\r\n\r\n", 400),
        (b"topsecret\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA topsecret: y\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: topsecret\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: " + b"topsecret" * 9000, 431),
    ],
)
async def test_an_unreadable_request_is_not_repeated_in_its_answer(served: Served, sent: bytes, status: int) -> None:
    answer = await (await served.connect()).ask(sent)
    assert answer.status == status
    assert b"topsecret" not in answer.body
