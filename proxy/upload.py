"""A request body that did not come in one piece with its head: taken up as it comes.

Owns how much of it is still missing and how fast it comes. Bytes in, an index out; body.py keeps them, framing.py knows
where they end.
"""

from __future__ import annotations

from proxy.body import RequestBody
from proxy.framing import MORE, ChunkScanner

MIN_BODY_BYTES = 1024  # that a body must bring in any --client-timeout


class Upload:
    """A request body on its way; `length` is None for a chunked one."""

    __slots__ = ("_mark_at", "_mark_size", "_missing", "_pieces", "_scanner", "body")

    def __init__(self, body: RequestBody, length: int | None, now: float) -> None:
        self.body = body
        self._missing = length or 0
        self._pieces: list[bytes] = []
        self._scanner = ChunkScanner(self._pieces) if length is None else None
        self._mark_size = 0
        self._mark_at = now

    def feed(self, data: bytes) -> int:
        """Take a piece; the index behind the body's end in it, or MORE. Raises FramingError or SpoolError."""
        if self._scanner is not None:
            end = self._scanner.feed(data)
            self.body.append(b"".join(self._pieces))  # in one: chunks may be tiny, and each would cost a system call
            self._pieces.clear()
            return end
        missing = self._missing
        self._missing -= len(data)
        if len(data) > missing:
            self.body.append(data[:missing])
            return missing
        self.body.append(data)
        return missing if len(data) == missing else MORE

    def too_slow(self, now: float, limit_s: float) -> bool:
        """Tell whether it brought less than MIN_BODY_BYTES in `limit_s`; to be asked every now and then."""
        size = self.body.size
        if size - self._mark_size >= MIN_BODY_BYTES:
            self._mark_size = size
            self._mark_at = now
            return False
        return now - self._mark_at > limit_s
