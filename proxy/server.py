"""`dd-proxy serve` from its configuration to its exit code: ports, signals, drain, final counts.

Owns the process: file descriptor limit, event loop, listeners, the order of the end. What is served is endpoint.py's.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

import orjson

from proxy import __version__
from proxy.access_log import AccessLog
from proxy.config import Config
from proxy.downstream import Downstream
from proxy.endpoint import Endpoint
from proxy.events import Event, listening
from proxy.listener import Listener
from proxy.probe import Prober
from proxy.stats import final_stats, write_stats

BACKLOG = 4096
RESERVED_DESCRIPTORS = 32  # for the process itself and its side port
MANY_REQUESTS = 64  # at once, from which a turn of the loop may take long
HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
CLOSING_S = 1.0  # for sockets to close and tasks to end, after everything was cut


class PortTaken(Exception):
    """A port cannot be listened on; the text says which and why."""


class Stop:
    """What the signals asked for (INTERFACE section 7); `drain` and `now` are set by them, `code` is the exit code."""

    def __init__(self) -> None:
        self.drain = asyncio.Event()
        self.now = asyncio.Event()
        self.code = 0

    def terminate(self) -> None:
        """SIGTERM: drain; again: nothing more."""
        self.drain.set()

    def interrupt(self) -> None:
        """SIGINT: drain with exit code 130; during a drain: stop at once."""
        if self.drain.is_set():
            self.now.set()
        if self.code == 0:
            self.code = 130
        self.drain.set()

    def quit(self) -> None:
        """SIGQUIT: stop at once with exit code 131."""
        self.code = 131
        self.drain.set()
        self.now.set()


def listen(host: str, port: int) -> socket.socket:
    """Bind and listen; accepted sockets inherit TCP_NODELAY and SO_KEEPALIVE. Raises PortTaken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    where = f"[{host}]:{port}" if family == socket.AF_INET6 else f"{host}:{port}"
    try:
        if family == socket.AF_INET:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        else:
            address = (host, port, 0, 0)
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError as e:
        raise PortTaken(f"cannot listen on {where}: {e.strerror or e}") from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as e:
        sock.close()
        hint = "the port is taken: choose another, or 0 for a free one" if e.errno == errno.EADDRINUSE else e.strerror
        raise PortTaken(f"cannot listen on {where}: {hint}") from None
    return sock


def address_of(sock: socket.socket) -> str:
    """Give the address of a listening socket as `host:port`, IPv6 in brackets."""
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard one; returns the limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return soft


def loop_factory() -> tuple[Callable[[], asyncio.AbstractEventLoop], bool]:
    """Choose uvloop, or asyncio's own loop where it is missing; the second value says whether it is uvloop."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop, False
    # libuv would change what epoll watches through io_uring, in batches; but a proxy changes one socket at a time.
    # From 1.49 on (uvloop 0.23) it heeds this no longer for that.
    os.environ.setdefault("UV_USE_IO_URING", "0")
    return uvloop.new_event_loop, True


def run(config: Config) -> int:
    """Serve until a signal ends it; returns the exit code: 0, 130 or 131, or 1 when a port cannot be had."""
    descriptors = raise_descriptor_limit()
    try:
        client_socket = listen(config.listen_host, config.listen_port)
        side_socket = listen(config.metrics_host, config.metrics_port)
    except PortTaken as e:
        print(f"dd-proxy: {e}", file=sys.stderr)
        return 1
    factory, fast = loop_factory()
    log = AccessLog(2, config.log_level)
    about = {"version": __version__, "pid": os.getpid(), "descriptors": descriptors}
    log.event(Event.STARTING, **about, backends=len(config.backends))
    if not fast:
        log.event(Event.WARNING, message="uvloop is not installed: asyncio's own event loop costs about twice the CPU")
    logging.getLogger("asyncio").addHandler(logging.NullHandler())  # its warnings are no lines of JSON
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(_serve(config, log, client_socket, side_socket))
    finally:
        log.close()


async def _serve(config: Config, log: AccessLog, client_socket: socket.socket, side_socket: socket.socket) -> int:
    from proxy.side_port import start_side_port  # after the loop is up: it is not needed for a usage error

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_exception_handler(log))
    stop = Stop()
    for number, handler in zip(HANDLED, (stop.terminate, stop.interrupt, stop.quit), strict=True):
        loop.add_signal_handler(number, handler)
    endpoint = Endpoint(config, log, loop)
    endpoint.probes = prober = Prober(endpoint)
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - RESERVED_DESCRIPTORS
    listener = Listener(
        loop,
        client_socket,
        lambda: Downstream(endpoint),
        has_room=lambda: len(endpoint.downstreams) + len(endpoint.fleet) < descriptors // 2,  # each may need two
        busy=lambda: len(endpoint.exchanges) >= MANY_REQUESTS,
    )
    await listener.start(BACKLOG)
    side = await start_side_port(endpoint, side_socket)
    for backend in endpoint.fleet:
        prober.start(backend)
    endpoint.start_sweeping()
    gc.collect()
    gc.freeze()  # what lives as long as the process is not looked at again
    gc.set_threshold(20_000, 50, 100)
    _say_listening(log, address_of(client_socket), address_of(side_socket), len(endpoint.fleet))
    try:
        await stop.drain.wait()
        endpoint.begin_drain()
        listener.close()
        if not stop.now.is_set():
            await _drained(endpoint, stop, config.drain_timeout_s)
    finally:
        endpoint.cut_all()
        endpoint.stop_sweeping()
        endpoint.probes = None  # the side port may change backends a little longer
        await prober.close()
        side.close()
        await _settled(endpoint, side)
        endpoint.departures.close()
        _write_stats(config, endpoint)
        log.event(Event.STOPPED, code=stop.code, requests=endpoint.counters.requests)
        for number in HANDLED:  # a loop that closes would give them their default action back
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)
    return stop.code


async def _drained(endpoint: Endpoint, stop: Stop, timeout_s: float) -> None:
    """Wait until the last client connection has closed, the time is over, or a signal asks to stop at once."""
    waiters = [asyncio.ensure_future(endpoint.quiet()), asyncio.ensure_future(stop.now.wait())]
    await asyncio.wait(waiters, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    for waiter in waiters:
        waiter.cancel()
    await asyncio.gather(*waiters, return_exceptions=True)


async def _settled(endpoint: Endpoint, side: Any) -> None:
    """Give the sockets that were closed a moment to be gone, so that nobody sees them reset later."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CLOSING_S):
            await endpoint.quiet()
            await side.wait_closed()


def _write_stats(config: Config, endpoint: Endpoint) -> None:
    if config.stats_file is None:
        return
    stats = final_stats(endpoint.counters, endpoint.fleet, endpoint.removed_attempts)
    try:
        write_stats(config.stats_file, stats)
    except OSError as e:
        endpoint.log.event(Event.ERROR, message=f"cannot write the stats file {config.stats_file}: {e.strerror}")


def _say_listening(log: AccessLog, listen_at: str, metrics_at: str, backends: int) -> None:
    line = listening(listen_at, metrics_at, os.getpid(), backends)
    if sys.stdout is not None:  # None: it was closed at the start
        with contextlib.suppress(OSError):  # nobody may read it any more
            sys.stdout.buffer.write(orjson.dumps(line) + b"\n")
            sys.stdout.buffer.flush()
    log.event(Event.LISTENING, listen=listen_at, metrics=metrics_at, backends=backends)


def _exception_handler(log: AccessLog) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    """Log what a callback raised: its kind and place, never its text, which may hold a client's bytes."""

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        where = ""
        if error is not None:
            trace = error.__traceback__
            while trace is not None and trace.tb_next is not None:
                trace = trace.tb_next
            if trace is not None:
                where = f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"
        log.event(Event.ERROR, message=str(context.get("message", "")), kind=type(error).__name__, where=where)

    return handle
