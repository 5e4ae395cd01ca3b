"""The reference page says what the code has: no metric, field, event or word more or less."""

from __future__ import annotations

import ast
import subprocess
import sys

from prometheus_client import CollectorRegistry, ProcessCollector

from tools.launch import ROOT
from tools.reference import EVENT_FIELDS, LABEL_VALUES, PROCESS_METRICS, page, undocumented


def test_the_page_is_what_its_command_prints() -> None:
    command = [sys.executable, str(ROOT / "tools" / "reference.py")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/").stdout
    assert printed == page()
    text = (ROOT / "docs" / "reference.md").read_text()
    assert text == printed, "out of date: python tools/reference.py > docs/reference.md"


def test_everything_has_its_description() -> None:
    assert undocumented() == []


def test_every_field_that_the_code_logs_is_described() -> None:
    found = set()
    for path in (ROOT / "proxy").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "event":
                found |= {keyword.arg for keyword in node.keywords if keyword.arg is not None}
    assert found
    assert found <= set(EVENT_FIELDS)


def test_the_process_metrics_are_those_of_the_client_library() -> None:
    families = ProcessCollector(registry=CollectorRegistry()).collect()
    assert {sample.name for family in families for sample in family.samples} == set(PROCESS_METRICS)


def test_label_values_are_told_for_metrics_that_exist() -> None:
    assert all(f"| `{name}` | " in page() for name in LABEL_VALUES)
