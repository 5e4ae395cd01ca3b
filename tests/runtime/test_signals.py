"""Signals to a lifecycle process: none is lost before it is ready for them, none counts after its end."""

from __future__ import annotations

import subprocess
import sys

import pytest

LIFE = """
import asyncio, os, signal, sys
sys.path.insert(0, "REPOSITORY")
from runtime.signals import SignalInbox, held_signals
held = held_signals()
held.__enter__()
os.kill(os.getpid(), signal.SIGTERM)        # while it is still importing
inbox = SignalInbox()
inbox.install()
os.kill(os.getpid(), signal.SIGINT)         # before its loop runs
seen = []

async def live():
    inbox.attach(asyncio.get_running_loop(), lambda number: (seen.append(number), done.set()))
    done = asyncio.Event()
    for number in (signal.SIGUSR1, signal.SIGHUP):
        while number not in seen:
            os.kill(os.getpid(), number)
            await done.wait()
            done.clear()

with asyncio.Runner() as runner:
    try:
        runner.run(live())
    finally:
        inbox.finish()
held.__exit__(None, None, None)
os.kill(os.getpid(), signal.SIGTERM)        # after its end
assert set(seen) == {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP}, seen
print("alive")
"""


@pytest.mark.parametrize("repetition", range(3))
def test_no_signal_is_lost_early_or_deadly_late(repetition: int, pytestconfig: pytest.Config) -> None:
    program = LIFE.replace("REPOSITORY", str(pytestconfig.rootpath))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


def test_a_run_under_nohup_outlives_its_terminal(pytestconfig: pytest.Config) -> None:
    program = (
        "import os, signal, sys\nsys.path.insert(0, sys.argv[1])\nfrom runtime.signals import SignalInbox\n"
        "SignalInbox().install()\nprint(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)\n"
    )
    for prefix, ignored in (([], "False\n"), (["nohup"], "True\n")):
        command = [*prefix, sys.executable, "-c", program, str(pytestconfig.rootpath)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)
        assert done.stdout == ignored, done.stderr
