"""The final counts of `serve --stats-file`, and what the process has used (Linux).

Owns the file's shape; INTERFACE section 1 names its keys.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
from typing import Any

import orjson

from proxy.balancer import Fleet
from proxy.counters import Counters


def final_stats(counters: Counters, fleet: Fleet, removed_attempts: int) -> dict[str, Any]:
    """Collect the counts: the plural ones are objects by label value with zeros left out; seconds and bytes."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "requests": counters.requests,
        "attempts": removed_attempts + sum(b.attempts for b in fleet),
        "failovers": counters.failovers,
        "retries": _nonzero(counters.retries),
        "responses": {str(code): n for code, n in sorted(counters.responses.items()) if n},
        "timeouts": _nonzero(counters.timeouts),
        "incomplete": _nonzero(counters.incomplete),
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "peak_rss_bytes": peak_rss_bytes(),
    }


def _nonzero(counts: dict[str, int]) -> dict[str, int]:
    return {str(key): n for key, n in counts.items() if n}


def peak_rss_bytes() -> int:
    """Read VmHWM: unlike ru_maxrss it does not count the memory of the parent before the exec."""
    with contextlib.suppress(OSError):
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            match = re.search(r"VmHWM:\s+(\d+) kB", status.read())
        if match is not None:
            return int(match[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def write_stats(path: str, stats: dict[str, Any]) -> None:
    """Write the file whole or not at all; raises OSError."""
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb") as file:
            file.write(orjson.dumps(stats, option=orjson.OPT_APPEND_NEWLINE))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
