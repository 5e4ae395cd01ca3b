"""`dd-proxy status --watch`: follows one attempt from outside until it ends.

Owns only when to stop: the attempt is over, or its controller is gone. What is shown is progress.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress

from runtime.layout import AttemptDir
from runtime.look import look_at
from runtime.planfile import read_resolved
from runtime.progress import follow


def watch(attempt: AttemptDir) -> None:
    """Show an attempt on stdout until it has ended or nobody runs it any more; Ctrl-C ends the watching alone.

    Raises LayoutError, StateError.
    """
    plan = read_resolved(attempt)

    def ended() -> bool:
        seen = look_at(attempt)
        return seen.attempt.state.terminal or seen.orphaned

    with suppress(KeyboardInterrupt):
        asyncio.run(follow(attempt, plan, sys.stdout, ended))
