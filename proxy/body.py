"""A request body while it is read, and afterwards for each attempt: in memory, or in an unlinked temporary file.

Owns the bytes and the file; knows no framing and no sockets. File system calls are made on the event loop: they meet
the page cache, in pieces of at most a read's size.
"""

from __future__ import annotations

import contextlib
import os

PIECE_BYTES = 256 * 1024  # read back from a file at a time
SMALL_BYTES = 4096  # pieces below this are put together: each would cost more memory than its bytes


class SpoolError(Exception):
    """The temporary file cannot be written or read; the text says why (no path of a client in it)."""


class RequestBody:
    """Bytes of one request body, replayable any number of times.

    More than `memory_limit` bytes go to a file in `spool_dir`, which has no name there. `close` must be called once;
    it is idempotent, and garbage collection does it too.
    """

    __slots__ = ("_fd", "_memory_limit", "_pieces", "_spool_dir", "size")

    def __init__(self, memory_limit: int, spool_dir: str) -> None:
        self._memory_limit = memory_limit
        self._spool_dir = spool_dir
        self._pieces: list[bytes | bytearray] = []
        self._fd = -1
        self.size = 0

    def __del__(self) -> None:
        self.close()

    @property
    def spooled(self) -> bool:
        """True when the body is in a file."""
        return self._fd >= 0

    def append(self, data: bytes) -> None:
        """Add a piece; raises SpoolError when the file cannot be written, after which only `close` is allowed."""
        if self._fd < 0:
            if self.size + len(data) <= self._memory_limit:
                self._keep(data)
                self.size += len(data)
                return
            self._fd = _open_unlinked(self._spool_dir)
            for piece in self._pieces:
                self._write(piece)
            self._pieces.clear()
        self._write(data)
        self.size += len(data)

    def _keep(self, data: bytes) -> None:
        pieces = self._pieces
        if len(data) >= SMALL_BYTES:
            pieces.append(data)
        elif pieces and type(pieces[-1]) is bytearray:
            pieces[-1] += data
        else:
            pieces.append(bytearray(data))

    def _write(self, data: bytes | bytearray) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as e:
            raise SpoolError(f"cannot write a request body to a temporary file: {e.strerror}") from None

    def in_memory(self) -> bytes:
        """Give the whole body of a request that is not spooled, as one piece."""
        return b"".join(self._pieces)

    def read(self, offset: int) -> bytes:
        """Read a piece of a spooled body; raises SpoolError when the file does not give it."""
        try:
            data = os.pread(self._fd, min(PIECE_BYTES, self.size - offset), offset)
        except OSError as e:
            raise SpoolError(f"cannot read a request body back: {e.strerror}") from None
        if not data:
            raise SpoolError("a temporary file became shorter")
        return data

    def close(self) -> None:
        """Free memory and file."""
        self._pieces.clear()
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            with contextlib.suppress(OSError):
                os.close(fd)


def _open_unlinked(directory: str) -> int:
    try:
        return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        pass  # a file system without O_TMPFILE (NFS), or a real fault, which the next call names
    import tempfile  # rarely needed, and it costs idle memory

    try:
        fd, path = tempfile.mkstemp(prefix="dd-proxy-", dir=directory)
    except OSError as e:
        raise SpoolError(f"cannot create a temporary file: {e.strerror}") from None
    os.unlink(path)
    return fd
