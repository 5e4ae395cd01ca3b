"""Kills what a local attempt left when its controller was killed.

Run as a script of its own, `python warden.py`, with a pipe from the controller on stdin: `+PGID` and `-PGID` lines say
which process groups live. When the pipe ends, however the controller died, every group that is left gets KILL. A step
itself also dies with the controller (PR_SET_PDEATHSIG); this is for the processes that the step started. Imports
nothing of the package, so that it starts in milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys


def main() -> None:
    """Follow the groups until the pipe ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # it ends with its pipe and with nothing else
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        if line[0] == "+":
            groups.add(group)
        else:
            groups.discard(group)
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
