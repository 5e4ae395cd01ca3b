"""A conformance case that fails beside others gets a few more chances alone, and no more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "conformance.py"

# Stands in for the harness: fails each case named in the file, as often as it says there.
HARNESS = """
import argparse, json, pathlib, re, sys
p = argparse.ArgumentParser()
for name in ("proxy", "jobs", "json", "only"):
    p.add_argument("--" + name)
o = p.parse_args()
plan = pathlib.Path(__file__).with_name("plan.json")
left = json.loads(plan.read_text())
chosen = [c for c in left if not o.only or re.search(o.only, c)]
print(f"jobs {o.jobs}: {' '.join(chosen)}")
pathlib.Path(o.json).write_text(json.dumps([{"id": c, "verdict": "FAIL" if left[c] > 0 else "pass"} for c in chosen]))
plan.write_text(json.dumps({c: n - (c in chosen) for c, n in left.items()}))
sys.exit(any(left[c] > 0 for c in chosen))
"""


@pytest.mark.parametrize(
    ("plan", "code", "said"),
    [
        ('{"a-b": 0, "c": 0}', 0, ["jobs 4: a-b c"]),
        ('{"a-b": 1, "c": 0}', 0, ["jobs 4: a-b c", "once more, alone: a-b", "jobs 1: a-b"]),
        ('{"a-b": 3, "c": 1}', 0, ["once more, alone: a-b c", "jobs 1: a-b c", "once more, alone: a-b"]),
        ('{"a-b": 4, "c": 1}', 1, ["once more, alone: a-b c", "jobs 1: a-b c", "failed every time: a-b"]),
    ],
)
def test_a_case_fails_when_it_fails_beside_others_and_every_time_alone(
    tmp_path: Path, plan: str, code: int, said: list[str]
) -> None:
    (tmp_path / "harness.py").write_text(HARNESS)
    (tmp_path / "plan.json").write_text(plan)
    argv = [sys.executable, str(TOOL), str(tmp_path / "harness.py"), "--proxy", "none"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stdout + done.stderr
    assert list(dict.fromkeys(line for line in done.stdout.splitlines() if line in said)) == said


def test_a_harness_without_results_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "harness.py").write_text("raise SystemExit(2)")
    argv = [sys.executable, str(TOOL), str(tmp_path / "harness.py"), "--proxy", "none"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.strip()) == (1, "the harness wrote no results (exit 2)")
