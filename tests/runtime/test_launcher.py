"""Steps as child processes: their output, their end, their process group, and an environment that nobody else sees."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
from pathlib import Path

import pytest

from runtime.launcher import Launcher, StepError
from runtime.steps import Role, StepSpec


def spec(name: str = "llama-replica-0", role: Role = Role.REPLICA) -> StepSpec:
    """Describe a step."""
    return StepSpec(name, role, ("x",), "node1")


async def test_a_steps_end_is_told_with_its_code(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path)
    step = launcher.start(spec(), [sys.executable, "-c", "print('hi'); raise SystemExit(7)"], os.environ, None)
    assert await step.wait(30)
    assert (step.exited.result(), step.alive) == (7, False)
    assert (tmp_path / "llama-replica-0.out").read_text() == "hi\n"
    assert stat.S_IMODE((tmp_path / "llama-replica-0.err").stat().st_mode) == 0o600


async def test_what_a_step_prints_is_fed_and_logged(tmp_path: Path) -> None:
    said = bytearray()
    program = "import sys\nfor n in range(3):\n print(n, flush=True)\nprint('x' * 200000)"
    step = Launcher(tmp_path).start(spec(), [sys.executable, "-c", program], os.environ, said.extend)
    assert await step.wait(30)
    await asyncio.wait_for(step.drained, 30)
    assert bytes(said) == b"0\n1\n2\n" + b"x" * 200000 + b"\n"
    assert (tmp_path / "llama-replica-0.out").read_bytes() == bytes(said)


async def test_a_step_is_a_group_of_its_own_that_dies_by_its_number(tmp_path: Path) -> None:
    step = Launcher(tmp_path).start(spec(), ["sleep", "600"], os.environ, None)
    assert os.getpgid(step.process.pid) == step.process.pid
    assert not await step.wait(0.01)
    os.killpg(step.process.pid, signal.SIGTERM)
    assert await step.wait(30)
    assert step.exited.result() == -signal.SIGTERM


async def test_waiting_may_be_cancelled_and_the_step_lives_on(tmp_path: Path) -> None:
    step = Launcher(tmp_path).start(spec(), ["sleep", "600"], os.environ, None)
    waiting = asyncio.create_task(step.wait(60))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert step.alive
    step.process.kill()
    assert await step.wait(30)


async def test_a_program_that_is_not_there_is_one_clear_line_and_leaks_nothing(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(StepError, match="llama-replica-0: cannot start /no/such: No such file or directory"):
        Launcher(tmp_path).start(spec(), ["/no/such"], os.environ, lambda _: None)
    assert len(os.listdir("/proc/self/fd")) == before


async def test_only_the_lifecycles_own_steps_write_private_files(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        for role, mode in ((Role.ENDPOINT, 0o600), (Role.CLIENT, 0o644)):
            step = Launcher(tmp_path).start(spec(role=role), ["touch", str(tmp_path / role)], os.environ, None)
            assert await step.wait(30)
            assert stat.S_IMODE((tmp_path / role).stat().st_mode) == mode
    finally:
        os.umask(old)
