"""The machine under the benchmark: its CPUs, and what a process and its children have used. Knows no proxies."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import time
from pathlib import Path
from typing import Self

MIB = 1 << 20
_HZ = os.sysconf("SC_CLK_TCK")


class Missing(Exception):
    """Something that the benchmark needs is not here; the text says what, and how to get it."""


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard one, for this process and its children; returns it."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


class Cpus:
    """Where the proxy runs alone, and where everything else does; both None on a machine with a single CPU."""

    def __init__(self) -> None:
        usable = sorted(os.sched_getaffinity(0))
        self.proxy: int | None = None
        self.load: int | None = None
        if len(usable) > 1:
            self.proxy, self.load = usable[0], usable[1]

    def keep_off(self) -> None:
        """Move this process off the proxy's CPU."""
        if self.load is not None:
            os.sched_setaffinity(0, {self.load})

    @staticmethod
    def pinned(argv: list[str], cpu: int | None) -> list[str]:
        """Give the command that runs another one on one CPU."""
        return argv if cpu is None else ["taskset", "-c", str(cpu), *argv]


def free_port() -> int:
    """Give a TCP port that is free on this machine now."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def processes(pid: int) -> list[int]:
    """List a process and its descendants."""
    found = [pid]
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            found += processes(int(child))
    return found


def cpu_s(pid: int) -> float:
    """Give the user and system time of a process and its descendants, in seconds."""
    ticks = 0
    for each in processes(pid):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / _HZ


def memory(pid: int, key: str) -> float:
    """Give VmRSS (now) or VmHWM (the peak) of a process and its descendants, in MiB."""
    kib = 0
    for each in processes(pid):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{each}/status").read_text().splitlines():
                if line.startswith(f"{key}:"):
                    kib += int(line.split()[1])
    return kib / 1024


def _busy_s(cpu: int | None) -> float:
    """Give the time in which a CPU (None: all of them) did anything, in seconds."""
    name = "cpu" if cpu is None else f"cpu{cpu}"
    for line in Path("/proc/stat").read_text().splitlines():
        if line.startswith(f"{name} "):
            user, nice, system, _, _, irq, softirq = map(int, line.split()[1:8])
            return (user + nice + system + irq + softirq) / _HZ
    return 0.0


class Meter:
    """What a process and its descendants used in a block; `others` is the share of its CPU that others used."""

    def __init__(self, pid: int, cpu: int | None) -> None:
        self._pid = pid
        self._cpu = cpu
        self.cpu_s = self.wall_s = self.others = self.peak_mib = 0.0

    def __enter__(self) -> Self:
        for each in processes(self._pid):
            with contextlib.suppress(OSError):
                Path(f"/proc/{each}/clear_refs").write_text("5")  # the peak counts from now on: proc(5)
        self._from = time.monotonic(), cpu_s(self._pid), _busy_s(self._cpu)
        return self

    def __exit__(self, *_: object) -> None:
        wall, own, busy = (now - then for now, then in zip(self._now(), self._from, strict=True))
        self.wall_s, self.cpu_s = wall, own
        self.others = max(0.0, (busy - own) / wall) if self._cpu is not None else 0.0
        self.peak_mib = memory(self._pid, "VmHWM")

    def _now(self) -> tuple[float, float, float]:
        return time.monotonic(), cpu_s(self._pid), _busy_s(self._cpu)
