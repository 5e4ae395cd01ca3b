"""Runs dd-proxy as it runs where uvloop is missing: the same command line, on plain asyncio.

python tools/plain_asyncio.py serve --listen-port 0 --backend http://127.0.0.1:18001
"""

from __future__ import annotations

import sys

sys.modules["uvloop"] = None  # type: ignore[assignment]  # what the import system reads as "cannot be imported"

from proxy.cli import main  # noqa: E402  (needs the line above)

if __name__ == "__main__":
    raise SystemExit(main())
