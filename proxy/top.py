"""`dd-proxy top`: a running proxy in a terminal, as its status page shows it; one plain table where there is none.

Owns what is drawn. Asks the side port for everything; needs rich for the live view only.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from proxy.explain import duration
from proxy.side_client import Parser, SideError, add_url_option, complain, fetch

if TYPE_CHECKING:
    from rich.console import Group

PROGRAM = "dd-proxy top"
BARS = "▁▂▃▄▅▆▇█"
LINE_LENGTH = 30
TOLD = 6
HEADINGS = ("backend", "state", "health", "breaker", "active", "idle", "queue", "per s", "attempts", "errors")

Status = dict[str, Any]


def main(argv: list[str]) -> int:
    """Show the proxy until interrupted, or once where the output is no terminal; returns the exit code."""
    parser = Parser(PROGRAM, description="Show a running proxy: live in a terminal, else one plain table.")
    add_url_option(parser)
    parser.add_argument("--once", action="store_true", help="print one plain table and end")
    parser.add_argument("--interval", type=float, default=2.0, metavar="S", help="seconds between updates (default: 2)")
    options = parser.parse_args(argv)
    if not options.interval >= 0.1:
        parser.error("argument --interval: write a number of seconds, at least 0.1")
    live = sys.stdout.isatty() and not options.once
    if live and importlib.util.find_spec("rich") is None:
        print(
            f"{PROGRAM}: the live view needs rich: pip install rich, beside dd-proxy; "
            "--once prints a plain table without it",
            file=sys.stderr,
        )
        return 1
    try:
        status = fetch(options.url, "/status.json")
    except SideError as error:
        return complain(PROGRAM, error)
    if not live:
        print("\n".join(plain(status)))
        return 0
    with suppress(KeyboardInterrupt):  # the way to end it
        _watch(options.url, options.interval, status)
    return 0


def plain(status: Status) -> list[str]:
    """Give the whole view as lines of plain text."""
    rows = [HEADINGS, *(cells(backend, status["limits"]) for backend in status["backends"])]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    table = ["  ".join(_aligned(cell, widths[i], i) for i, cell in enumerate(row)).rstrip() for row in rows]
    failovers = [f"  {event['ts']}  {event['request_id']}  {event['words']}" for event in status["failovers"][:TOLD]]
    return [*summary(status), "", *table, *(["", "recent failovers and failures:", *failovers] if failovers else [])]


def summary(status: Status) -> list[str]:
    """Give the lines above the table: readiness, rates, latency, what went wrong."""
    totals, rates, latency = status["totals"], status["rates"], status["latency"]
    word = "draining" if status["draining"] else "ready" if status["ready"] else "not ready"
    cut = sum(totals["incomplete"].values())
    lines = [
        f"{word}: {status['backends_ready']} of {status['backends_counted']} backends ready, "
        f"{totals['active']} requests in flight, {_rate(rates['requests'])} requests/s, {totals['requests']} in all",
        f"whole request {_percentiles(latency['request'])}; response head {_percentiles(latency['header'])}",
        f"failovers {totals['failovers']}, final 429 {totals['final_429']}, final 5xx {totals['final_5xx']}, "
        f"cut short {cut}",
    ]
    if totals["retries"]:
        lines.append("retries: " + ", ".join(f"{reason} {n}" for reason, n in totals["retries"].items()))
    return lines


def cells(backend: Status, limits: Status) -> tuple[str, ...]:
    """Give the texts of one backend, in the order of HEADINGS."""
    health = {None: "not probed", True: "healthy", False: "unhealthy"}[backend["healthy"]]
    known = backend["queue_age_s"] is not None and backend["queue_age_s"] <= limits["queue_stale_after_s"]
    state = backend["state"]
    if state == "active" and known and backend["queue_depth"] > limits["max_waiting_requests"]:
        state = "overloaded"
    return (
        backend["id"] + ("" if backend["required"] else " (optional)"),
        state,
        health,
        backend["breaker"],
        str(backend["active"]),
        str(backend["idle"]),
        str(backend["queue_depth"]) if known else "–",
        _rate(backend["per_s"]),
        str(backend["requests"]),
        str(backend["errors"]),
    )


def sparkline(values: Sequence[float | None]) -> str:
    """Draw the newest values as bars of one line's height; a value that is not known is a blank."""
    newest = values[-LINE_LENGTH:]
    top = max([8.0, *(value for value in newest if value is not None)])
    return "".join(" " if value is None else BARS[min(int(value / top * 8), 7)] for value in newest)


def _aligned(cell: str, width: int, column: int) -> str:
    return cell.rjust(width) if column >= HEADINGS.index("active") else cell.ljust(width)


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}" if value < 10 else f"{value:.0f}"


def _percentiles(values: Status) -> str:
    shown = ((word, "–" if values[word] is None else duration(values[word])) for word in ("p50", "p90", "p99"))
    return ", ".join(f"{word} {text}" for word, text in shown)


# ---------------------------------------------------------------------- the live view


def _watch(url: str, interval_s: float, status: Status) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console()
    lost = ""
    tracks: dict[str, list[float | None]] = {}
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            _take(status, tracks)
            live.update(view(status, tracks, lost, console.height), refresh=True)
            time.sleep(interval_s)
            try:
                status, lost = fetch(url, f"/status.json?since={status['history']['taken']}"), ""
            except SideError as error:
                lost = str(error)
                status["history"]["backends"] = {name: {"depth": []} for name in tracks}


def _take(status: Status, tracks: dict[str, list[float | None]]) -> None:
    """Add the new samples of each backend's queue; forget backends that are gone."""
    told = status["history"]["backends"]
    for name in set(tracks) - set(told):
        del tracks[name]
    for name, track in told.items():
        tracks[name] = (tracks.get(name, []) + track["depth"])[-LINE_LENGTH:]


def view(status: Status, tracks: dict[str, list[float | None]], lost: str, height: int) -> Group:
    """Draw one screen of at most `height` lines; `lost` says why the figures are old."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    head = summary(status)
    good = status["ready"] and not lost
    lines = [Text(head[0], style="bold green" if good else "bold red"), *(Text(line) for line in head[1:])]
    if lost:
        lines.insert(0, Text(f"Old figures: {lost}", style="bold red"))
    failovers = status["failovers"][:TOLD]
    room = max(3, height - len(lines) - len(failovers) - 6)
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for column, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="right" if column >= HEADINGS.index("active") else "left", no_wrap=True)
    table.add_column("queue, last minute", no_wrap=True)
    shown = _first_trouble(status)[:room]
    for backend in shown:
        texts = cells(backend, status["limits"])
        styled = [Text(text, style=_style(text)) for text in texts]
        table.add_row(*styled, Text(sparkline(tracks.get(backend["id"], ())), style="cyan"))
    rest = len(status["backends"]) - len(shown)
    more = [Text(f"  … and {rest} more", style="dim")] if rest else []
    told = [Text(f"{event['ts'][11:19]}  {event['words']}", no_wrap=True, overflow="ellipsis") for event in failovers]
    title = [Text("recent failovers and failures:", style="dim")] if told else []
    return Group(*lines, Text(), table, *more, Text(), *title, *told, Text("Ctrl-C ends", style="dim"))


def _first_trouble(status: Status) -> list[Status]:
    """Order the backends so that those with trouble are seen even where the screen is too small for all."""
    return sorted(status["backends"], key=lambda backend: not any(map(_style, cells(backend, status["limits"])[1:4])))


def _style(word: str) -> str:
    return {
        "unhealthy": "bold red",
        "open": "bold red",
        "half_open": "yellow",
        "overloaded": "bold yellow",
        "draining": "yellow",
        "not probed": "yellow",
    }.get(word, "")
