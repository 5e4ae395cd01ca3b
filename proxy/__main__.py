"""`python -m proxy`: the same as the command `dd-proxy`."""

from __future__ import annotations

import sys

from proxy.cli import main

if __name__ == "__main__":
    sys.exit(main())
