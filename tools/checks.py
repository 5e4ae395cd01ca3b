"""Runs every check of the project, and closes with a summary.

Owns the order and the summary. Goes on after a failed check, so that one run shows all that is wrong. Checks run one
after the other, but for the longest one, which mostly waits for Slurm: it runs beside those before it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
LOOP_CASES = "^(http|connect|read|load|signal)"  # what could differ without uvloop: sockets, time and signals
GROUPS = ("unit", "tools", "runtime", "integration", "page")
BESIDE = "tests/runtime"


@dataclass(frozen=True, slots=True)
class Check:
    """A command whose exit code says whether the project is well."""

    name: str
    argv: tuple[str, ...]


def checks(conformance: Path, jobs: int) -> list[Check]:
    """Return every check that can be made here, the quick ones first."""
    scripts = [str(path) for path in shell_scripts()]
    found = [
        Check("format", (str(BIN / "ruff"), "format", "--check", ".")),
        Check("lint", (str(BIN / "ruff"), "check", ".")),
        Check("types", (str(BIN / "mypy"),)),
        Check("shell", ("shellcheck", *scripts)),
    ]
    found += [Check(f"tests/{group}", (str(BIN / "pytest"), "-q", f"tests/{group}")) for group in GROUPS]
    harness = conformance / "harness.py"
    if harness.is_file():
        plain = f"{sys.executable} {ROOT / 'tools' / 'plain_asyncio.py'}"
        command = (sys.executable, str(ROOT / "tools" / "conformance.py"), str(harness), "--jobs", str(jobs), "--proxy")
        found.append(Check("conformance", (*command, str(BIN / "dd-proxy"))))
        found.append(Check("conformance/asyncio", (*command, plain, "--only", LOOP_CASES)))
    else:
        print(f"no conformance harness at {conformance}: left out")
    return found


def shell_scripts() -> list[Path]:
    """Return the shell scripts among the files that git knows."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for path in map(Path, listed.splitlines()) if _is_shell(ROOT / path)]


def _is_shell(path: Path) -> bool:
    if path.suffix not in ("", ".sh") or not path.is_file():
        return False
    with path.open("rb") as file:
        first = file.readline(100)
    return first.startswith(b"#!") and first.rstrip().endswith((b"bash", b"/sh"))


def run(check: Check) -> bool:
    """Run one check; tell whether it passed."""
    print(f"\n=== {check.name}", flush=True)
    try:
        return subprocess.run(check.argv, cwd=ROOT, stdin=subprocess.DEVNULL).returncode == 0
    except FileNotFoundError:
        print(f"{check.argv[0]} is not installed: skipped")
        return True


class Beside:
    """A check that runs while others do; it prints into `output`, a file, which is shown when it has ended."""

    def __init__(self, check: Check, output: IO[bytes]) -> None:
        self._check = check
        self._output = output
        self._began = time.monotonic()
        self._process = subprocess.Popen(
            check.argv, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )

    def finish(self) -> tuple[str, bool, float]:
        """Wait for its end and show what it printed; returns its name, whether it passed, and its seconds."""
        passed = self._process.wait() == 0
        took = time.monotonic() - self._began
        print(f"\n=== {self._check.name}", flush=True)
        self._output.seek(0)
        print(self._output.read().decode(errors="replace"), end="", flush=True)
        return self._check.name, passed, took


def close(results: list[tuple[str, bool, float]]) -> int:
    """Print the summary of checks with their seconds; return the exit code."""
    print("\n=== summary")
    for name, passed, took in results:
        print(f"{'ok    ' if passed else 'FAILED'}  {name:<20}{took:7.1f} s")
    failed = sum(not passed for _, passed, _ in results)
    print(f"checks: {len(results) - failed} passed, {failed} failed")
    return 1 if failed else 0


def main() -> int:
    """Run the checks; return 0 when all passed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--conformance", type=Path, required=True, help="folder of the conformance harness")
    parser.add_argument("--jobs", type=int, default=4, help="conformance cases at a time (default %(default)s)")
    args = parser.parse_args()
    found = checks(args.conformance, args.jobs)
    results: list[tuple[str, bool, float]] = []
    with tempfile.TemporaryFile() as output:
        beside = Beside(next(check for check in found if check.name == BESIDE), output)
        for check in found:
            if check.name == BESIDE:
                results.append(beside.finish())
                continue
            began = time.monotonic()
            results.append((check.name, run(check), time.monotonic() - began))
    return close(results)


if __name__ == "__main__":
    raise SystemExit(main())
