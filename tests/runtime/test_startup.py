"""The waits of the start: each gives way to a cancellation at any moment, or an attempt could not be ended."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runtime.attempt import Attempt
from runtime.startup import Startup


def following() -> tuple[Startup, asyncio.Task[None]]:
    """Follow a monitor that has written nothing yet."""
    runtime = SimpleNamespace(monitor_interval_s=600.0)
    attempt: Any = SimpleNamespace(plan=SimpleNamespace(runtime=runtime), health=lambda: None)
    startup = Startup(cast(Attempt, attempt), {})
    return startup, asyncio.create_task(startup._follow_monitor())


@pytest.mark.parametrize("steps", range(4))
async def test_a_cancellation_that_comes_together_with_news_of_the_monitor_is_obeyed(steps: int) -> None:
    startup, task = following()
    await asyncio.sleep(0.01)
    startup._news.set()
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task}, timeout=5)
    assert task.cancelled()
