"""The command line of the load generator: arguments in, frozen settings out.

Owns names, defaults and the checks that need no network. Every mistake is one line that says how to mend it, exit code
2.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import orjson

from tools.load.engine import Plan
from tools.load.jobs import Template, parse_sizes
from tools.load.pace import Leg, parse_rate
from tools.load.policy import AimdConfig
from tools.load.settings import Settings, in_words, parse_target

GOALS = ("ttft", "tpot", "e2el")


def _checked(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Turn the ValueError of a parser into argparse's one-line refusal."""

    def convert(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1e9:
        raise ValueError(f"{text} is not a number of seconds")
    return value


def _count(text: str) -> int:
    if not text.isdigit():
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def _numbers(text: str, least: int, most: int) -> list[float]:
    parts = [float(part) for part in text.split(":")]
    if not least <= len(parts) <= most or not 0 < parts[0] <= 1 or any(part < 0 for part in parts):
        raise ValueError(f"{text!r}: first a share from 0 to 1, then {least - 1} or more numbers, with colons between")
    return parts


def _leave(text: str) -> tuple[float, float, float]:
    share, low, *rest = _numbers(text, 2, 3)
    return share, low, rest[0] if rest else low


def _slow(text: str) -> tuple[float, float]:
    share, rate = _numbers(text, 2, 2)
    if rate < 1:
        raise ValueError(f"{text!r}: a slow client reads at least 1 byte per second")
    return share, rate


def _goal(text: str) -> tuple[str, float]:
    name, _, limit = text.partition(":")
    if name not in GOALS or not limit:
        raise ValueError(f"a goal is NAME:MILLISECONDS with NAME one of {', '.join(GOALS)}, not {text!r}")
    return name, float(limit)


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError(f"{text} is not a share from 0 to 1")
    return value


def _header(text: str) -> str:
    name, colon, value = text.partition(":")
    if not colon or not name.strip() or "\n" in text or "\r" in text:
        raise ValueError(f"a header is NAME: VALUE, not {text!r}")
    return f"{name.strip()}: {value.strip()}"


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError("must be a JSON object")
    return value


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Show defaults where there is one to show."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default in (None, False, (), [], {}, ""):
            return action.help
        return super()._get_help_string(action)


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"loadgen: {message}; see --help\n")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of `loadgen`."""
    parser = _Parser(
        prog="loadgen", description="Put load on an LLM endpoint and say how it took it.", formatter_class=_Help
    )
    add = parser.add_argument_group("where").add_argument
    add("--url", required=True, metavar="URL", help="base URL of the endpoint, such as http://127.0.0.1:8000")
    add("--endpoint", default="/v1/chat/completions", metavar="PATH", help="path that is asked for")
    add("--method", default="POST", choices=("POST", "GET"), help="GET sends no body")
    add("--model", default="model", help="model name in the request")
    add("--header", type=_checked(_header), action="append", default=[], metavar="NAME:VALUE", help="repeatable")
    add("--api-key-env", metavar="NAME", help="environment variable that holds the bearer token")
    add("--insecure", action="store_true", help="do not verify an https endpoint")
    add("--metrics-url", metavar="URL", help="side port of dd-proxy: shares, states and retries of its replicas")
    _add_pace(parser)
    _add_content(parser)
    _add_client(parser)
    add = parser.add_argument_group("results").add_argument
    add("--goodput", nargs="+", type=_checked(_goal), default=[], metavar="NAME:MS", help="such as ttft:500 e2el:5000")
    add("--json", type=Path, metavar="FILE", help="figures for machines")
    add("--report", type=Path, metavar="FILE", help="figures for people: one HTML page")
    add("--title", default="", help="heading of the report")
    add("--quiet", action="store_true", help="no progress, only the table")
    return parser


def _add_pace(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("how much (open loop: --rate or --replay; closed loop: --users)").add_argument
    add(
        "--users",
        type=_checked(_count),
        default=0,
        metavar="N",
        help="N users, each waiting for its answer (8 if unset)",
    )
    add("--think-time", type=_checked(_seconds), default=0.0, metavar="S", help="pause of a user between two requests")
    add("--ramp-up", type=_checked(_seconds), default=0.0, metavar="S", help="start the users over this time")
    add(
        "--rate",
        type=_checked(parse_rate),
        metavar="RATE",
        help="requests/s: 50, inf, ramp:10:200:60, steps:10x30,50x30",
    )
    add("--arrivals", choices=("poisson", "constant"), default="poisson", help="how requests of --rate are spaced")
    add(
        "--burstiness",
        type=_checked(_seconds),
        default=1.0,
        metavar="G",
        help="1 Poisson, below burstier, above evener",
    )
    add(
        "--replay",
        type=_checked(_seconds),
        nargs="?",
        const=1.0,
        default=0.0,
        metavar="SPEED",
        help="the times of the trace, once",
    )
    add(
        "--max-concurrency",
        type=_checked(_count),
        default=0,
        metavar="N",
        help="at most so many in flight (0: no limit)",
    )
    add("--requests", type=_checked(_count), default=0, metavar="N", help="stop after so many")
    add(
        "--duration",
        type=_checked(_seconds),
        default=0.0,
        metavar="S",
        help="stop after this time (30 if no --requests)",
    )
    add("--warmup", type=_checked(_seconds), default=0.0, metavar="S", help="before it, and not counted")
    add("--grace", type=_checked(_seconds), default=30.0, metavar="S", help="time to finish after the end or Ctrl-C")


def _add_content(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("what is asked").add_argument
    sizes = _checked(parse_sizes)
    add("--input-tokens", type=sizes, default="128", metavar="SIZES", help="128, uniform:A:B, normal:MEAN:SD,"
        " lognormal:MEDIAN:SIGMA, exponential:MEAN")  # fmt: skip
    add("--output-tokens", type=sizes, default="64", metavar="SIZES", help="the same, sent as max_tokens")
    add("--trace", type=Path, metavar="FILE", help="JSONL of requests instead of distributions")
    add(
        "--stream",
        type=_checked(_share),
        nargs="?",
        const=1.0,
        default=0.0,
        metavar="SHARE",
        help="share of streams (1)",
    )
    add("--extra-body", type=_checked(_json_object), default={}, metavar="JSON", help="fields added to each request")
    add("--expect-tokens", action="store_true", help="an answer with another number of tokens than asked is a fault")
    add("--seed", type=_checked(_count), default=0, metavar="N", help="the same seed is the same load")


def _add_client(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("how the client behaves").add_argument
    add("--client", choices=("plain", "sdk", "aimd"), default="plain", help="plain: no retries; sdk: three tries as the"
        " OpenAI SDK; aimd: admission controller of NeMo Data Designer")  # fmt: skip
    add("--aimd-start", type=_checked(_count), default=16, metavar="N", help="first limit on requests in flight")
    add("--aimd-max", type=_checked(_count), default=64, metavar="N", help="highest limit")
    add("--aimd-decrease", type=_checked(_share), default=0.75, metavar="F", help="factor, once per burst of 429s")
    add("--aimd-cooldown", type=_checked(_seconds), default=2.0, metavar="S", help="where Retry-After is missing")
    add("--aimd-successes", type=_checked(_count), default=25, metavar="N", help="so many raise the limit by one")
    add("--timeout", type=_checked(_seconds), default=600.0, metavar="S", help="limit of one try")
    add("--idle-timeout", type=_checked(_seconds), default=4.0, metavar="S", help="idle connections are given up then")
    add(
        "--leave", type=_checked(_leave), metavar="SHARE:S[:S]", help="share of clients that leave after S to S seconds"
    )
    add("--slow", type=_checked(_slow), metavar="SHARE:BYTES", help="share of clients that read BYTES per second")


def parse(argv: list[str] | None = None) -> Settings:
    """Read the command line; exits with code 2 and one line when something is wrong."""
    parser = build_parser()
    given = parser.parse_args(argv)
    try:
        return _settings(given)
    except ValueError as error:
        parser.exit(2, f"loadgen: {error}\n")


def _settings(given: argparse.Namespace) -> Settings:
    for option, file in (("--json", given.json), ("--report", given.report)):
        if file is not None and not file.absolute().parent.is_dir():
            raise ValueError(f"{option}: there is no folder {file.absolute().parent}")
    target, base = parse_target(given.url, given.insecure)
    headers = list(given.header)
    if given.api_key_env:
        if given.api_key_env not in os.environ:
            raise ValueError(f"--api-key-env: {given.api_key_env} is not set in the environment")
        headers.append(f"Authorization: Bearer {os.environ[given.api_key_env]}")
    path = given.endpoint if given.endpoint.startswith("/") else "/" + given.endpoint
    if base and path.startswith(base + "/"):
        base = ""
    template = Template(
        target.authority, base + path, given.model, given.method, tuple(headers), given.extra_body,
        given.input_tokens, given.output_tokens, given.stream, given.timeout, given.leave, given.slow,
    )  # fmt: skip
    plan = _plan(given)
    aimd = AimdConfig(
        given.aimd_start, given.aimd_max, given.aimd_decrease, given.aimd_cooldown, 1, given.aimd_successes
    )
    metrics = parse_target(given.metrics_url)[0] if given.metrics_url else None
    return Settings(
        target, template, plan, given.client, aimd, given.idle_timeout, given.trace, tuple(given.goodput), metrics,
        given.json, given.report, given.title, given.quiet, in_words(given, plan),
    )  # fmt: skip


def _plan(given: argparse.Namespace) -> Plan:
    legs: tuple[Leg, ...] = given.rate or ()
    drivers = [name for name, on in (("--users", given.users), ("--rate", legs), ("--replay", given.replay)) if on]
    if len(drivers) > 1:
        raise ValueError(f"{' and '.join(drivers)} exclude each other: choose one")
    if given.replay and not given.trace:
        raise ValueError("--replay needs --trace FILE")
    if legs and legs[0].start == float("inf") and not given.requests:
        raise ValueError("--rate inf needs --requests N")
    if given.burstiness <= 0:
        raise ValueError("--burstiness must be above zero")
    if given.max_concurrency and not drivers[:1]:
        raise ValueError("--max-concurrency is for --rate and --replay; with --users it is the number of users")
    profile = sum(leg.seconds for leg in legs)
    ends = given.requests or given.replay or (legs and profile != float("inf"))
    return Plan(
        users=given.users or (0 if drivers else 8),
        legs=legs,
        replay=given.replay,
        burstiness=given.burstiness if given.arrivals == "poisson" else None,
        requests=given.requests,
        duration=given.duration or (0.0 if ends else 30.0),
        warmup=given.warmup,
        max_in_flight=given.max_concurrency,
        think=given.think_time,
        ramp_up=given.ramp_up,
        grace=given.grace,
        expect_tokens=given.expect_tokens,
        seed=given.seed,
    )
