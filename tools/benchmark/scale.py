"""Thousands of streams at once through one proxy, and thousands of clients that do nothing: is anything lost?

Owns a client that only counts and compares. Lost or altered events and memory without bounds are failures; fairness,
stalls and times are printed, since they say as much about the machine as about the proxy.
"""

from __future__ import annotations

import asyncio
import socket
import statistics
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import uvloop

from tools.benchmark.contestants import HERE, PRODUCT, Running, launch
from tools.benchmark.host import Cpus, memory
from tools.benchmark.replica import END_OF_STREAM, EVENTS
from tools.benchmark.rig import BACKENDS, PATH, open_clients
from tools.launch import Child, wait_until

STREAMS = 4000
EVENTS_EACH = 1000  # so many that the first streams still flow when the last ones begin
PATIENCE_S = 240.0
CONNECTING = 100  # at a time
STALL_S = 1.0
MAX_KIB_EACH = 32
SPARE_DESCRIPTORS = 500


@dataclass(frozen=True, slots=True)
class Load:
    """How much: streams at once, events of each, idle clients."""

    streams: int
    events: int
    idle_clients: int


class Script:
    """What every stream asks for, and what it has to get."""

    def __init__(self, events: int) -> None:
        sent = b"".join(EVENTS[:events]) + END_OF_STREAM
        body = b'{"model":"m","stream":true,"max_tokens":%d}' % events
        self.events = events
        self.size = len(sent)
        self.checksum = zlib.crc32(sent)
        self.request = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (PATH.encode(), len(body), body)


class Hall:
    """All streams of a run; `done` is set when none is left."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.streams: list[Stream] = []
        self.running = self.flowing = self.most = 0
        self.done = asyncio.Event()

    def entered(self, stream: Stream) -> None:
        """Count a stream in."""
        self.streams.append(stream)
        self.running += 1

    def began(self) -> None:
        """Count a stream whose first bytes are here."""
        self.flowing += 1
        self.most = max(self.most, self.flowing)

    def left(self, *, flowed: bool) -> None:
        """Count a stream out."""
        self.running -= 1
        self.flowing -= flowed
        if self.running == 0:
            self.done.set()


class Stream(asyncio.Protocol):
    """One stream as its client sees it: the proxy passes its chunks on as they came, so whole streams compare."""

    def __init__(self, hall: Hall, loop: asyncio.AbstractEventLoop) -> None:
        self._hall = hall
        self._script = hall.script
        self._loop = loop
        self._transport: asyncio.Transport
        self._head = b""
        self._in_body = False
        self._checksum = 0
        self._last = 0.0
        self.status = b""
        self.received = 0
        self.asked_at = self.first_at = self.ended_at = 0.0
        self.longest_gap = 0.0

    @property
    def fault(self) -> str | None:
        """Say what is wrong with the stream, None when it came whole and unaltered."""
        if self.status != b"200":
            return f"status {self.status.decode() or 'missing'}"
        if self.received != self._script.size:
            return f"{self.received} of {self._script.size} bytes"
        return None if self._checksum == self._script.checksum else "altered"

    @property
    def events_per_s(self) -> float:
        """Events per second from the first one to the last one."""
        return (self._script.events - 1) / max(self.ended_at - self.first_at, 1e-3)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the stream."""
        self._transport = cast(asyncio.Transport, transport)
        self.asked_at = self._loop.time()
        self._hall.entered(self)
        self._transport.write(self._script.request)

    def data_received(self, data: bytes) -> None:
        """Take bytes as they come."""
        now = self._loop.time()
        if not self._in_body:
            data = self._head + data
            head, found, data = data.partition(b"\r\n\r\n")
            if not found:
                self._head = head
                return
            self._in_body = True
            self.status = head[9:12]
            self.first_at = now
            self._hall.began()
        else:
            self.longest_gap = max(self.longest_gap, now - self._last)
        self._last = now
        self.received += len(data)
        self._checksum = zlib.crc32(data, self._checksum)
        if self.received >= self._script.size or self.status != b"200":
            self._transport.close()

    def connection_lost(self, exc: BaseException | None) -> None:
        """End."""
        self.ended_at = self._loop.time()
        self._hall.left(flowed=self._in_body)


async def _all_at_once(port: int, number: int, script: Script) -> Hall:
    """Open streams as fast as they are accepted, and wait for the end of the last one. Raises TimeoutError, OSError."""
    loop, hall = asyncio.get_running_loop(), Hall(script)
    hall.running = 1  # this function, so that early ends are no end
    async with asyncio.timeout(PATIENCE_S):
        while len(hall.streams) < number:
            batch = min(CONNECTING, number - len(hall.streams))
            await asyncio.gather(
                *(loop.create_connection(lambda: Stream(hall, loop), "127.0.0.1", port) for _ in range(batch))
            )
        hall.left(flowed=False)
        await hall.done.wait()
    return hall


@dataclass(frozen=True, slots=True)
class Figures:
    """What is printed of a run of streams."""

    number: int
    events: int
    most_flowing: int
    faults: Sequence[str]
    rates: Sequence[float]
    first: Sequence[float]
    gaps: Sequence[float]

    def lines(self) -> list[str]:
        """Say it in lines."""
        slowest, fastest = min(self.rates), max(self.rates)
        stalled = sum(gap > STALL_S for gap in self.gaps)
        return [
            f"{self.number:,} clients at once, each a stream of {self.events:,} events, 50 events/s offered; "
            f"at most {self.most_flowing:,} streams flowed at the same time",
            f"  whole and unaltered: {self.number - len(self.faults):,} of {self.number:,}",
            f"  events/s of a stream: slowest {slowest:.1f}, median {statistics.median(self.rates):.1f}, "
            f"fastest {fastest:.1f} (fastest / slowest {fastest / slowest:.2f})",
            f"  first byte after: median {statistics.median(self.first):.2f} s, at most {max(self.first):.2f} s",
            f"  longest gap of a stream: median {statistics.median(self.gaps):.2f} s, at most {max(self.gaps):.2f} s; "
            f"over {STALL_S:g} s in {stalled:,}",
        ]


def _figures(hall: Hall) -> Figures:
    streams = hall.streams
    return Figures(
        number=len(streams),
        events=hall.script.events,
        most_flowing=hall.most,
        faults=[fault for stream in streams if (fault := stream.fault)],
        rates=[stream.events_per_s for stream in streams],
        first=[stream.first_at - stream.asked_at for stream in streams],
        gaps=[stream.longest_gap for stream in streams],
    )


def run(folder: Path, load: Load, descriptors: int) -> tuple[str, list[str]]:
    """Run both parts through dd-proxy; returns what was printed, and a line for whatever was lost or grew too much."""
    cpus = Cpus()
    streams = _at_most(load.streams, (descriptors - SPARE_DESCRIPTORS) // 2, "streams", descriptors)
    idle_clients = _at_most(load.idle_clients, descriptors - SPARE_DESCRIPTORS, "idle clients", descriptors)
    cpus.keep_off()
    argv = cpus.pinned([sys.executable, str(HERE / "replica.py"), *["0"] * BACKENDS], cpus.load)
    with Child(argv, folder / "replicas.log") as replicas:
        started = launch(folder / PRODUCT, replicas.line["ports"], idle_clients)
        with Running(PRODUCT, started, cpus.pinned([], cpus.proxy)) as proxy:
            wait_until(proxy.answers, 30, f"an answer through {PRODUCT}")
            said, failed = _idle(proxy, idle_clients)
            print(said, flush=True)
            more, lost = _streams(proxy, streams, Script(load.events))
            print(more, flush=True)
    failed += lost
    for line in failed:
        print("FAILED", line)
    return f"{said}\n{more}", failed


def _at_most(wanted: int, limit: int, what: str, descriptors: int) -> int:
    if wanted > limit:
        print(f"note: {limit:,} {what} instead of {wanted:,}, since {descriptors:,} files may be open (ulimit -Hn)")
    return min(wanted, limit)


def _idle(proxy: Running, number: int) -> tuple[str, list[str]]:
    before = memory(proxy.process.pid, "VmRSS")
    clients: list[socket.socket] = []
    try:
        while len(clients) < number:
            clients += open_clients(proxy.port, min(100, number - len(clients)))
        kib = (memory(proxy.process.pid, "VmRSS") - before) * 1024 / number
    finally:
        for client in clients:
            client.close()
    said = f"{number:,} idle clients, each after one answer: {kib:.1f} KiB RSS each"
    return said, [f"{kib:.1f} KiB for an idle client, allowed are {MAX_KIB_EACH}"] if kib > MAX_KIB_EACH else []


def _streams(proxy: Running, number: int, script: Script) -> tuple[str, list[str]]:
    try:
        figures = _figures(uvloop.run(_all_at_once(proxy.port, number, script)))
    except TimeoutError:
        return "", [f"{number:,} streams did not end within {PATIENCE_S:g} s"]
    proxy.check()
    peak = f"  peak RSS of the proxy: {memory(proxy.process.pid, 'VmHWM'):.0f} MiB"
    kinds = sorted(set(figures.faults))
    lost = [f"{figures.faults.count(kind):,} streams: {kind}" for kind in kinds]
    return "\n".join([*figures.lines(), peak]), lost
