"""The prober on a real loop: verdicts, samples, no overlap, and no connection left when a backend goes."""

from __future__ import annotations

import asyncio
import errno
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from proxy import sampler
from proxy.config import parse_options
from proxy.endpoint import READS_AGE_S, Endpoint
from proxy.probe import MIN_INTERVAL_S, Prober
from proxy.probe_client import ProbeClient
from proxy.turns import BATCH
from proxy.upstream import Backend
from tests.unit.kit import Log, ask, rig
from tests.unit.sockets import OK, Behave, Server, hang, on_both_loops, then_close
from tests.unit.stand_in import until

BAD = b"HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n"


def page(depth: object) -> bytes:
    body = b'vllm:num_requests_waiting{engine="0"} %b\n' % str(depth).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


class Replica(Server):
    """A backend whose answers for each path can be changed while it runs."""

    def __init__(self, health: bytes | Behave = OK, metrics: bytes | Behave | None = None) -> None:
        super().__init__()
        self.answers = {b"/health": health, b"/metrics": page(0) if metrics is None else metrics}

    def next_behaviour(self, request: bytes) -> bytes | Behave:
        return self.answers[request.split(b" ")[1]]

    def count(self, path: bytes) -> int:
        return sum(request.startswith(b"GET %b " % path) for request in self.requests)


def prober_of(urls: list[str], options: dict[str, object], log: Log) -> tuple[Endpoint, Prober]:
    quick: dict[str, object] = {"health_interval": 0.02, "health_timeout": 5, "queue_interval": 0.02}
    config, errors = parse_options({"listen_port": 0, "backend": urls} | quick | options, "test")
    assert config is not None, errors
    endpoint = Endpoint(config, log.as_access_log(), asyncio.get_running_loop())
    prober = Prober(endpoint)
    endpoint.probes = prober
    return endpoint, prober


@asynccontextmanager
async def watching(replica: Replica, **options: object) -> AsyncIterator[tuple[Endpoint, Backend, Log]]:
    listening = await asyncio.start_server(replica.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    log = Log()
    endpoint, prober = prober_of([url], options, log)
    [backend] = endpoint.fleet
    prober.start(backend)
    try:
        yield endpoint, backend, log
    finally:
        await prober.close()
        endpoint.departures.close()
        listening.close()
        await until(lambda: not replica.open)  # no probe connection stays


@on_both_loops
async def test_verdicts_follow_the_probes_and_are_logged() -> None:
    replica = Replica()
    async with watching(replica) as (endpoint, backend, log):
        await until(lambda: backend.health.healthy is True)
        replica.answers[b"/health"] = BAD
        await until(lambda: backend.health.healthy is False)
        assert not endpoint.fleet.readiness().ok
        replica.answers[b"/health"] = OK
        await until(lambda: backend.health.healthy is True)
        names = [name for name, _ in log.events]
        assert names == ["backend_healthy", "backend_unhealthy", "backend_healthy"]


@on_both_loops
async def test_a_probe_that_nobody_answers_in_time_is_a_bad_one() -> None:
    async with watching(Replica(health=hang), health_timeout=0.05) as (_, backend, _):
        await until(lambda: backend.health.healthy is False)


@on_both_loops
async def test_a_probe_is_made_at_once_when_it_is_asked_for() -> None:
    replica = Replica()
    async with watching(replica, health_interval=3600) as (endpoint, backend, _):
        await until(lambda: backend.health.healthy is True)
        assert replica.count(b"/health") == 1
        endpoint.probe_now(backend)
        await until(lambda: replica.count(b"/health") == 2)


@on_both_loops
async def test_a_backend_that_refuses_everybody_is_not_probed_once_for_each() -> None:
    replica = Replica(health=BAD)
    async with watching(replica, health_interval=3600) as (endpoint, backend, _):
        loop = asyncio.get_running_loop()
        await until(lambda: backend.health.healthy is False)
        began = loop.time()
        while loop.time() < began + 4 * MIN_INTERVAL_S:
            endpoint.probe_now(backend)
            await asyncio.sleep(0.002)
        assert 1 < replica.count(b"/health") <= 2 + (loop.time() - began) / MIN_INTERVAL_S


@pytest.mark.parametrize("missing", [errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL])
@on_both_loops
async def test_what_this_process_lacks_says_nothing_of_a_backend(monkeypatch: pytest.MonkeyPatch, missing: int) -> None:
    asked: list[int] = []

    def fail(client: ProbeClient, now: float) -> None:
        asked.append(missing)
        client._asker.answered(OSError(missing, "said by the test"))

    async with watching(Replica()) as (_, backend, log):
        await until(lambda: backend.health.healthy is True)
        monkeypatch.setattr(ProbeClient, "start", fail)
        await until(lambda: len(asked) > 3)
        assert backend.health.healthy is True
        missing = errno.ECONNREFUSED
        await until(lambda: backend.health.healthy is False)
        assert [name for name, _ in log.events] == ["backend_healthy", "backend_unhealthy"]


@on_both_loops
async def test_the_depth_is_sampled_over_one_connection() -> None:
    replica = Replica(metrics=page(7))
    async with watching(replica) as (_, backend, _):
        await until(lambda: backend.queue_depth == 7)
        replica.answers[b"/metrics"] = page(131)
        await until(lambda: backend.queue_depth == 131)
        await until(lambda: replica.count(b"/metrics") > 10)
        assert replica.connections <= 2  # one for health, one for samples


@on_both_loops
async def test_what_cannot_be_read_never_replaces_a_reading() -> None:
    replica = Replica(metrics=page(7))
    async with watching(replica) as (_, backend, _):
        await until(lambda: backend.queue_depth == 7)
        for answer in (
            page("NaN"),
            BAD,
            then_close(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n"),
            b"garbage\r\n\r\n",
        ):
            replica.answers[b"/metrics"] = answer
            seen = replica.count(b"/metrics")
            await until(lambda seen=seen: replica.count(b"/metrics") > seen + 1)  # type: ignore[misc]
            assert backend.queue_depth == 7


@on_both_loops
async def test_samples_of_one_backend_never_overlap() -> None:
    replica = Replica(metrics=hang)
    async with watching(replica) as (_, backend, _):
        await until(lambda: replica.count(b"/health") > 5)
        assert replica.count(b"/metrics") == 1
        assert backend.queue_depth is None


@on_both_loops
async def test_a_sample_that_hangs_is_given_up_and_the_next_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "SAMPLE_S", 0.1)
    replica = Replica(metrics=page(7))
    async with watching(replica) as (_, backend, _):
        await until(lambda: backend.queue_depth == 7)
        replica.answers[b"/metrics"] = hang
        seen = replica.count(b"/metrics")
        await until(lambda: replica.count(b"/metrics") > seen + 1)
        assert backend.queue_depth == 7
        replica.answers[b"/metrics"] = page(131)
        await until(lambda: backend.queue_depth == 131)


@on_both_loops
async def test_no_depth_is_read_where_that_is_off() -> None:
    replica = Replica()
    async with watching(replica, queue_metrics="off"):
        await until(lambda: replica.count(b"/health") > 3)
        assert replica.count(b"/metrics") == 0


@on_both_loops
async def test_a_removed_backend_is_asked_no_more() -> None:
    replica = Replica()
    async with watching(replica) as (endpoint, backend, _):
        await until(lambda: replica.count(b"/metrics") > 2)
        endpoint.remove_backend(backend, 0.0)
        await until(lambda: not replica.open)
        assert list(endpoint.fleet) == []


@on_both_loops
async def test_a_probe_that_is_asked_for_while_one_is_under_way_follows_it() -> None:
    replica = Replica()
    async with watching(replica, health_interval=3600) as (endpoint, backend, _):
        endpoint.probe_now(backend)
        endpoint.probe_now(backend)
        await until(lambda: replica.count(b"/health") == 2)
        await asyncio.sleep(2 * MIN_INTERVAL_S)
        assert replica.count(b"/health") == 2


@on_both_loops
async def test_a_timeout_says_nothing_while_the_backend_delivers(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = Replica()
    async with watching(replica, health_timeout=0.05, health_fall=1) as (endpoint, backend, _):
        await until(lambda: backend.health.healthy is True)
        reads = itertools.count()
        monkeypatch.setattr(endpoint, "reads_of", lambda backend: next(reads))
        replica.answers[b"/health"] = hang
        seen = replica.count(b"/health")
        await until(lambda: replica.count(b"/health") > seen + 3)
        assert backend.health.healthy is True
        monkeypatch.setattr(endpoint, "reads_of", lambda backend: 0)
        await until(lambda: backend.health.healthy is False)


@on_both_loops
async def test_an_answer_that_takes_longer_than_the_interval_is_waited_for() -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.2)
        writer.write(OK)

    replica = Replica(health=slow)
    async with watching(replica) as (_, backend, _):
        await until(lambda: replica.count(b"/health") == 3)
        assert backend.health.healthy is True


@on_both_loops
async def test_many_backends_are_all_asked_and_forgotten_when_they_go() -> None:
    replica = Replica(metrics=page(7))
    listening = [await asyncio.start_server(replica.serve, "127.0.0.1", 0) for _ in range(2 * BATCH // 3)]
    ports = [server.sockets[0].getsockname()[1] for server in listening]
    urls = [f"http://{host}:{port}" for port in ports for host in ("127.0.0.1", "localhost")]
    endpoint, prober = prober_of(urls, {}, Log())
    backends = list(endpoint.fleet)
    assert len(backends) > BATCH
    for _ in range(2):
        for backend in backends:
            backend.queue_at = 0.0
            prober.start(backend)
        began = time.monotonic()
        await until(lambda began=began: all(b.queue_at > began and b.health.healthy for b in backends))  # type: ignore[misc]
        for backend in backends:
            prober.stop(backend)
        await until(lambda: not replica.open)
    assert not prober._watches
    collector = prober._collector
    assert not collector._kept and not collector._asked and not collector.dials
    await prober.close()
    endpoint.departures.close()
    for server in listening:
        server.close()


@on_both_loops
async def test_a_removed_backend_whose_probes_are_under_way_leaves_nothing() -> None:
    replica = Replica(health=hang, metrics=hang)
    async with watching(replica) as (endpoint, backend, _):
        await until(lambda: len(replica.open) == 2)
        endpoint.remove_backend(backend, 0.0)
        await until(lambda: not replica.open)
        assert backend.health.healthy is None


def test_bytes_of_a_response_are_seen_while_they_come_and_afterwards() -> None:
    """So that a probe which only times out does not condemn a backend that delivers."""
    with rig(1) as r:
        [backend] = r.backends
        ask(r)
        replica = r.accept()
        assert r.endpoint.reads_of(backend) == 0
        replica.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n", b"ab")
        r.loop.advance(READS_AGE_S)
        assert r.endpoint.reads_of(backend) == 2
        replica.send(b"cd")
        r.loop.advance(READS_AGE_S / 2)
        assert r.endpoint.reads_of(backend) == 2  # and never some of it twice
        r.loop.advance(READS_AGE_S)
        assert r.endpoint.reads_of(backend) == 3
