"""The settings of one run as a frozen record, and what they mean in words.

Owns no argument name and no default of the command line; secrets never reach the words.
"""

from __future__ import annotations

import argparse
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tools.load.client import Target
from tools.load.engine import Plan
from tools.load.jobs import Jobs, Sizes, Template, read_trace
from tools.load.pace import Leg
from tools.load.policy import AimdConfig


@dataclass(frozen=True)
class Settings:
    """All that one run needs to know. `goals` are milliseconds by quantity."""

    target: Target
    template: Template
    plan: Plan
    client: str = "plain"
    aimd: AimdConfig = field(default_factory=AimdConfig)
    idle_timeout: float = 4.0
    trace: Path | None = None
    goals: tuple[tuple[str, float], ...] = ()
    metrics: Target | None = None
    json_file: Path | None = None
    report_file: Path | None = None
    title: str = ""
    quiet: bool = False
    shown: tuple[tuple[str, str], ...] = ()

    def jobs(self) -> Jobs:
        """Return the requests of the run. Raises ValueError or OSError for a bad trace file."""
        trace = read_trace(self.trace) if self.trace else None
        if self.plan.replay and trace and any(line.at is None for line in trace):
            raise ValueError(f"{self.trace}: --replay needs a timestamp on every line")
        return Jobs(self.template, trace, self.plan.seed)


def parse_target(url: str, insecure: bool = False) -> tuple[Target, str]:
    """Split a base URL into where to connect and the path before the endpoint's. Raises ValueError with a reason."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is not an http:// or https:// URL")
    if parts.username or parts.password:
        raise ValueError("credentials in a URL end up in reports: use --api-key-env or --header")
    tls = None
    if parts.scheme == "https":
        tls = ssl.create_default_context()
        if insecure:
            tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    port = parts.port or (443 if tls else 80)
    return Target(parts.hostname, port, tls), parts.path.rstrip("/")


def _sizes_text(sizes: Sizes) -> str:
    return ":".join([sizes.kind, *(f"{value:g}" for value in sizes.parameters)])


def _rate_text(legs: tuple[Leg, ...]) -> str:
    words = [
        f"{leg.start:g}/s" + ("" if leg.start == leg.end else f" to {leg.end:g}/s")
        + ("" if leg.seconds == float("inf") else f" for {leg.seconds:g} s")
        for leg in legs
    ]  # fmt: skip
    return ", then ".join(words)


def in_words(given: argparse.Namespace, plan: Plan) -> tuple[tuple[str, str], ...]:
    """Say in words what this run does: the settings of the report, secrets left out."""
    if plan.users:
        load = f"closed loop, {plan.users} users" + (f", {plan.think:g} s think time" if plan.think else "")
    elif plan.replay:
        load = f"replay of the trace at {plan.replay:g} times its speed"
    else:
        spacing = "evenly spaced" if plan.burstiness is None else f"gamma arrivals, burstiness {plan.burstiness:g}"
        load = f"open loop, {_rate_text(plan.legs)}, {spacing}"
    ends = [f"{plan.requests} requests"] if plan.requests else []
    ends += [f"{plan.duration:g} s"] if plan.duration else []
    source = f"trace {given.trace}" if given.trace else (
        f"input {_sizes_text(given.input_tokens)}, output {_sizes_text(given.output_tokens)}"
    )  # fmt: skip
    warmup = f", after {plan.warmup:g} s warm-up" if plan.warmup else ""
    rows = [
        ("Endpoint", f"{given.method} {given.url} {given.endpoint}"),
        ("Load", load),
        ("Until", (" or ".join(ends) or "the end of the profile") + warmup),
        ("Tokens", source),
        ("Streams", f"{given.stream:.0%}"),
        ("Client", given.client),
        ("Seed", str(plan.seed)),
    ]  # fmt: skip
    if plan.max_in_flight:
        rows.append(("In flight", f"at most {plan.max_in_flight}"))
    if given.client == "aimd":
        limits = f"start {given.aimd_start}, maximum {given.aimd_max}, x {given.aimd_decrease:g} per burst"
        rows.append(("Admission", f"{limits}, +1 per {given.aimd_successes} successes"))
    if given.leave:
        rows.append(("Leaving early", f"{given.leave[0]:.0%} after {given.leave[1]:g} to {given.leave[2]:g} s"))
    if given.slow:
        rows.append(("Slow readers", f"{given.slow[0]:.0%} at {given.slow[1]:g} bytes/s"))
    if given.goodput:
        rows.append(("Goodput", ", ".join(f"{name} within {limit:g} ms" for name, limit in given.goodput)))
    return tuple(rows)
