"""The browser and the side port of the page tests, and the rule for going without a browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from selenium.webdriver import Chrome

from tests.page.browser import MISSING, Side, available, chromium, complaints, requested
from tests.unit.stand_in import stand_in


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests of a browser where there is none, but never in CI."""
    if available():
        return
    for item in items:
        if item.get_closest_marker("browser"):
            item.add_marker(pytest.mark.skip(reason=MISSING))


@pytest.fixture
def side() -> Iterator[Side]:
    """A side port of two healthy backends, without a token."""
    started = Side(stand_in(2))
    yield started
    started.stop()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    """One browser of a desktop's size in light colours, since starting one takes seconds."""
    with chromium(tmp_path_factory.mktemp("browser") / "profile") as started:
        yield started


@pytest.fixture
def driver(browser: Chrome) -> Chrome:
    """The browser on an empty page, its records cleared."""
    browser.get("about:blank")
    requested(browser)
    complaints(browser)
    return browser
