"""Runs the black-box conformance harness, and again, alone, each case that failed.

Owns nothing but that second look: the cases measure time and races from outside, so that one that is fine can fail by
chance. A case that fails alone as well, every time, has failed.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

TRIES_ALONE = 3


def run(harness: Path, proxy: str, jobs: int, only: str | None) -> list[str]:
    """Run the cases whose ids match `only` (all without it); return the ids of those that failed."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results.json")
        argv = [sys.executable, str(harness), "--proxy", proxy, "--jobs", str(jobs), "--json", str(results)]
        if only is not None:
            argv += ["--only", only]
        code = subprocess.run(argv, stdin=subprocess.DEVNULL).returncode
        try:
            records = json.loads(results.read_text())
        except (OSError, ValueError):
            raise SystemExit(f"the harness wrote no results (exit {code})") from None
    return [record["id"] for record in records if record["verdict"] != "pass"]


def main() -> int:
    """Run the cases; return 0 when each has passed, beside others or alone."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("harness", type=Path)
    parser.add_argument("--proxy", required=True, help="command that starts the proxy")
    parser.add_argument("--jobs", type=int, default=4, help="cases at a time (default %(default)s)")
    parser.add_argument("--only", help="regular expression on case ids")
    args = parser.parse_args()
    failed = run(args.harness, args.proxy, args.jobs, args.only)
    for _ in range(TRIES_ALONE):
        if failed:
            print(f"once more, alone: {' '.join(failed)}", flush=True)
            failed = run(args.harness, args.proxy, 1, "^(" + "|".join(map(re.escape, failed)) + ")$")
    if failed:
        print(f"failed every time: {' '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
