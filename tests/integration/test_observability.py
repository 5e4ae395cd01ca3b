"""What a running proxy tells of itself: metrics, log, page, terminal tools, and that they agree with each other."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import Any

import pytest

from proxy.metrics import METRICS
from tests.integration.support import StartProxy, chat, client, label, one_by_one, statuses
from tools.launch import DD_PROXY, DdProxy, Fake, ask, wait_until
from tools.reference import EVENTS, PROCESS_METRICS, REQUEST_FIELDS, UPSTREAM_FIELDS


def told(proxy: DdProxy, path: str) -> Any:
    status, body = ask(proxy.side_port, "GET", path)
    assert status == 200
    return json.loads(body)


def run_tool(proxy: DdProxy, *words: str) -> str:
    command = [*DD_PROXY, *words, "--url", f"http://127.0.0.1:{proxy.side_port}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


async def failed_over(proxy: DdProxy, replicas: list[Fake]) -> dict[str, Any]:
    """Send requests until one has failed over from the first replica; give its log event."""
    replicas[0].fault("status", status=503)
    answers = await one_by_one(proxy, len(replicas))
    assert statuses(answers) == {200: len(replicas)}
    wait_until(lambda: told(proxy, "/requests?notable=1") != [], what="a failover among the recent requests")
    found: dict[str, Any] = told(proxy, "/requests?notable=1")[0]
    return found


async def test_the_exposition_has_every_metric_of_the_reference_and_promtool_accepts_it(
    replicas: list[Fake], start_proxy: StartProxy
) -> None:
    proxy = start_proxy(replicas)
    await failed_over(proxy, replicas)
    text = ask(proxy.side_port, "GET", "/metrics")[1].decode()
    names = set(re.findall(r"^# TYPE (\S+) ", text, re.M))
    assert names == {metric.name for metric in METRICS} | set(PROCESS_METRICS)
    if shutil.which("promtool"):
        done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
        assert done.returncode in (0, 3), done.stderr  # 3: remarks of style only


async def test_log_ring_metrics_and_backends_tell_the_same_of_one_failover(
    replicas: list[Fake], start_proxy: StartProxy
) -> None:
    proxy = start_proxy(replicas)
    proxy.wait_ready()
    event = await failed_over(proxy, replicas)
    wait_until(lambda: event in proxy.events(), what="the event in the log")
    first, second = event["upstreams"][:2]
    assert (first["backend"], str(first["outcome"])) == (label(replicas[0]), "503")
    metrics = proxy.metrics()
    assert metrics.total("failovers_total") == len(told(proxy, "/requests?notable=1"))
    assert metrics.total("retries_total", reason="http_503") == metrics.total("upstream_responses_total", code="503")
    assert metrics.by("upstream_attempts_total", "backend") == {
        name: entry["requests"] for name, entry in proxy.backends().items() if entry["requests"]
    }
    page = told(proxy, "/status.json")
    assert page["totals"]["failovers"] == metrics.total("failovers_total")
    assert page["failovers"][0]["words"].startswith(f"{first['backend']} answered 503 after ")
    assert page["failovers"][0]["words"].endswith(f"{second['backend']} served it")


async def test_every_field_that_is_logged_is_in_the_reference(replicas: list[Fake], start_proxy: StartProxy) -> None:
    proxy = start_proxy(replicas[:2])
    proxy.wait_ready()
    await failed_over(proxy, replicas[:2])
    assert proxy.admin("POST", "/backends", {"url": replicas[2].urls[0]}) == 201
    assert proxy.admin("DELETE", f"/backends/{label(replicas[2])}") == 202
    wait_until(lambda: any(e["event"] == "backend_removed" for e in proxy.events()), what="the removal in the log")
    assert proxy.stop() == 0
    seen = proxy.events()
    assert {"starting", "listening", "backend_added", "draining", "stopped", "request"} <= {e["event"] for e in seen}
    for event in seen:
        if event["event"] == "request":
            assert set(event) == set(REQUEST_FIELDS)
            assert all(set(entry) == set(UPSTREAM_FIELDS) for entry in event["upstreams"])
        else:
            assert set(event) - {"ts", "event"} <= set(EVENTS[event["event"]][1]), event


async def test_why_explains_a_request_by_the_id_that_its_client_was_given(
    replicas: list[Fake], start_proxy: StartProxy
) -> None:
    proxy = start_proxy(replicas[:2], "--request-id-header", "X-Request-Id")
    proxy.wait_ready()
    replicas[0].fault("status", status=503)
    async with client(proxy) as http:
        bad = (await chat(http)).headers["x-request-id"]
    wait_until(lambda: told(proxy, "/requests") != [], what="the request in the ring")
    story = run_tool(proxy, "why", bad)
    assert f"left out: {label(replicas[0])} tried already for this request" in story
    assert re.search(
        rf"In short: {label(replicas[0])} answered 503 after .*, {label(replicas[1])} served it\.\n$", story
    )
    assert run_tool(proxy, "why").startswith(bad)


async def test_top_shows_every_backend_of_a_running_proxy(replicas: list[Fake], start_proxy: StartProxy) -> None:
    proxy = start_proxy(replicas)
    proxy.wait_ready()
    table = run_tool(proxy, "top")
    assert table.startswith("ready: 8 of 8 backends ready")
    assert all(re.search(rf"^{label(replica)} +active +healthy +closed ", table, re.M) for replica in replicas)


async def test_nothing_secret_is_on_the_side_port(replicas: list[Fake], start_proxy: StartProxy) -> None:
    proxy = start_proxy(replicas[:2])
    replicas[0].fault("status", status=503)
    marks = {"Authorization": "Bearer sk-AUTHmark", "Cookie": "a=COOKIEmark", "X-Api-Key": "KEYmark"}
    async with client(proxy) as http:
        messages = [{"role": "user", "content": "PROMPTmark"}]
        await http.post("/v1/chat/completions?key=QUERYmark", json={"messages": messages}, headers=marks)
    wait_until(lambda: told(proxy, "/requests?notable=1") != [], what="the failover in the ring")
    [event] = told(proxy, "/requests?notable=1")
    paths = ("/", "/metrics", "/backends", "/status.json", "/requests", f"/requests/{event['request_id']}")
    for path in paths:
        assert b"mark" not in ask(proxy.side_port, "GET", path)[1], path


@pytest.mark.browser
def test_the_page_watches_a_real_proxy(
    replicas: list[Fake], start_proxy: StartProxy, tmp_path_factory: pytest.TempPathFactory
) -> None:
    browser = pytest.importorskip("tests.page.browser")
    if not browser.available():
        pytest.skip(browser.MISSING)
    proxy = start_proxy(replicas)
    proxy.wait_ready()
    with browser.chromium(tmp_path_factory.mktemp("browser") / "profile") as driver:
        driver.get(f"http://127.0.0.1:{proxy.side_port}/")
        browser.wait(driver, lambda d: browser.text_of(d, "ready-text") == "8 of 8 backends ready")
        replicas[0].fault("status", status=503)
        for _ in range(8):
            status, _ = ask(proxy.port, "POST", "/v1/chat/completions", {"model": "m", "messages": []})
            assert status == 200
        browser.wait(driver, lambda d: f"{label(replicas[0])} answered 503" in browser.text_of(d, "events"))
        assert browser.complaints(driver) == []
