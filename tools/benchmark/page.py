"""The measured parts of docs/performance.md: each stands between marks, and the command that measures it renews it."""

from __future__ import annotations

import os
import platform
import time

from tools.launch import ROOT
from tools.readme import filled

PAGE = ROOT / "docs" / "performance.md"


def put(name: str, part: str) -> None:
    """Replace a part of the page. Raises ValueError when its marks are missing."""
    PAGE.write_text(filled(PAGE.read_text(), name, part))


def conditions() -> str:
    """Say where and when something was measured, and how much else went on."""
    kernel, python = platform.release().partition("-")[0], platform.python_version()
    load = f"load average {os.getloadavg()[1]:.1f} with the benchmark itself"
    return f"{time.strftime('%Y-%m-%d')}, Linux {kernel}, Python {python}, {os.cpu_count()} CPUs, {load}"
