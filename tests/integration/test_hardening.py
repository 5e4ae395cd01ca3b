"""What goes wrong around the proxy: no descriptors, closed standard streams, peers that do not say how they end."""

from __future__ import annotations

import contextlib
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.integration.support import CHAT, StartProxy, free_ports
from tools.launch import DD_PROXY, DdProxy, Fake, ask, wait_until

GET = b"GET /x HTTP/1.1\r\nHost: dd\r\nConnection: close\r\n\r\n"


def answer_to(port: int, request: bytes) -> bytes:
    """Send a request, and give all that comes until the connection ends; a reset shows as `<reset>`."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
        sock.sendall(request)
        try:
            while piece := sock.recv(65536):
                received += piece
        except ConnectionResetError:
            received += b"<reset>"
    return received


# ------------------------------------------------------------------------------------------------------------ TLS ends


def _serve_tls(listener: socket.socket, context: ssl.SSLContext, with_alert: bool) -> None:
    with contextlib.suppress(OSError):
        while True:
            plain, _ = listener.accept()
            threading.Thread(target=_answer_tls, args=(plain, context, with_alert), daemon=True).start()


def _answer_tls(plain: socket.socket, context: ssl.SSLContext, with_alert: bool) -> None:
    with contextlib.suppress(OSError), context.wrap_socket(plain, server_side=True) as tls:
        if tls.recv(65536).startswith(b"GET /x"):
            tls.sendall(b"HTTP/1.1 200 OK\r\n\r\nhello")
        if with_alert:
            tls.unwrap()


@pytest.fixture(params=[True, False], ids=["alert", "no alert"])
def tls_replica(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[int, bool]]:
    """Run a replica whose responses end with the connection, with the closing alert of TLS or without it."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_serve_tls, args=(listener, context, request.param), daemon=True).start()
        yield listener.getsockname()[1], request.param


def test_an_end_of_tls_that_nobody_signed_is_no_end_of_a_response(
    tls_replica: tuple[int, bool], tmp_path: Path, loop_command: tuple[str, ...]
) -> None:
    port, whole = tls_replica
    url, ca = f"https://127.0.0.1:{port}", str(tmp_path / "ca.pem")
    with DdProxy(tmp_path / "proxy.log", [url], "--upstream-ca-file", ca, command=loop_command) as proxy:
        answer = answer_to(proxy.port, GET)
        assert b"5\r\nhello\r\n" in answer
        assert answer.endswith(b"0\r\n\r\n") == whole
        answer = answer_to(proxy.port, GET.replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert answer.endswith(b"hello" if whole else b"hello<reset>")
        assert proxy.metrics().total("incomplete_responses_total", side="upstream") == (0 if whole else 2)


# ------------------------------------------------------------------------------------------------- what a process has


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_it_serves_with_standard_streams_closed(closed: str, replicas: list[Fake]) -> None:
    port = free_ports(1)
    words = [*DD_PROXY, "serve", "--listen-port", str(port), "--backend", replicas[0].urls[0]]
    process = subprocess.Popen(["sh", "-c", f'exec "$@" {closed}', "sh", *words], stdout=subprocess.PIPE)
    try:
        wait_until(lambda: process.poll() is not None or _health(port) == 200, what="a proxy that serves")
        assert process.poll() is None
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        out = process.communicate()[0]
    assert out == b"" if ">&-" in closed.split() else out.startswith(b'{"event":"listening"')


def test_signals_that_come_again_until_the_very_end_change_nothing(
    replicas: list[Fake], tmp_path: Path, loop_command: tuple[str, ...]
) -> None:
    with DdProxy(tmp_path / "proxy.log", replicas[0].urls, command=loop_command) as proxy:
        while proxy.process.poll() is None:
            proxy.process.send_signal(signal.SIGTERM)
            time.sleep(0.001)
        assert proxy.process.returncode == 0


def _health(port: int) -> int:
    try:
        return ask(port, "GET", "/health")[0]
    except OSError:
        return 0


def test_without_descriptors_it_neither_spins_nor_dies_and_recovers(
    replicas: list[Fake], start_proxy: StartProxy, loop_command: tuple[str, ...]
) -> None:
    limited = ("prlimit", "--nofile=64:64", *loop_command)
    proxy = start_proxy(replicas[:1], command=limited)
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            with contextlib.suppress(OSError):
                stack.enter_context(socket.create_connection(("127.0.0.1", proxy.port), timeout=20))
        descriptors = Path(f"/proc/{proxy.pid}/fd")
        wait_until(lambda: len(list(descriptors.iterdir())) >= 60, what="a process without descriptors")
        cpu_s, events = proxy.cpu_s(), len(proxy.events())
        threading.Event().wait(2.0)  # time in which nothing should happen
        assert proxy.cpu_s() - cpu_s < 0.5
        assert len(proxy.events()) - events < 300
    wait_until(lambda: _health(proxy.port) == 200, what="a proxy that serves again")
    body = b'{"model":"m","max_tokens":1,"messages":[]}'
    head = f"POST {CHAT} HTTP/1.1\r\nHost: dd\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    answers = Counter(answer_to(proxy.port, head + body)[:12] for _ in range(5))
    assert answers == {b"HTTP/1.1 200": 5}
