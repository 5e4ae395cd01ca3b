"""What operators load into Prometheus and Grafana is valid, and asks only for metrics that the proxy has."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from proxy.metrics import METRICS
from tools.launch import ROOT
from tools.reference import PROCESS_METRICS

PROMETHEUS = ROOT / "deploy" / "prometheus"
RULES = [PROMETHEUS / "recording.yml", PROMETHEUS / "alerts.yml"]
DASHBOARD = ROOT / "deploy" / "grafana" / "dd-proxy.json"
TARGET_LABELS = {"job", "instance", "le"}

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None and os.environ.get("CI") != "true",
    reason="promtool not found; on Debian: apt install prometheus",
)


def promtool(*args: str | Path) -> str:
    done = subprocess.run(["promtool", *map(str, args)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def dashboard_queries() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel.get("targets", [])]


def rule_queries() -> list[str]:
    """The expressions of all rules, read without a YAML library: one line, or an indented block."""
    text = "\n".join(path.read_text() for path in RULES)
    return [block or line for block, line in re.findall(r"^ +expr: (?:\|\n((?: {10,}.*\n)+)|(.+))", text, re.M)]


def known_series() -> dict[str, set[str]]:
    """Labels by the name of every series that the proxy has."""
    series: dict[str, set[str]] = {name: set() for name in PROCESS_METRICS}
    for metric in METRICS:
        suffixes = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
        series |= {metric.name + suffix: set(metric.labels) for suffix in suffixes}
    return series


@needs_promtool
def test_promtool_accepts_the_rules() -> None:
    promtool("check", "rules", *RULES)


@needs_promtool
def test_the_rules_keep_their_promises() -> None:
    promtool("test", "rules", PROMETHEUS / "tests.yml")


@needs_promtool
def test_every_query_of_the_dashboard_is_valid(tmp_path: Path) -> None:
    lines = ["groups:", "- name: dashboard", "  rules:"]
    for number, query in enumerate(dashboard_queries()):
        plain = query.replace("$__rate_interval", "1m").replace("$job", ".*").replace("$instance", ".*")
        lines += [f"  - record: panel:{number}", f"    expr: {json.dumps(plain.replace('$backend', '.*'))}"]
    rules = tmp_path / "dashboard.yml"
    rules.write_text("\n".join(lines) + "\n")
    promtool("check", "rules", "--lint=none", rules)


@pytest.mark.parametrize("where", ["rules", "dashboard", "dashboard variables"])
def test_every_metric_that_is_asked_for_exists(where: str) -> None:
    recorded = set(re.findall(r"- record: (\S+)", RULES[0].read_text()))
    queries = {
        "rules": rule_queries(),
        "dashboard": dashboard_queries(),
        "dashboard variables": re.findall(r"label_values\([^\"]*", DASHBOARD.read_text()),
    }[where]
    assert queries
    asked = {name for query in queries for name in re.findall(r"[a-z:_\d]*(?:dd_proxy|process)_[a-z:_\d]+", query)}
    assert asked
    assert asked - recorded - set(known_series()) == set()


def test_queries_use_only_labels_that_their_metrics_have() -> None:
    for query in [*rule_queries(), *dashboard_queries()]:
        for name, selector in re.findall(r"\b((?:dd_proxy|process)_\w+)\{([^}]*)\}", query):
            labels = set(re.findall(r"(\w+) *=~?\"", selector))
            assert labels <= known_series()[name] | TARGET_LABELS, query


def test_every_alert_says_what_it_means_and_how_urgent_it_is() -> None:
    alerts = re.split(r"^ +- alert: ", RULES[1].read_text(), flags=re.M)[1:]
    assert len(alerts) >= 10
    for alert in alerts:
        assert re.search(r"severity: (page|ticket)", alert)
        assert "summary:" in alert
        assert "description:" in alert


def test_the_dashboard_can_be_imported_anywhere() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    ids = [panel["id"] for panel in panels()]
    assert len(ids) == len(set(ids))
    sources = {panel["datasource"]["uid"] for panel in panels() if "datasource" in panel}
    assert sources == {"${datasource}"}
    assert {variable["name"] for variable in dashboard["templating"]["list"]} == {
        "datasource",
        "job",
        "instance",
        "backend",
    }


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
