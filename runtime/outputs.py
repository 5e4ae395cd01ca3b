"""What the client left behind: which outputs are there, how many records they hold, and what is wrong with them.

Owns the counting and hashing. Refuses to know what a record means: it is a line.
"""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from runtime.plan import Output
from runtime.state import OutputRecord

_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Inspection:
    """The outputs as found, in the plan's order, those that are missing left out; and one line for each problem."""

    found: tuple[OutputRecord, ...] = ()
    problems: tuple[str, ...] = ()


def inspect(directory: Path, outputs: Sequence[Output], stop: threading.Event | None = None) -> Inspection:
    """Read every output whole, or until `stop` is set, which leaves the rest as problems.

    Never raises for a file that cannot be read: that is a problem of the output.
    """
    found, problems = [], []
    for output in outputs:
        try:
            record = measure(directory, output.path, stop)
        except FileNotFoundError:
            problems.append(f"{output.path}: missing")
            continue
        except OSError as error:
            problems.append(f"{output.path}: cannot be read: {error.strerror or error}")
            continue
        found.append(record)
        if output.records is None:
            problems += [f"{output.path}: empty"] if record.bytes == 0 else []
        elif record.records != output.records:
            problems.append(f"{output.path}: {record.records} records, the plan wants {output.records}")
    return Inspection(tuple(found), tuple(problems))


def open_output(path: Path) -> BinaryIO:
    """Open a file for reading without ever waiting: a pipe of that name has no writer, perhaps. Raises OSError."""
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))


def measure(directory: Path, path: str, stop: threading.Event | None = None) -> OutputRecord:
    """Count the lines and bytes of one file and hash it; a last line without its end counts.

    Raises OSError, also when `stop` is set meanwhile.
    """
    digest, lines, size, last = hashlib.sha256(), 0, 0, b"\n"
    with open_output(directory / path) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path} is not a regular file")
        while block := file.read(_BLOCK):
            if stop is not None and stop.is_set():
                raise OSError("it was still being read when the attempt had to end")
            digest.update(block)
            lines += block.count(b"\n")
            size += len(block)
            last = block[-1:]
    return OutputRecord(path, lines + (last != b"\n"), digest.hexdigest(), size)
