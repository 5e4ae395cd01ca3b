"""Read one number out of a page of Prometheus text: how many requests wait in an engine's queue.

Pure: finds the series in the bytes as they come and never parses the page. Names: vLLM `vllm:num_requests_waiting`,
SGLang `sglang:num_queue_reqs` (either with `_` for `:`), one series per engine or rank, all of them summed.
"""

from __future__ import annotations

import math

ENGINE_SERIES = {"vllm": b"num_requests_waiting", "sglang": b"num_queue_reqs"}
MAX_LINE_BYTES = 64 * 1024
WINDOW_BYTES = 32 * 1024  # copied out of the shared buffer at a time, until the series were found
FAMILY_BYTES = 2048  # of one name, as a rule
SLACK_BYTES = 16 * 1024  # pages grow by a few digits between two samples, so a series stays near its last place


class DepthReader:
    """Reads the pages of one backend, one after the other.

    All series of a name stand together (as the text format demands), so a page is searched only from a little before
    the place where they stood last time, and no further than their end. If they moved more than that, or some of them
    may stand before that place, this page counts as unreadable and the next one is searched whole. Most pages have the
    same series with the same values at the same place, with the same lines around them: then nothing is read at all.
    """

    __slots__ = (
        *("_aligned", "_all_names", "_bad", "_behind_at", "_cut", "_done", "_first_line_at", "_found_at", "_from"),
        *("_fresh", "_guess", "_known", "_known_at", "_known_total", "_name", "_offset", "_same", "_total"),
    )

    def __init__(self, engine: str) -> None:
        engines = ENGINE_SERIES if engine == "auto" else {engine: ENGINE_SERIES[engine]}
        self._all_names = [e.encode() + sep + series for e, series in engines.items() for sep in (b":", b"_")]
        self._name: bytes | None = None  # the one that was found last
        self._found_at = -1
        self._known = b""  # the series, the line before them, and as much behind as tells that they end there
        self._known_at = 0
        self._known_total: float | None = None
        self._start()
        self.begin()

    def begin(self) -> None:
        """Begin a new page."""
        self._fresh = True  # nothing of it has come
        self._same = False  # as is known

    def _start(self) -> None:
        self._fresh = False
        if self._found_at < 0:
            self._name = None
        self._from = max(self._found_at - SLACK_BYTES, 0)
        self._guess = self._found_at  # nearly always the series stand where they stood, to the byte
        self._aligned = self._from == 0  # whether the search stands at the start of a line
        self._first_line_at = -1  # place of the first line that was looked at, if others stand before it
        self._found_at = -1
        self._behind_at = -1  # place of the first line behind the series
        self._offset = 0
        self._cut = b""
        self._total: float | None = None
        self._bad = self._done = False

    def feed(self, piece: memoryview) -> None:
        """Take the next piece of the page; it is not kept."""
        if self._same:
            return
        if self._fresh:
            at, known = self._known_at, self._known
            if known and bytes(piece[at : at + len(known)]) == known:
                self._same = True
                return
            self._start()
        at = max(self._from - self._offset, 0)
        guess = self._guess - self._offset
        if 0 < guess < len(piece) and self._cut == b"" and self._found_at < 0:
            before = self._line_before(piece, guess)
            if before >= 0:
                self._aligned = True
                self._search(bytes(piece[guess : guess + FAMILY_BYTES]), self._offset + guess)
                at = guess + FAMILY_BYTES
                self._remember(piece, before)
        while not self._done and at < len(piece):
            self._search(bytes(piece[at : at + WINDOW_BYTES]), self._offset + at)
            at += WINDOW_BYTES
        self._offset += len(piece)

    def _line_before(self, piece: memoryview, at: int) -> int:
        """Give the place of the line before this index, line feed included; -1 unless the series begin at the index."""
        name = self._name
        if name is None or piece[at - 1] != 0x0A or piece[at : at + len(name)] != name:
            return -1
        first = max(at - FAMILY_BYTES, 0)
        before = bytes(piece[first : at - 1])
        feed = before.rfind(b"\n")
        if feed < 0 and (first or self._offset):
            return -1
        return -1 if before.startswith(name, feed + 1) else first + max(feed, 0)

    def _remember(self, piece: memoryview, before: int) -> None:
        """Remember where the series stand, if all that tells so is in the first piece."""
        assert self._name is not None
        end = self._behind_at + len(self._name) + 1
        whole = self._behind_at >= 0 and not self._offset and end <= len(piece)
        self._known = bytes(piece[before:end]) if whole and not self._bad else b""
        self._known_at = before
        self._known_total = self._total

    def finish(self) -> float | None:
        """End the page: the depth, or None when it has no readable series."""
        if self._same:
            return self._known_total
        if self._fresh:
            self._start()
        if self._cut and not self._done:
            self._search(b"\n", self._offset)
        return None if self._bad else self._total

    def _search(self, data: bytes, at: int) -> None:
        """Look through the whole lines of `data`, which stands at `at` in the page; keep a line that is cut."""
        if self._cut:
            data, at = self._cut + data, at - len(self._cut)
        last = data.rfind(b"\n")
        self._cut = data[last + 1 :][:MAX_LINE_BYTES]
        if last < 0:
            return
        start = 0
        if not self._aligned:
            self._aligned = True
            start = data.find(b"\n") + 1
            self._first_line_at = at + start
        if self._total is None and not self._bad:
            start = self._first_series(data, start, last)
            if start < 0:
                return
            if at + start == self._first_line_at:
                self._bad = self._done = True
                return
            self._found_at = at + start
        while start <= last and not self._done:
            end = data.find(b"\n", start)
            self._take_line(data[start:end], at + start)
            start = end + 1

    def _first_series(self, data: bytes, start: int, last: int) -> int:
        """Find the first line of the series between `start` and the line feed at `last`; -1 when it is not there."""
        for name in self._all_names if self._name is None or self._from == 0 else [self._name]:
            at = start if data.startswith(name, start) else (data.find(b"\n" + name, start, last) + 1 or -1)
            while at >= 0:
                if data[at + len(name) : at + len(name) + 1] in _AFTER_NAME:
                    self._name = name
                    return at
                at = data.find(b"\n" + name, at, last) + 1 or -1
        return -1

    def _take_line(self, line: bytes, at: int) -> None:
        name = self._name
        assert name is not None
        if not line.startswith(name) or line[len(name) : len(name) + 1] not in _AFTER_NAME:
            self._done = True
            self._behind_at = at
            return
        value = series_value(line[len(name) :])
        if value is None:
            self._bad = self._done = True
        else:
            self._total = (self._total or 0.0) + value


_AFTER_NAME = (b"{", b" ", b"\t")


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
