"""The result as text: one table for a terminal or a log. Pure: figures in, lines out."""

from __future__ import annotations

from typing import Any

from tools.load.results import QUANTITIES

WIDTH = 66


def table(figures: dict[str, Any]) -> str:
    """Return the closing table of a run."""
    lines = [" Result ".center(WIDTH, "=")]

    def row(label: str, value: object) -> None:
        lines.append(f"{label:<44}{value:>{WIDTH - 44}}")

    row("Successful requests:", figures["completed"])
    row("Failed requests:", figures["failed"])
    if figures["left"]:
        row("Left on purpose:", figures["left"])
    row("Truncated responses:", figures["truncated"])
    row("Measured time (s):", f"{figures['duration']:.2f}")
    row("Total input tokens:", figures["total_input_tokens"])
    row("Total output tokens:", figures["total_output_tokens"])
    row("Request throughput (req/s):", f"{figures['request_throughput']:.2f}")
    if "request_goodput" in figures:
        row("Request goodput (req/s):", f"{figures['request_goodput']:.2f} ({figures['goodput']['share']:.1%})")
    row("Output token throughput (tok/s):", f"{figures['output_throughput']:.2f}")
    row("Total token throughput (tok/s):", f"{figures['total_token_throughput']:.2f}")
    lines += _latencies(figures)
    lines += _counts(figures)
    lines.append("=" * WIDTH)
    lines += [f"note: {note}" for note in figures["notes"]]
    return "\n".join(lines)


def _latencies(figures: dict[str, Any]) -> list[str]:
    if not figures["latency_ms"]:
        return []
    lines = [
        " Latency (ms), from the scheduled send ".center(WIDTH, "-"),
        f"{'':<24}" + "".join(f"{head:>8}" for head in ("mean", "p50", "p90", "p95", "p99")),
    ]
    for name, title in QUANTITIES.items():
        spread = figures["latency_ms"].get(name)
        if spread:
            cells = (spread[key] for key in ("mean", "median", "p90", "p95", "p99"))
            lines.append(f"{title:<24}" + "".join(f"{number(cell):>8}" for cell in cells))
    return lines


def _counts(figures: dict[str, Any]) -> list[str]:
    lines = [" Counts ".center(WIDTH, "-")]
    tries = figures["tries"]
    groups = {
        "Final statuses": figures["statuses"],
        "Outcomes": figures["outcomes"],
        "Retries by the client": tries["client_retries"],
        "Retries by the proxy": tries["proxy_retries"],
    }
    for title, counts in groups.items():
        if counts:
            lines.append(f"{title + ':':<24}" + ", ".join(f"{name} {value:g}" for name, value in counts.items()))
    connections = figures["connections"]
    lines.append(
        f"{'Connections:':<24}{connections['opened']} opened, {connections['reused']} reused, "
        f"{connections['resent']} resent after a dead one"
    )
    own = figures["generator"]
    lines.append(f"{'Generator:':<24}lag p99 {own['lag_p99_ms']:.1f} ms, {own['cpu_share']:.0%} of a core")
    return lines


def number(value: float) -> str:
    """Return a figure with about three significant digits."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
