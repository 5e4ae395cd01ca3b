#!/usr/bin/env python3
"""What one request and one event may cost, without a clock: measured here, compared with the record in budget.json.

Owns the record, the tolerances and the words that say what grew. Counted are calls and bytecode instructions in Python
(counts.py), machine instructions (callgrind, where valgrind is installed) and system calls (syscalls.py, where strace
is). What depends on the version or the build of Python is compared only with the one of the record.

    python tools/benchmark/budget.py            # compare
    python tools/benchmark/budget.py --renew    # record what is needed now
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.benchmark import page
from tools.benchmark.drive import Drive
from tools.benchmark.syscalls import syscalls
from tools.launch import StartError

HERE = Path(__file__).resolve().parent
RECORD = HERE / "budget.json"
RENEW = "python tools/benchmark/budget.py --renew"
_SUMMARY = re.compile(r"^summary: (\d+)$", re.MULTILINE)

Figures = dict[str, dict[str, Any]]  # scenario -> figure -> a number, or numbers by function or system call


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How much a figure may exceed its record: a share of it, and a number besides."""

    share: float
    more: float = 0.0


TOLERANCES = {
    "calls": Tolerance(0.03),
    "bytecode": Tolerance(0.03),
    "blocks kept": Tolerance(0.0, 1.0),
    "garbage": Tolerance(0.0, 0.02),
    "bytes kept": Tolerance(0.05),
    "machine instructions": Tolerance(0.05),
    "system calls": Tolerance(0.1),
}
OTHER_PYTHON = Tolerance(0.15)  # calls, where the minor version of Python is not the record's


def measure() -> tuple[Figures, list[str]]:
    """Count everything that can be counted here; returns figures, and one line for each kind that is left out."""
    left_out: list[str] = []
    with ThreadPoolExecutor(2) as pool:
        counting = pool.submit(_counts)
        machine = pool.submit(_machine_instructions) if shutil.which("valgrind") else None
        found = counting.result()
        if shutil.which("strace"):
            try:
                for scenario, parts in syscalls().items():
                    found.setdefault(scenario, {})["system calls"] = parts
            except (OSError, StartError) as error:
                left_out.append(f"system calls: strace cannot trace here ({error})")
        else:
            left_out.append("system calls: strace is not installed")
        if machine is None:
            left_out.append("machine instructions: valgrind is not installed")
        else:
            for scenario, number in machine.result().items():
                found[scenario]["machine instructions"] = number
    return found, left_out


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}


def _counts() -> Figures:
    argv = [sys.executable, str(HERE / "counts.py")]
    found: Figures = json.loads(subprocess.run(argv, env=_environment(), check=True, stdout=subprocess.PIPE).stdout)
    return found


def _machine_instructions() -> dict[str, float]:
    """Count machine instructions per unit: callgrind writes a part at each call of getppid."""
    drive = Drive()
    scenarios = {name: units for name, (_, units) in drive.scenarios().items()}
    drive.close()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out")
        options = [f"--callgrind-out-file={out}", "--dump-before=getppid"]
        argv = ["valgrind", "--tool=callgrind", *options, sys.executable, str(HERE / "drive.py")]
        done = subprocess.run(argv, env=_environment(), capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"valgrind: {done.stderr[-500:]}")
        found = {}
        for number, (name, units) in enumerate(scenarios.items()):
            part = out.with_name(f"out.{2 * number + 2}").read_text(errors="replace")
            summary = _SUMMARY.search(part)
            assert summary is not None
            found[name] = round(int(summary[1]) / units, 1)
        return found


# ---------------------------------------------------------------------- comparing


def total(figure: Any) -> float:
    """Give the number of a figure that may be made of parts."""
    return round(sum(figure.values()), 2) if isinstance(figure, dict) else float(figure)


def grown(record: Figures, found: Figures, *, same_version: bool, same_build: bool) -> list[str]:
    """Say, in a line each, which figures exceed the record by more than their tolerance, and by what."""
    lines = []
    for scenario, figures in found.items():
        for name, figure in figures.items():
            was = record.get(scenario, {}).get(name)
            if was is None or (name == "bytecode" and not same_version):
                continue
            if name == "machine instructions" and not same_build:
                continue
            tolerance = OTHER_PYTHON if name == "calls" and not same_version else TOLERANCES[name]
            limit = total(was) * (1 + tolerance.share) + tolerance.more
            if total(figure) > limit:
                said = f"{scenario}: {total(figure):g} {name}, recorded were {total(was):g}, allowed are {limit:.4g}"
                lines.append(said + _what(was, figure))
    return lines


def _what(was: Any, figure: Any) -> str:
    """Name the parts that grew, the largest first."""
    if not isinstance(was, dict) or not isinstance(figure, dict):
        return ""
    more = {name: figure.get(name, 0.0) - was.get(name, 0.0) for name in figure.keys() | was.keys()}
    order = sorted((name for name in more if more[name] > 0.05), key=lambda name: (-more[name], name))
    return ": " + ", ".join(f"+{more[name]:g} {name}" for name in order[:8]) if order else ""


def compare(found: Figures) -> list[str]:
    """Compare with the record; one line for each figure that grew."""
    record = json.loads(RECORD.read_text())
    same_version = record["python"] == _version()
    return grown(record["figures"], found, same_version=same_version, same_build=record["build"] == sys.version)


def _version() -> str:
    return ".".join(platform.python_version_tuple()[:2])


def renew(found: Figures) -> None:
    """Record what was found, here and in the documentation."""
    record = {"renewed by": RENEW, "python": _version(), "build": sys.version, "figures": found}
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    page.put("budget", table(found))


def table(found: Figures) -> str:
    """Show the totals as a Markdown table."""
    names = [name for name in TOLERANCES if any(name in figures for figures in found.values())]
    lines = ["| per unit | " + " | ".join(names) + " |", "| --- |" + " ---: |" * len(names)]
    for scenario, figures in found.items():
        cells = [f"{total(figures[name]):,.10g}" if name in figures else "" for name in names]
        lines.append(f"| {scenario} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    """Measure, then compare or record; 1 when something grew."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--renew", action="store_true", help="record what is needed now as the new budget")
    args = parser.parse_args()
    found, left_out = measure()
    print(table(found))
    for line in left_out:
        print("not counted:", line)
    if args.renew:
        if left_out:
            print("not recorded: a record needs valgrind and strace", file=sys.stderr)
            return 2
        renew(found)
        return 0
    lines = compare(found)
    for line in lines:
        print("GREW", line)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
