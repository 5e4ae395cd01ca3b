"""What a person sees of a running attempt."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import pytest

from runtime.layout import AttemptDir
from runtime.planfile import load_plan
from runtime.progress import Growth, Progress, ProgressView, Screen, render
from runtime.state import AttemptState, ReadinessState, new_attempt, new_readiness, write_json
from tests.runtime.lifecycle import Scenario


def view(state: str = "ready", ready: int = 2, records: int = 0, elapsed_s: float = 0.0) -> ProgressView:
    """Give a sample of a small attempt."""
    return ProgressView(state, (("llama", ready, 2),), (Growth("out.jsonl", records, 10),), elapsed_s)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_line_says_replicas_outputs_rate_and_retries() -> None:
    assert render(view(records=3, elapsed_s=75)) == "[1m 15s] ready · llama 2/2 replicas · out.jsonl 3/10"
    busy = ProgressView("ready", (), (Growth("a", 3, None),), 5.0, requests=120, retries=2, requests_per_s=12.34)
    assert render(busy) == "[5s] ready · a 3 · 120 requests, 12.3/s · 2 retries"


def test_a_terminal_gets_one_line_that_is_rewritten_and_cleaned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    stream = Terminal()
    screen = Screen(stream)
    screen.show(view(records=1))
    screen.show(view(records=2))
    screen.close()
    assert stream.getvalue().count("\r\x1b[K") == 3
    assert "\n" not in stream.getvalue()
    assert max(len(line) for line in stream.getvalue().split("\r\x1b[K")) == 29


def test_a_log_gets_a_plain_line_for_each_change_of_state_and_few_for_growth() -> None:
    stream = io.StringIO()
    screen = Screen(stream)
    screen.show(view("starting", 0))
    screen.show(view("starting", 1, elapsed_s=1))
    for second in range(2, 32):
        screen.show(view("ready", 2, records=second, elapsed_s=second))
    screen.close()
    lines = stream.getvalue().splitlines()
    assert [line.split("]")[0] for line in lines] == ["[0s", "[1s", "[2s", "[12s", "[22s"]
    assert "\x1b" not in stream.getvalue() and "\r" not in stream.getvalue()


async def test_a_sample_counts_only_what_was_added(tmp_path: Path) -> None:
    attempt = AttemptDir(tmp_path)
    plan = load_plan(Scenario(records=10).write(tmp_path))
    record = new_attempt("gen-1", 1, None).move(AttemptState.RUNNING)
    write_json(attempt.attempt_json, record)
    write_json(attempt.readiness_json, new_readiness({"llama": 2}).move(ReadinessState.STARTING))
    progress = Progress(attempt, plan)
    assert (await progress.sample()).outputs == (Growth("out.jsonl", 0, 10),)
    out = tmp_path / "out.jsonl"
    for content, records in ((b"1\n2", 1), (b"1\n2\n3\n", 3), (b"1\n", 1)):
        await asyncio.to_thread(out.write_bytes, content)
        sample = await progress.sample()
        assert (sample.state, sample.outputs) == ("starting", (Growth("out.jsonl", records, 10),))
    assert sample.requests is None
