"""How this program starts itself again, in a batch script and in steps."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def own_command() -> tuple[str, ...]:
    """Give the argument vector that runs dd-proxy with this interpreter, whatever PATH and directory a step has.

    The installed script (or the single-file build) is preferred to `python -m`, which would import a folder named
    `proxy` from the directory where it starts.
    """
    for candidate in (Path(sys.argv[0]), Path(sys.executable).with_name("dd-proxy")):
        if candidate.name.startswith("dd-proxy") and os.access(candidate, os.X_OK):
            return (os.path.abspath(candidate),)
    return (sys.executable, "-m", "proxy.cli")
