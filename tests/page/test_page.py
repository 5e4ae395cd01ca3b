"""The status page in a real browser: what people see, and that looking costs nothing more than it must."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from proxy.outcome import Verdict
from tests.page.browser import Side, chromium, complaints, requested, text_of, wait
from tests.unit.stand_in import StandIn, attempt, remember, request_event, stand_in

pytestmark = pytest.mark.browser

ONE, TWO = "127.0.0.1:8001", "127.0.0.1:8002"


def healthy(endpoint: StandIn) -> None:
    for backend in endpoint.fleet:
        endpoint.fleet.record_probe(backend, True)


def look(driver: Chrome, side: Side) -> None:
    """Open the page and wait for its first figures."""
    driver.get(side.url)
    wait(driver, lambda d: text_of(d, "ready") != "Loading…")


def row(driver: Chrome, backend: str) -> list[str]:
    """The texts of one backend's cells."""
    script = """
        const rows = [...document.querySelectorAll('#rows tr')];
        const row = rows.find(tr => tr.cells[0].textContent === arguments[0]);
        return row ? [...row.cells].map(cell => cell.textContent) : [];
    """
    cells: list[str] = driver.execute_script(script, backend)
    return cells


def press(driver: Chrome, label: str) -> None:
    """Press the button with this accessible name, as a keyboard user does."""
    button = driver.find_element(By.CSS_SELECTOR, f'[aria-label="{label}"]')
    button.send_keys(Keys.ENTER)


def visible_rows(driver: Chrome) -> list[str]:
    script = "return [...document.querySelectorAll('#rows tr:not([hidden])')].map(tr => tr.cells[0].textContent)"
    names: list[str] = driver.execute_script(script)
    return names


def test_it_shows_readiness_and_every_backend_without_an_error_or_a_request_elsewhere(
    side: Side, driver: Chrome
) -> None:
    side.run(healthy)
    look(driver, side)
    assert text_of(driver, "ready") == "● Ready"
    assert text_of(driver, "ready-text") == "2 of 2 backends ready"
    assert row(driver, ONE)[:4] == [ONE, "active", "healthy", "closed"]
    assert driver.title == "2/2 ready – dd-proxy"
    assert complaints(driver) == []
    urls = requested(driver)
    assert {url.split("?")[0].removeprefix(side.url) for url in urls} == {"", "status.json"}


def test_it_updates_itself_without_a_reload_and_keeps_the_row_that_is_there(side: Side, driver: Chrome) -> None:
    side.run(healthy)
    look(driver, side)
    driver.execute_script("window.first = document.querySelector('#rows tr'); window.first.dataset.mark = 'kept'")

    def trouble(endpoint: StandIn) -> None:
        one, two = endpoint.fleet
        for _ in range(2):
            endpoint.fleet.record_probe(one, False)
        for _ in range(3):
            endpoint.fleet.record_verdict(two, Verdict.FAILURE, False, time.monotonic())
        endpoint.fleet.lease(two, 0.0)
        endpoint.counters.retries["http_503"] = 3
        attempts = [attempt(ONE, "503", 0.012), attempt(TWO, "200", 0.2)]
        remember(endpoint, request_event("r1", failover=True, upstreams=attempts))

    side.run(trouble)
    wait(driver, lambda d: text_of(d, "ready") == "▲ Not ready")
    assert row(driver, ONE)[2] == "unhealthy"
    assert row(driver, TWO)[3].startswith("open, ")
    assert row(driver, TWO)[4] == "1"
    assert text_of(driver, "retries") == "answered 5033"
    assert f"{ONE} answered 503 after 12 ms, {TWO} served it" in text_of(driver, "events")
    assert driver.execute_script("return document.querySelector('#rows tr').dataset.mark") == "kept"
    assert driver.execute_script("return performance.getEntriesByType('navigation').length") == 1


def test_a_queue_is_drawn_as_a_line_and_an_overloaded_backend_is_named(side: Side, driver: Chrome) -> None:
    side.run(healthy)

    def fill(endpoint: StandIn) -> None:
        for backend in endpoint.fleet:
            endpoint.fleet.record_depth(backend, 500, time.monotonic() + 3600)

    side.run(fill)
    look(driver, side)
    script = "return document.querySelector('#rows svg path.value').getAttribute('d')"
    wait(driver, lambda d: re.search(r"M[\d.]+ [\d.]+L", d.execute_script(script) or ""))
    assert row(driver, ONE)[1] == "overloaded"
    assert row(driver, ONE)[6] == "500"


def test_drain_and_resume_work_from_the_keyboard_and_keep_the_focus(side: Side, driver: Chrome) -> None:
    side.run(healthy)
    look(driver, side)
    press(driver, f"Drain {ONE}")
    wait(driver, lambda d: row(d, ONE)[1] == "draining")
    assert side.run(lambda endpoint: [b.draining for b in endpoint.fleet]) == [True, False]
    assert text_of(driver, "toast") == f"{ONE} takes no new requests; active responses go on."
    assert driver.switch_to.active_element.get_attribute("aria-label") == f"Resume {ONE}"
    press(driver, f"Resume {ONE}")
    wait(driver, lambda d: row(d, ONE)[1] == "active")
    assert complaints(driver) == []


def test_draining_the_last_backend_asks_first(side: Side, driver: Chrome) -> None:
    side.run(healthy)
    look(driver, side)
    press(driver, f"Drain {ONE}")
    wait(driver, lambda d: row(d, ONE)[1] == "draining")
    press(driver, f"Drain {TWO}")
    wait(driver, lambda d: "503" in text_of(d, "ask-text"))
    driver.find_element(By.ID, "ask-no").click()
    assert side.run(lambda endpoint: [b.draining for b in endpoint.fleet]) == [True, False]


def test_removing_asks_for_the_time_and_shows_why_it_was_refused(side: Side, driver: Chrome) -> None:
    side.run(healthy)
    look(driver, side)
    press(driver, f"Remove {TWO}")
    seconds = driver.find_element(By.ID, "ask-seconds")
    assert seconds.get_attribute("value") == "10"
    seconds.clear()
    seconds.send_keys("soon", Keys.ENTER)
    wait(driver, lambda d: "must be a number of seconds" in text_of(d, "ask-error"))
    seconds.clear()
    seconds.send_keys("2.5", Keys.ENTER)
    wait(driver, lambda d: row(d, TWO) == [])
    assert side.endpoint.removed == [(TWO, 2.5)]
    assert not driver.execute_script("return document.getElementById('ask').open")


def test_adding_a_backend_shows_it(side: Side, driver: Chrome) -> None:
    look(driver, side)
    driver.find_element(By.ID, "add").click()
    driver.find_element(By.ID, "ask-url").send_keys("http://127.0.0.1:8003", Keys.ENTER)
    wait(driver, lambda d: row(d, "127.0.0.1:8003")[2:3] == ["not probed yet"])


def test_a_change_asks_for_the_token_once_and_again_when_it_was_wrong(driver: Chrome) -> None:
    side = Side(stand_in(2, token="right"))
    try:
        look(driver, side)
        press(driver, f"Drain {ONE}")
        field = driver.find_element(By.ID, "ask-token")
        field.send_keys("wrong", Keys.ENTER)
        wait(driver, lambda d: "not accepted" in text_of(d, "ask-error"))
        field.clear()
        field.send_keys("right", Keys.ENTER)
        wait(driver, lambda d: row(d, ONE)[1] == "draining")
        press(driver, f"Resume {ONE}")
        wait(driver, lambda d: row(d, ONE)[1] == "active")
        assert (
            driver.execute_script("return document.cookie + JSON.stringify({...localStorage, ...sessionStorage})")
            == "{}"
        )
    finally:
        side.stop()


def test_without_the_right_to_change_there_are_no_buttons(side: Side, driver: Chrome) -> None:
    side.admin.loopback = False
    look(driver, side)
    assert len(row(driver, ONE)) == 10
    assert driver.find_element(By.ID, "refused").is_displayed()
    assert not driver.find_element(By.ID, "add").is_displayed()


def test_why_tells_the_story_of_one_request(side: Side, driver: Chrome) -> None:
    attempts = [attempt(ONE, "429", 0.012), attempt(TWO, "200", 0.2)]
    event = request_event("a/b?c", failover=True, upstreams=attempts)
    side.run(lambda endpoint: remember(endpoint, event, [None, {"tried": [ONE]}]))
    look(driver, side)
    press(driver, "Why? Details of request a/b?c")
    wait(driver, lambda d: f"left out: {ONE} tried already" in text_of(d, "why-lines"))
    driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    wait(driver, lambda d: not d.execute_script("return document.getElementById('why').open"))


def test_what_a_client_wrote_is_shown_as_text_never_as_markup(side: Side, driver: Chrome) -> None:
    path = "/<img src=x onerror=document.title='owned'>"
    side.run(lambda endpoint: remember(endpoint, request_event(path=path, complete=False)))
    look(driver, side)
    assert path in text_of(driver, "events")
    assert "owned" not in driver.title
    assert driver.find_elements(By.CSS_SELECTOR, "#events img") == []


def test_filter_trouble_and_sorting_choose_what_is_listed(driver: Chrome) -> None:
    side = Side(stand_in(64))
    try:
        side.run(healthy)
        side.run(lambda endpoint: endpoint.fleet.set_draining(list(endpoint.fleet)[40], True))
        look(driver, side)
        assert len(visible_rows(driver)) == 64
        driver.find_element(By.ID, "trouble").click()
        assert visible_rows(driver) == ["127.0.0.1:8041"]
        driver.find_element(By.ID, "trouble").click()
        driver.find_element(By.ID, "filter").send_keys(":806")
        assert visible_rows(driver) == [f"127.0.0.1:806{n}" for n in range(5)]
        driver.find_element(By.ID, "filter").clear()
        driver.find_element(By.ID, "filter").send_keys(Keys.END, "x", Keys.BACKSPACE)
        state = driver.find_element(By.XPATH, "//th/button[text()='State']")
        state.click()
        assert visible_rows(driver)[0] == "127.0.0.1:8041"
        assert driver.find_element(By.XPATH, "//th[button[text()='State']]").get_attribute("aria-sort") == "descending"
    finally:
        side.stop()


def test_nothing_is_asked_while_updates_are_paused_or_the_page_is_hidden(side: Side, driver: Chrome) -> None:
    look(driver, side)
    driver.find_element(By.ID, "pause").click()
    driver.execute_async_script("setTimeout(arguments[0], 300)")
    requested(driver)
    # Longer than two periods: the time is what is promised here.
    driver.execute_async_script("setTimeout(arguments[0], 5000)")
    assert requested(driver) == []
    driver.find_element(By.ID, "pause").click()
    wait(driver, requested)
    driver.execute_script("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
    driver.execute_script("document.dispatchEvent(new Event('visibilitychange'))")
    driver.execute_async_script("setTimeout(arguments[0], 300)")
    requested(driver)
    driver.execute_async_script("setTimeout(arguments[0], 5000)")
    assert requested(driver) == []
    driver.execute_script("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
    wait(driver, requested)


def test_when_the_proxy_is_gone_the_page_says_so_and_since_when(side: Side, driver: Chrome) -> None:
    look(driver, side)
    side.stop()
    wait(driver, lambda d: d.find_element(By.ID, "lost").is_displayed())
    assert "does not answer since" in text_of(driver, "lost")


@pytest.mark.parametrize(("width", "dark"), [(390, False), (390, True), (1000, False), (1440, True)])
def test_it_fits_any_width_in_light_and_dark_and_can_be_read(tmp_path: Path, width: int, dark: bool) -> None:
    side = Side(stand_in(8))
    try:
        side.run(healthy)
        with chromium(tmp_path / "profile", width=width, height=844, dark=dark) as driver:
            look(driver, side)
            sizes = driver.execute_script("const d = document.documentElement; return [d.scrollWidth, d.clientWidth]")
            assert sizes[0] <= sizes[1], "the page scrolls sideways"
            for selector in ("body", ".tile dt", ".word", ".pill", "button.act", "button.danger", "th", "footer a"):
                assert contrast(driver, selector) >= 4.5, selector
            light = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
            assert (sum(numbers(light)) < 150) is dark
    finally:
        side.stop()


def test_a_screen_reader_finds_names_roles_and_headings(side: Side, driver: Chrome) -> None:
    side.run(healthy)
    look(driver, side)
    tree: list[dict[str, Any]] = driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    nodes = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in tree if not node.get("ignored")]
    roles = [role for role, _ in nodes]
    assert {"table", "row", "cell", "columnheader", "heading", "main", "status"} <= set(roles)
    assert [name for role, name in nodes if role in ("button", "textbox", "searchbox", "checkbox") and not name] == []
    assert ("button", f"Drain {ONE}") in nodes


def numbers(color: str) -> list[float]:
    return [float(part) for part in re.findall(r"[\d.]+", color)][:3]


def contrast(driver: Chrome, selector: str) -> float:
    """The contrast ratio (WCAG 2) of the first element's text on what is painted behind it."""
    script = """
        let node = document.querySelector(arguments[0]);
        const ink = getComputedStyle(node).color;
        while (node && /^rgba\\(0, 0, 0, 0\\)$/.test(getComputedStyle(node).backgroundColor)) node = node.parentElement;
        return [ink, getComputedStyle(node || document.body).backgroundColor];
    """
    light, dark = sorted((luminance(numbers(color)) for color in driver.execute_script(script, selector)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(rgb: list[float]) -> float:
    parts = [c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in rgb]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]
