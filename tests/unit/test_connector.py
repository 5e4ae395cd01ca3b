"""Dialling over real sockets: options, TLS, refusals, cancellation; and noticing the reset of a half-closed client."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from pathlib import Path

import pytest
import trustme

from proxy.balancer import Fleet
from proxy.config import Config, parse_options
from proxy.connector import Connector, UpstreamConnection
from proxy.departures import Departures
from proxy.upstream import Backend
from tests.unit.sockets import on_both_loops, serving
from tests.unit.stand_in import until


def config_of(url: str, **options: object) -> Config:
    config, errors = parse_options({"listen_port": 0, "backend": [url]} | options, "test")
    assert config is not None, errors
    return config


class Dialled:
    """What a dial came to."""

    def __init__(self, url: str, **options: object) -> None:
        config = config_of(url, **options)
        self.backend: Backend = next(iter(Fleet(config)))
        self.idle_events: list[UpstreamConnection] = []
        self.result: UpstreamConnection | OSError | None = None
        connector = Connector(config, asyncio.get_running_loop())
        self.task = connector.dial(self.backend, self.idle_events.append, self.done)

    def done(self, result: UpstreamConnection | OSError) -> None:
        self.result = result

    async def connection(self) -> UpstreamConnection:
        await self.task
        assert isinstance(self.result, UpstreamConnection), self.result
        return self.result


@on_both_loops
async def test_a_connection_has_no_delay_and_is_kept_alive() -> None:
    async with serving() as (server, port):
        connection = await Dialled(f"http://127.0.0.1:{port}").connection()
        sock = connection.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        await until(lambda: server.connections == 1)
        connection.close()
        connection.close()
        await until(lambda: not server.open)


@on_both_loops
async def test_an_idle_connection_tells_when_its_peer_speaks_or_leaves() -> None:
    async with serving() as (server, port):
        dialled = Dialled(f"http://127.0.0.1:{port}")
        connection = await dialled.connection()
        await until(lambda: len(server.open) == 1)
        peer = next(iter(server.open))
        peer.write(b"HTTP/1.1 408 Timeout\r\n\r\n")
        await until(lambda: dialled.idle_events == [connection])
        peer.close()
        await until(lambda: connection.ended)
        assert set(dialled.idle_events) == {connection}


@on_both_loops
async def test_a_refusal_is_an_error_that_names_itself() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        dialled = Dialled(f"http://127.0.0.1:{taken.getsockname()[1]}")
        await dialled.task
        assert isinstance(dialled.result, ConnectionRefusedError)


@on_both_loops
async def test_a_dial_that_is_cancelled_leaves_nothing_open() -> None:
    async with serving() as (server, port):
        for steps in range(20):
            dialled = Dialled(f"http://127.0.0.1:{port}")
            for _ in range(steps):
                await asyncio.sleep(0)
            dialled.task.cancel()
            await asyncio.gather(dialled.task, return_exceptions=True)
            if dialled.result is not None:
                assert isinstance(dialled.result, UpstreamConnection)
                dialled.result.close()
        await until(lambda: not server.open)


# ----------------------------------------------------------------------------------------------------------------- TLS


async def https(tmp_path: Path, name: str, **options: object) -> UpstreamConnection | OSError | None:
    """Dial 127.0.0.1 over TLS where the server's certificate is for `name`; gives what came of it."""
    ca = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    ca.issue_cert(name).configure_cert(context)
    file = tmp_path / "ca.pem"
    ca.cert_pem.write_to_path(file)
    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0, ssl=context)
    async with server:
        options = {key: str(file) if value == "ca" else value for key, value in options.items()}
        dialled = Dialled(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}", **options)
        await dialled.task
        if isinstance(dialled.result, UpstreamConnection):
            dialled.result.close()
        return dialled.result


@on_both_loops
async def test_a_certificate_of_the_named_ca_is_accepted(tmp_path: Path) -> None:
    assert isinstance(await https(tmp_path, "127.0.0.1", upstream_ca_file="ca"), UpstreamConnection)


@pytest.mark.parametrize(("name", "options"), [("127.0.0.1", {}), ("other.example", {"upstream_ca_file": "ca"})])
@on_both_loops
async def test_a_certificate_that_cannot_be_trusted_is_refused(
    tmp_path: Path, name: str, options: dict[str, object]
) -> None:
    assert isinstance(await https(tmp_path, name, **options), ssl.SSLCertVerificationError)


@on_both_loops
async def test_insecure_accepts_any_certificate(tmp_path: Path) -> None:
    assert isinstance(await https(tmp_path, "other.example", upstream_insecure=True), UpstreamConnection)


# ---------------------------------------------------------------------------------------------------------- departures


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def connected() -> tuple[socket.socket, socket.socket]:
    """Make two ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    return near, far


@on_both_loops
async def test_a_reset_is_told_once_and_an_end_of_file_is_not() -> None:
    departures = Departures(asyncio.get_running_loop())
    near, far = connected()
    half, other = connected()
    gone: list[str] = []
    departures.watch(near.fileno(), "a", lambda: gone.append("a"))
    departures.watch(half.fileno(), "b", lambda: gone.append("b"))
    other.shutdown(socket.SHUT_WR)
    reset(far)
    await until(lambda: gone == ["a"])
    reset(other)
    await until(lambda: gone == ["a", "b"])
    departures.close()
    near.close()
    half.close()


@on_both_loops
async def test_who_is_forgotten_is_not_told_even_if_the_descriptor_has_a_new_owner() -> None:
    departures = Departures(asyncio.get_running_loop())
    near, far = connected()
    gone: list[str] = []
    departures.watch(near.fileno(), "a", lambda: gone.append("a"))
    departures.watch(near.fileno(), "b", lambda: gone.append("b"))  # the owner before has closed without a word
    departures.forget_owner("a")
    departures.forget_owner("a")
    reset(far)
    await until(lambda: gone == ["b"])
    departures.close()
    near.close()
