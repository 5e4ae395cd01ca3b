"""The terminal tools show what the side port tells, and say in one line what is wrong."""

from __future__ import annotations

import asyncio
import io
import os
import pty
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from proxy import top, why
from proxy.history import History
from proxy.side_port import start_side_port
from proxy.status import status
from tests.unit.stand_in import StandIn, attempt, remember, request_event, stand_in

ONE, TWO = "127.0.0.1:8001", "127.0.0.1:8002"


@pytest.fixture
def url() -> Iterator[str]:
    """The side port of an endpoint that has seen one failover, served by a thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    sock = socket.create_server(("127.0.0.1", 0))
    port = asyncio.run_coroutine_threadsafe(start_side_port(endpoint(), sock), loop).result(10)
    yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    loop.call_soon_threadsafe(port.close)
    asyncio.run_coroutine_threadsafe(port.wait_closed(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


def endpoint() -> StandIn:
    made = stand_in(2)
    one, two = made.fleet
    made.fleet.record_probe(one, True)
    for _ in range(2):
        made.fleet.record_probe(two, False)
    made.fleet.record_depth(one, 500, time.monotonic() + 3600)
    made.counters.retries["http_429"] = 4
    attempts = [attempt(ONE, "429", 0.012), attempt(TWO, "200", 0.2)]
    event = request_event("id-1/x", failover=True, attempts=2, upstreams=attempts)
    remember(made, event, [None, {"tried": [ONE]}])
    return made


def test_why_tells_the_story_of_one_request(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert why.main(["id-1/x", "--url", url]) == 0
    out = capsys.readouterr().out
    assert f"left out: {ONE} tried already for this request" in out
    assert out.endswith(f"In short: {ONE} answered 429 after 12 ms, {TWO} served it.\n")


def test_why_without_an_id_lists_what_may_be_asked_for(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert why.main(["--url", url]) == 0
    assert capsys.readouterr().out.startswith("id-1/x  2026-11-29T10:15:00.123Z  200  ")


def test_why_of_an_unknown_request_is_one_line_and_exit_code_1(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert why.main(["nobody", "--url", url]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "dd-proxy why: no such request among the recent ones; the log has the older ones\n"


@pytest.mark.parametrize("main", [top.main, lambda argv: why.main(["x", *argv])])
def test_a_side_port_that_is_not_there_is_one_line(main: object, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        free = sock.getsockname()[1]
    assert callable(main)
    assert main(["--url", f"127.0.0.1:{free}"]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert f"no answer from http://127.0.0.1:{free}" in err


@pytest.mark.parametrize(
    "bad", [["--url", "ftp://x"], ["--url", "http://x/path"], ["--url", "http://x:port"], ["--nope"]]
)
def test_bad_usage_is_one_line_and_exit_code_2(bad: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        top.main(bad)
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_top_prints_one_plain_table_where_there_is_no_terminal(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert top.main(["--url", url]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    lines = out.splitlines()
    assert lines[0].startswith("not ready: 1 of 2 backends ready, 0 requests in flight")
    assert "retries: http_429 4" in lines
    [one] = [line for line in lines if line.startswith(ONE)]
    assert one.split()[:7] == [ONE, "overloaded", "healthy", "closed", "0", "0", "500"]
    assert f"{ONE} answered 429 after 12 ms, {TWO} served it" in lines[-1]


def test_top_without_rich_says_how_to_get_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setitem(sys.modules, "rich", None)
    assert top.main([]) == 1
    assert "pip install rich" in capsys.readouterr().err


def test_top_is_live_in_a_terminal_until_it_is_interrupted(url: str) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(
            TERM="xterm-256color", COLUMNS="140", LINES="40", PYTHONPATH=str(Path(top.__file__).parents[1])
        )
        command = f"import sys; from proxy.top import main; sys.exit(main(['--url', '{url}', '--interval', '0.1']))"
        os.execv(sys.executable, [sys.executable, "-c", command])
    seen = b""
    deadline = time.monotonic() + 20
    while seen.count(b"Ctrl-C ends") < 2 and time.monotonic() < deadline:
        seen += os.read(terminal, 65536)
    os.write(terminal, b"\x03")
    _, result = os.waitpid(pid, 0)
    os.close(terminal)
    assert seen.count(b"Ctrl-C ends") >= 2
    assert os.waitstatus_to_exitcode(result) == 0
    assert ONE.encode() in seen


def test_the_view_fits_the_screen_and_shows_trouble_first() -> None:
    made = stand_in(64)
    last = list(made.fleet)[-1]
    made.fleet.set_draining(last, True)
    for backend in made.fleet:
        made.fleet.record_probe(backend, True)
    told = status(made, History(), "open", 0, time.monotonic())
    console = Console(file=io.StringIO(), width=160, height=24)
    console.print(top.view(told, {}, "", 24))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert len(lines) <= 24
    assert last.id in next(line for line in lines if line.startswith(" 127.0.0.1"))
    assert any("more" in line for line in lines)


def test_a_sparkline_has_a_bar_per_sample_and_a_blank_where_nothing_is_known() -> None:
    assert top.sparkline([0, 4, None, 8]) == "▁▅ █"
    assert len(top.sparkline([1.0] * 500)) == top.LINE_LENGTH
