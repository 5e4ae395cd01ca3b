"""A real Prometheus reads a real proxy: the rules evaluate and every panel of the dashboard has its data."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.integration.support import StartProxy, chat, client
from tools.launch import ROOT, DdProxy, Fake, ask, wait_until

DEPLOY = ROOT / "deploy"

# Panels that are empty while nothing of the kind has happened.
MAY_BE_EMPTY = {"Refused by the proxy, by reason", "Breaker trips"}

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None and os.environ.get("CI") != "true",
    reason="prometheus not found; on Debian: apt install prometheus",
)


@contextmanager
def prometheus(folder: Path, proxy: DdProxy) -> Iterator[int]:
    """Run Prometheus with the shipped rules on one proxy; gives its port."""
    names = ("recording.yml", "alerts.yml")
    for name in names:
        text = (DEPLOY / "prometheus" / name).read_text().replace("interval: 15s", "interval: 1s")
        (folder / name).write_text(text)
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": names,
        "scrape_configs": [
            {"job_name": "dd-proxy", "static_configs": [{"targets": [f"127.0.0.1:{proxy.side_port}"]}]},
        ],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    command = [
        *("prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"),
        *(f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"),
    ]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_until(lambda: answers(port), what="Prometheus")
        yield port
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


def answers(port: int) -> bool:
    with suppress(OSError):
        return ask(port, "GET", "/-/ready")[0] == 200
    return False


def query(port: int, expression: str) -> list[dict[str, Any]]:
    status, body = ask(port, "GET", f"/api/v1/query?query={quote(expression, safe='')}")
    answer = json.loads(body)
    assert status == 200, f"{expression}: {answer}"
    found: list[dict[str, Any]] = answer["data"]["result"]
    return found


def rules(port: int) -> list[dict[str, Any]]:
    groups = json.loads(ask(port, "GET", "/api/v1/rules")[1])["data"]["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panel_queries() -> dict[str, list[str]]:
    """The queries of every panel by its title, the variables replaced as Grafana does for "All"."""
    panels = json.loads((DEPLOY / "grafana" / "dd-proxy.json").read_text())["panels"]
    queries = {}
    for panel in panels:
        texts = [target["expr"].replace("$__rate_interval", "30s") for target in panel.get("targets", [])]
        for variable in ("$job", "$instance", "$backend"):
            texts = [text.replace(variable, ".*") for text in texts]
        if texts:
            queries[panel["title"]] = texts
    return queries


def scraped(port: int, requests: int) -> bool:
    return query(port, f"dd_proxy_requests_total == {requests}") != []


def empty_panels(port: int) -> dict[str, str]:
    """The queries that give nothing, by the title of their panel."""
    queries = [(title, text) for title, texts in panel_queries().items() for text in texts]
    return {title: text for title, text in queries if title not in MAY_BE_EMPTY and query(port, text) == []}


@needs_prometheus
@pytest.mark.slow
async def test_every_panel_has_data_and_every_rule_evaluates(
    replicas: list[Fake], start_proxy: StartProxy, tmp_path: Path
) -> None:
    proxy = start_proxy(replicas, "--breaker-failure-threshold", "0")
    proxy.wait_ready()
    replicas[0].fault("status", status=503)
    with prometheus(tmp_path, proxy) as port:
        for sent in (16, 32, 48):  # a rate needs two scrapes of a series, between which it has grown
            async with client(proxy) as http:
                for _ in range(16):
                    assert (await chat(http)).status_code == 200
            wait_until(partial(scraped, port, sent), what=f"{sent} requests in Prometheus")
        with suppress(TimeoutError):  # the assertion says more
            wait_until(lambda: empty_panels(port) == {}, what="data for every panel")
        assert empty_panels(port) == {}
        assert len(rules(port)) >= 20
        wait_until(lambda: all(rule["health"] == "ok" for rule in rules(port)), what="every rule evaluated")
