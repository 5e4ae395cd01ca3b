"""What the data path does for one request or event, counted inside Python: no clock, so the same on every machine.

Owns the counting of calls (sys.setprofile), of bytecode instructions (sys.settrace), and of what is left behind. Run as
a script, with PYTHONHASHSEED=0, it prints one JSON object; budget.py compares that with the record.
"""

from __future__ import annotations

import gc
import json
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.benchmark.drive import Drive, Wire

CLIENTS = 2000

Run = Callable[[int], None]


def calls(run: Run, units: int) -> dict[str, float]:
    """Count calls of functions, those written in C included, per unit and by name."""
    found: Counter[Any] = Counter()

    def count(frame: FrameType, event: str, arg: Any) -> None:
        if event == "call":
            found[frame.f_code] += 1
        elif event == "c_call":
            found[getattr(arg, "__qualname__", repr(arg))] += 1

    sys.setprofile(count)
    try:
        run(units)
    finally:
        sys.setprofile(None)
    found.pop("setprofile", None)
    return _per_unit({key: number for key, number in found.items() if _is_call(key)}, units)


def instructions(run: Run, units: int) -> dict[str, float]:
    """Count the bytecode instructions executed, per unit and by function; they differ between versions of Python."""
    found: Counter[Any] = Counter()

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode":
            found[frame.f_code] += 1
        else:
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
        return trace

    sys.settrace(trace)
    try:
        run(units)
    finally:
        sys.settrace(None)
    return _per_unit(found, units)


def _is_call(key: CodeType | str) -> bool:
    """Leave out what is no call any more from Python 3.12 on (PEP 709)."""
    return isinstance(key, str) or key.co_name not in ("<listcomp>", "<dictcomp>", "<setcomp>")


def _name(key: CodeType | str) -> str:
    return key if isinstance(key, str) else f"{Path(key.co_filename).stem}.{key.co_qualname}"


def _per_unit(found: dict[Any, int], units: int) -> dict[str, float]:
    """Sum up by name. What is rare is left out: it belongs to the beginning or end of a run, or to the drive itself."""
    named: Counter[str] = Counter()
    for key, number in found.items():
        named[_name(key)] += number
    rare = units // 50
    counted = {name: number for name, number in named.items() if number > rare and not name.startswith("drive.")}
    return {name: round(number / units, 2) for name, number in sorted(counted.items())}


def left_behind(run: Run, units: int) -> tuple[float, float]:
    """Count, per unit, the memory blocks that stay and the objects that only the garbage collector would free."""
    for _ in range(8):  # so that every ring and free list holds nothing else
        run(units)
    gc.collect()
    gc.disable()
    try:
        before = sys.getallocatedblocks()
        run(units)
        after = sys.getallocatedblocks()
        garbage = gc.collect()
    finally:
        gc.enable()
    return round((after - before) / units, 2), round(garbage / units, 2)


def bytes_per_client(drive: Drive) -> float:
    """Measure what an idle client connection keeps allocated in Python, its transport not included."""
    wires = [Wire() for _ in range(CLIENTS)]
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    clients = [drive.connect(wire) for wire in wires]
    kept = tracemalloc.get_traced_memory()[0] - before - sys.getsizeof(clients)
    tracemalloc.stop()
    for client in clients:
        client.connection_lost(None)
    return round(kept / CLIENTS, 1)


def main() -> None:
    """Count everything and print it."""
    drive = Drive()
    drive.warm_up()
    found: dict[str, Any] = {}
    for name, (run, units) in drive.scenarios().items():
        kept, garbage = left_behind(run, units)
        found[name] = {
            "calls": calls(run, units),
            "bytecode": instructions(run, units),
            "blocks kept": kept,
            "garbage": garbage,
        }
    found["idle client"] = {"bytes kept": bytes_per_client(drive)}
    drive.close()
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
