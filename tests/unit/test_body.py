"""A request body is held in memory or in a file without a name, comes back as it was, and is gone whatever happens."""

from __future__ import annotations

import errno
import gc
import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.body import PIECE_BYTES, RequestBody, SpoolError
from tests.unit.kit import spooled_files


def whole(body: RequestBody) -> bytes:
    if not body.spooled:
        return body.in_memory()
    data = b""
    while len(data) < body.size:
        data += body.read(len(data))
    return data


@settings(deadline=None, max_examples=60)
@given(st.lists(st.binary(max_size=300), max_size=12), st.integers(0, 1000))
def test_the_bytes_come_back_any_number_of_times(pieces: list[bytes], limit: int) -> None:
    body = RequestBody(limit, "/tmp")
    for piece in pieces:
        body.append(piece)
    sent = b"".join(pieces)
    assert body.size == len(sent)
    assert body.spooled == (len(sent) > limit)
    assert [whole(body), whole(body)] == [sent, sent]
    body.close()


def test_exactly_the_limit_stays_in_memory(tmp_path: Path) -> None:
    body = RequestBody(10, str(tmp_path))
    body.append(b"12345")
    body.append(b"67890")
    before = body.spooled
    body.append(b"!")
    assert (before, body.spooled) == (False, True)
    assert whole(body) == b"1234567890!"
    body.close()


def test_the_file_has_no_name_and_is_gone_after_close(tmp_path: Path) -> None:
    body = RequestBody(0, str(tmp_path))
    body.append(b"secret")
    assert list(tmp_path.iterdir()) == []
    assert len(spooled_files(str(tmp_path))) == 1
    body.close()
    body.close()
    assert spooled_files(str(tmp_path)) == []


def test_a_body_that_is_forgotten_is_closed_too(tmp_path: Path) -> None:
    body = RequestBody(0, str(tmp_path))
    body.append(b"secret")
    del body
    gc.collect()
    assert spooled_files(str(tmp_path)) == []


def test_a_file_system_without_nameless_files_serves_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def without_tmpfile(path: str, flags: int, mode: int = 0o777, **more: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return real(path, flags, mode, **more)

    monkeypatch.setattr(os, "open", without_tmpfile)
    body = RequestBody(0, str(tmp_path))
    body.append(b"abc")
    assert list(tmp_path.iterdir()) == []
    assert whole(body) == b"abc"
    body.close()
    assert spooled_files(str(tmp_path)) == []


def test_a_large_file_is_read_back_in_pieces(tmp_path: Path) -> None:
    body = RequestBody(0, str(tmp_path))
    sent = os.urandom(PIECE_BYTES * 2 + 5)
    body.append(sent)
    assert len(body.read(0)) == PIECE_BYTES
    assert body.read(PIECE_BYTES * 2) == sent[-5:]
    body.close()


def test_a_folder_that_is_not_there_is_named_as_the_cause() -> None:
    body = RequestBody(0, "/nowhere/at/all")
    with pytest.raises(SpoolError, match="cannot create a temporary file: No such file or directory"):
        body.append(b"x")
    body.close()


def test_a_full_disk_is_a_spool_error_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = RequestBody(0, str(tmp_path))
    body.append(b"fits")

    def full(fd: int, data: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(SpoolError, match="No space left on device"):
            body.append(b"does not")
    body.close()
    assert spooled_files(str(tmp_path)) == []


def test_a_write_that_is_cut_short_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    body = RequestBody(0, str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: real(fd, data[:3]))
        body.append(b"0123456789")
    assert whole(body) == b"0123456789"
    body.close()


def test_a_file_that_cannot_be_read_back_is_a_spool_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = RequestBody(0, str(tmp_path))
    body.append(b"abc")

    def broken(fd: int, size: int, offset: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", broken)
        with pytest.raises(SpoolError, match="Input/output error"):
            body.read(0)
        patch.setattr(os, "pread", lambda fd, size, offset: b"")
        with pytest.raises(SpoolError, match="became shorter"):
            body.read(0)
    body.close()


def test_a_body_in_tiny_pieces_takes_no_more_memory_than_its_bytes() -> None:
    body = RequestBody(1 << 20, "/tmp")
    pieces = [bytes([n % 256, n // 256 % 256]) for n in range(50_000)]
    tracemalloc.start()
    try:
        for piece in pieces:
            body.append(bytes(bytearray(piece)))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 4 * body.size
    assert body.in_memory() == b"".join(pieces)
    body.close()
