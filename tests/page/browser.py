"""A real headless Chromium, and a side port in a thread for it to look at."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from selenium.webdriver import Chrome
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

from proxy.admin import Admin
from proxy.side_port import SidePort, start_side_port
from tests.unit.stand_in import StandIn

WAIT_S = 15.0
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")

MISSING = "chromium or chromedriver not found; on Debian: apt install chromium chromium-driver"

Result = TypeVar("Result")


def available() -> bool:
    """Say whether there is a browser; in CI there must be one."""
    return bool(CHROMIUM and DRIVER) or os.environ.get("CI") == "true"


class Side:
    """A side port whose event loop runs in a thread; `run` changes its endpoint there."""

    def __init__(self, endpoint: StandIn) -> None:
        self.endpoint = endpoint
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._sock = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._sock.getsockname()[1]}/"
        self._port: SidePort = self._call(start_side_port(endpoint, self._sock))

    @property
    def admin(self) -> Admin:
        """What answers; to be told that it is bound elsewhere."""
        return self._port.admin

    def _call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(WAIT_S)

    def run(self, change: Callable[[StandIn], Result]) -> Result:
        """Run `change` with the endpoint on the loop that serves it."""

        async def call() -> Result:
            return change(self.endpoint)

        result: Result = self._call(call())
        return result

    def stop(self) -> None:
        """Close the side port and end its thread; idempotent."""

        async def close(port: SidePort) -> None:
            port.close()
            await port.wait_closed()

        if self._thread.is_alive():
            self._call(close(self._port))
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(WAIT_S)
            self._loop.close()


@contextmanager
def chromium(profile: Path, *, width: int = 1400, height: int = 950, dark: bool = False) -> Iterator[Chrome]:
    """Start a browser with a fresh profile in the folder `profile`; it keeps its console and network records."""
    options = Options()
    options.binary_location = str(CHROMIUM)
    for flag in (
        *("headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking"),
        *("disable-component-update", "disable-sync", "disable-dev-shm-usage", "hide-scrollbars"),
    ):
        options.add_argument(f"--{flag}")
    options.add_argument(f"--user-data-dir={profile}")
    options.add_argument(f"--window-size={width},{height}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    environment = dict(os.environ, SE_OFFLINE="true", SE_AVOID_STATS="true")
    driver = Chrome(options=options, service=Service(str(DRIVER), env=environment))
    try:
        scheme = "dark" if dark else "light"
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        )
        yield driver
    finally:
        driver.quit()


def wait(driver: Chrome, check: Callable[[Chrome], Any]) -> Any:
    """Wait until `check` gives something true, and return it."""
    return WebDriverWait(driver, WAIT_S, poll_frequency=0.1).until(check)


def text_of(driver: Chrome, element_id: str) -> str:
    """Give the text of an element as it is in the document."""
    text: str = driver.execute_script("return document.getElementById(arguments[0]).textContent", element_id)
    return text


def requested(driver: Chrome) -> list[str]:
    """Take the URLs of all requests since the last call."""
    urls = []
    for entry in driver.get_log("performance"):  # type: ignore[no-untyped-call]
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            urls.append(message["params"]["request"]["url"])
    # The browser's own new-tab page and pictures inside the page are no requests to anybody.
    return [url for url in urls if not url.startswith(("chrome:", "data:", "devtools:"))]


def complaints(driver: Chrome) -> list[str]:
    """Take what the console has been told since the last call: script errors, refused policies, failed loads."""
    return [entry["message"] for entry in driver.get_log("browser")]  # type: ignore[no-untyped-call]
