"""Read one number out of a page of Prometheus text: how many requests wait in an engine's queue.

Pure: finds the series in the bytes as they come and never parses the page. Names: vLLM `vllm:num_requests_waiting`,
SGLang `sglang:num_queue_reqs` (either with `_` for `:`), one series per engine or rank, all of them summed.
"""

from __future__ import annotations

import math

ENGINE_SERIES = {"vllm": b"num_requests_waiting", "sglang": b"num_queue_reqs"}
MAX_LINE_BYTES = 64 * 1024


class DepthReader:
    """Reads the pages of one backend, one after the other; the series' place in the last page speeds up the next."""

    __slots__ = ("_bad", "_cut", "_from", "_names", "_offset", "_seen_at", "_total")

    def __init__(self, engine: str) -> None:
        engines = ENGINE_SERIES if engine == "auto" else {engine: ENGINE_SERIES[engine]}
        self._names = [e.encode() + sep + series for e, series in engines.items() for sep in (b":", b"_")]
        self._seen_at = 0
        self.begin()

    def begin(self) -> None:
        """Begin a new page."""
        # Pages grow by a few digits between two samples, so what lies well before the last place can be passed over.
        self._from = self._seen_at - _SLACK_BYTES
        self._seen_at = 0
        self._offset = 0
        self._cut = b""
        self._total: float | None = None
        self._bad = False

    def feed(self, piece: memoryview) -> None:
        """Take the next piece of the page; it is not kept."""
        n = len(piece)
        if self._offset + n > self._from and not self._bad:
            self._search(bytes(piece))
        self._offset += n

    def finish(self) -> float | None:
        """End the page: the depth, or None when it has no readable series."""
        if self._cut:
            self._take_line(self._cut, self._offset)
        return None if self._bad else self._total

    def _search(self, data: bytes) -> None:
        first_end = data.find(b"\n")
        if first_end < 0:
            self._cut = (self._cut + data)[:MAX_LINE_BYTES]
            return
        self._take_line(self._cut + data[:first_end], self._offset)
        last_end = data.rfind(b"\n")
        self._cut = data[last_end + 1 :]
        for name in self._names:
            at = data.find(b"\n" + name, first_end, last_end)
            while at >= 0:
                end = data.find(b"\n", at + 1)
                self._take_line(data[at + 1 : end], self._offset + at)
                at = data.find(b"\n" + name, end, last_end) if end < last_end else -1

    def _take_line(self, line: bytes, at: int) -> None:
        for name in self._names:
            if line.startswith(name) and line[len(name) : len(name) + 1] in (b"{", b" ", b"\t"):
                value = series_value(line[len(name) :])
                if value is None:
                    self._bad = True
                else:
                    self._total = (self._total or 0.0) + value
                    self._seen_at = self._seen_at or at
                return


_SLACK_BYTES = 16 * 1024


def series_value(rest: bytes) -> float | None:
    """Read the value behind a series' name: `{labels} value [timestamp]`; None unless it is a finite number >= 0."""
    fields = rest[rest.rfind(b"}") + 1 :].split()
    if not 1 <= len(fields) <= 2:
        return None
    try:
        value = float(fields[0])
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
