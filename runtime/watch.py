"""`dd-proxy status --watch`: follows one attempt from outside until it ends.

Owns only when to stop: the attempt is over, or its controller is gone. What is shown is progress.
"""

from __future__ import annotations

import asyncio
import math
import sys
import time
from contextlib import suppress

from runtime.layout import AttemptDir
from runtime.look import look_at
from runtime.planfile import read_resolved
from runtime.progress import follow
from runtime.state import read_attempt

LOOK_S = 15.0  # the state file is read every second, but Slurm is asked seldom: a job may pend for days


def watch(attempt: AttemptDir) -> None:
    """Show an attempt on stdout until it has ended or nobody runs it any more; Ctrl-C ends the watching alone.

    Raises LayoutError, StateError.
    """
    plan = read_resolved(attempt)
    looked_at = -math.inf  # what has nobody to run it any more need not be watched at all

    def ended() -> bool:
        nonlocal looked_at
        record = read_attempt(attempt.path)
        if record is None or record.state.terminal:
            return True
        if time.monotonic() - looked_at < LOOK_S:
            return False
        looked_at = time.monotonic()
        return look_at(attempt).orphaned

    with suppress(KeyboardInterrupt):
        asyncio.run(follow(attempt, plan, sys.stdout, ended))
