"""The page of one load run, made from its figures alone.

Pure: figures in, HTML out. Knows which chart shows what and how to say it; drawing is in `charts`, the frame in `page`.
"""

from __future__ import annotations

import html
import time
from collections.abc import Sequence
from typing import Any

from tools.load import charts, page
from tools.load.charts import Series, duration, short
from tools.load.results import QUANTITIES

_FAULT_COLOURS = ("s5", "s3", "s4", "s7", "s6", "s8", "s2", "s1")
ABBREVIATIONS = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2E"}
_STATE_WORDS = ("healthy", "unhealthy", "open", "half_open", "draining", "unknown")


def render(figures: dict[str, Any], title: str = "") -> str:
    """Return the whole report of a run."""
    settings = figures.get("settings", {})
    when = time.strftime("%d %b %Y, %H:%M UTC", time.strptime(figures["date"], "%Y-%m-%dT%H:%M:%SZ"))
    subtitle = "  ·  ".join([when, *(settings[key] for key in ("Endpoint", "Load") if key in settings)])
    body = page.notes(figures["notes"]) + tiles(figures) + sections(figures)
    body += page.section("Settings", page.pairs(settings.items()))
    body += f"<footer>Made by tools/loadgen.py. Duration {figures['elapsed']:.1f} s.</footer>"
    return page.document(title or "Load report", subtitle, body)


def sections(figures: dict[str, Any]) -> str:
    """Return the charts and tables of a run, without settings and heading."""
    parts = [_latency(figures), _heat(figures), _throughput(figures), _errors(figures), _aimd(figures)]
    parts += [_replicas(figures), _counts(figures)]
    return "".join(parts)


def tiles(figures: dict[str, Any]) -> str:
    """Return the headline figures."""
    latency = figures["latency_ms"]
    items = [
        ("Completed", f"{figures['completed']:,}", f"of {figures['requests']:,} sent"),
        (
            "Throughput",
            f"{figures['request_throughput']:,.1f}/s",
            f"{short(figures['output_throughput'])} output tokens/s",
        ),
    ]
    if "request_goodput" in figures:
        items.append(
            ("Goodput", f"{figures['request_goodput']:,.1f}/s", f"{figures['goodput']['share']:.1%} met the goals")
        )
    for name, title in (("ttft", "TTFT, median"), ("e2el", "E2E, median")):
        if name in latency:
            items.append((title, duration(latency[name]["median"]), f"p99 {duration(latency[name]['p99'])}"))
    lost = figures["failed"]
    remark = f"{figures['truncated']} truncated" + (f", {figures['left']} left on purpose" if figures["left"] else "")
    items.append(("Failed", f"{lost:,}", remark))
    return page.tiles(items)


def _latency(figures: dict[str, Any]) -> str:
    spreads = figures["latency_ms"]
    keys = ("mean", "median", "p90", "p95", "p99", "high")
    rows = [
        [_short_title(name, title), *(duration(spreads[name][key]) for key in keys)]
        for name, title in QUANTITIES.items()
        if name in spreads
    ]
    if not rows:
        return ""
    table = page.table(("", "mean", "median", "p90", "p95", "p99", "max"), rows)
    series = [
        Series(words, colour, _supported(figures["curves"][name], spreads[name]["count"]))
        for name, words, colour in (("e2el", "End-to-end latency", "s1"), ("ttft", "Time to first token", "s2"))
        if figures["curves"].get(name)
    ]
    words = "Counted from when each request was due, so a stall is not hidden by requests that were never sent in it."
    return page.section(
        "Latency", table + "<h3>By percentile</h3>" + charts.curve("Latency by percentile", series), words
    )


def _short_title(name: str, title: str) -> str:
    """Name a quantity by its abbreviation, with the words where there is room."""
    return f'{ABBREVIATIONS[name]} <span class="long">{html.escape(title)}</span>'


def _supported(points: Sequence[Sequence[float]], count: int) -> list[tuple[float, float]]:
    """Leave out percentiles that so few requests cannot support."""
    return [(q, value) for q, value in points if q <= 100.0 * (1.0 - 1.0 / max(count, 2))]


def _heat(figures: dict[str, Any]) -> str:
    series = figures["series"]
    body = ""
    for name, title in (("e2el", "End-to-end latency"), ("ttft", "Time to first token")):
        heat = series["heat"].get(name)
        if heat:
            body += f"<h3>{title}</h3>" + charts.heat(f"Heat map of {title}", heat, series["span"])
    words = "Each cell counts the requests that were due at that time and took that long."
    return page.section("Latency over time", body, words) if body else ""


def _binned(values: Sequence[float], width: float) -> list[tuple[float, float]]:
    return [(index * width, value) for index, value in enumerate(values)]


def _stepped(values: Sequence[float], width: float, span: float) -> list[tuple[float, float]]:
    return [*_binned(values, width), (span, values[-1])] if values else []


def _throughput(figures: dict[str, Any]) -> str:
    series, width, span = figures["series"], figures["series"]["width"], figures["series"]["span"]
    requests = [
        Series("due", "s3", _stepped(series["due"], width, span), step=True),
        Series("ended well", "s1", _stepped(series["completed"], width, span), step=True),
    ]
    body = "<h3>Requests per second</h3>" + charts.lines("Requests per second", requests, span, "/s")
    if any(series["tokens"]):
        tokens = [Series("output tokens", "s2", _stepped(series["tokens"], width, span), step=True)]
        body += "<h3>Output tokens per second, counted when a request ends</h3>"
        body += charts.lines("Output tokens per second", tokens, span, "/s")
    flying = [Series("in flight", "s4", _stepped(series["in_flight"], width, span), step=True)]
    body += "<h3>Requests in flight, highest in each bin</h3>" + charts.lines("Requests in flight", flying, span)
    return page.section("Throughput over time", body)


def _errors(figures: dict[str, Any]) -> str:
    series = figures["series"]
    if not series["errors"]:
        return page.section("Errors over time", '<p class="sub">None: every request ended well.</p>')
    layers = [
        Series(name.replace("_", " "), _FAULT_COLOURS[index % len(_FAULT_COLOURS)], _binned(values, series["width"]))
        for index, (name, values) in enumerate(series["errors"].items())
    ]
    body = charts.columns("Errors per second", layers, series["width"], series["span"], "/s")
    words = "Per second, by how the request ended for the client."
    if len(layers) == 1:
        words = f"Per second; all of one kind: {layers[0].name}."
    return page.section("Errors over time", body, words)


def _aimd(figures: dict[str, Any]) -> str:
    aimd = figures["aimd"]
    if not aimd:
        return ""
    samples = aimd["samples"]
    span = figures["series"]["span"]
    series = [
        Series("in flight", "s2", charts.sparse([(at, flying) for at, _, flying, *_ in samples]), step=True),
        Series("limit", "s1", charts.sparse([(at, limit) for at, limit, *_ in samples]), step=True),
    ]
    words = f"The client's limit on requests in flight began at {aimd['first']}"
    if aimd["decreases"] or aimd["increases"]:
        words += f", went down to {aimd['lowest']} and ended at {aimd['last']}: {aimd['decreases']} decreases, "
        words += f"{aimd['increases']} increases."
    else:
        words += " and stayed there."
    if aimd["refused_at"]:
        words += " Red marks are refusals (429)."
    return page.section(
        "AIMD admission", charts.lines("AIMD limit over time", series, span, "", aimd["refused_at"]), words
    )


def _replicas(figures: dict[str, Any]) -> str:
    replicas = figures["replicas"]
    if not replicas:
        return ""
    span = figures["series"]["span"]
    rows = []
    most = max(replica["share"] for replica in replicas) or 1.0
    for replica in replicas:
        bar = f'<span class="share" style="width:{90 * replica["share"] / most:.0f}px"></span>{replica["share"]:.1%}'
        answers = ", ".join(f"{code}: {count:,.0f}" for code, count in replica["answers"].items()) or "none"
        strip = charts.strip(replica["states"], span)
        rows.append([html.escape(replica["backend"]), f"{replica['attempts']:,.0f}", bar, answers, strip])
    seen = {state for replica in replicas for _, state in replica["states"]}
    key = charts.legend([(word.replace("_", "-"), word) for word in _STATE_WORDS if word in seen])
    body = key + page.stacked_table(("Replica", "Attempts", "Share", "Answers by status", "State over time"), rows)
    return page.section("Replicas", body, "As the side port of dd-proxy told it; open and half-open are its breaker.")


def _counts(figures: dict[str, Any]) -> str:
    tries = figures["tries"]
    proxy = tries["proxy_retries"]
    rows = [
        ("Final statuses", _list(figures["statuses"])),
        ("Outcomes", _list(figures["outcomes"])),
        ("Answers, all tries", _list(tries["answers"])),
        ("Retries by the client", _list(tries["client_retries"])),
        ("Retries by the proxy", "not watched (no side port given)" if proxy is None else _list(proxy)),
        ("Connections", _list(figures["connections"])),
    ]
    rows += [("Fault", f"{reason} ({count})") for reason, count in figures["reasons"].items()]
    own = figures["generator"]
    lag = f"loop lag p99 {own['lag_p99_ms']:.1f} ms, sends late by {own['send_delay_p99_ms']:.1f} ms at p99"
    rows.append(("Generator", f"{lag}, {own['cpu_share']:.0%} of a core"))
    return page.section("Counts", page.pairs(rows))


def _list(counts: dict[str, float]) -> str:
    return ", ".join(f"{name}: {value:,.0f}" for name, value in counts.items()) or "none"
