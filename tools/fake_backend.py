#!/usr/bin/env python3
"""A replica without a GPU: OpenAI-shaped answers, real metric names, and faults that are switched while it runs.

Owns the command line and the life of the process. Needs only the standard library; uvloop is used when it is there.

    python tools/fake_backend.py --ports 18001-18008
    curl -X POST 127.0.0.1:18001/debug/fault -d '{"kind": "status", "status": 429, "retry_after": 1, "count": 5}'
    curl -X POST 127.0.0.1:18001/debug/fault -d '{"kind": "clear"}'
    curl 127.0.0.1:18001/debug/routing?port=all

One JSON line on stdout tells the real ports once all of them listen.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import resource
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs as a script from anywhere

from tools.fake.faults import KINDS
from tools.fake.replica import Replica, Settings
from tools.fake.server import Listener


def parse_ports(text: str) -> list[int]:
    """Return the ports of `18001-18008`, `18001,18005` or `0,0,0`. Raises ArgumentTypeError."""
    ports: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise argparse.ArgumentTypeError(f"{text!r}: expected ports such as 18001-18008 or 18001,18005")
        ports += range(int(first), int(last or first) + 1)
    if not ports or max(ports) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r}: ports are between 0 and 65535, the lower one first")
    return ports


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    kinds = "\n".join(f"  {name:<12}{text}" for name, text in KINDS.items())
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0],
        epilog="faults, as JSON to POST /debug/fault (also ?port=N, ?port=all; kind clear ends all, or `only` one):\n"
        f"{kinds}\n  status, reset, hang, cut and slow also know `count` (the next N) and `share` (0 to 1).",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    plain = Settings()
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--ports", type=parse_ports, metavar="A-B", help="one replica on each of these ports")
    where.add_argument("--port", type=int, metavar="N", help="one replica on this port (0, the default: pick one)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    parser.add_argument(
        "--engine", choices=("vllm", "sglang"), default=plain.engine, help="metric names (default vllm)"
    )
    parser.add_argument("--series", type=int, default=plain.series, help="engines or ranks (default %(default)s)")
    parser.add_argument(
        "--metrics-bytes", type=int, default=plain.metrics_bytes, help="page size (default %(default)s)"
    )
    parser.add_argument("--tokens", type=int, default=plain.tokens, help="tokens when none are asked for (%(default)s)")
    parser.add_argument(
        "--token-interval", type=float, default=plain.token_interval, help="seconds a token (default 0)"
    )
    parser.add_argument(
        "--max-concurrency", type=int, default=plain.max_concurrency, help="slots (default %(default)s)"
    )
    parser.add_argument("--startup-delay-s", type=float, default=0.0, help="answer /health with 503 for so long")
    parser.add_argument(
        "--keep-alive-s", type=float, default=plain.keep_alive_s, help="idle limit (default 5; 0: none)"
    )
    parser.add_argument("--fail-first", type=int, default=0, metavar="N", help="fail the first N requests")
    parser.add_argument("--fail-status", type=int, default=plain.fail_status, help="… with this (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the faults that strike only a share")
    return parser.parse_args(argv)


def settings_from(args: argparse.Namespace) -> Settings:
    """Return the settings of each replica."""
    return Settings(**{name: getattr(args, name) for name in Settings.__dataclass_fields__})


async def serve(args: argparse.Namespace) -> None:
    """Run the replicas until SIGTERM or SIGINT. Raises OSError when a port is taken."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    peers: dict[int, Listener] = {}
    settings = settings_from(args)
    for port in args.ports or [args.port or 0]:
        replica = Replica("", settings, loop.time)
        try:
            listener = Listener(replica, args.host, port, loop, peers)
            await listener.open()
        except OSError as error:
            raise OSError(f"cannot listen on {args.host}:{port}: {error.strerror}") from None
        replica.name = f"{args.host}:{listener.port}"
        peers[listener.port] = listener
    control = Listener(Replica("control", Settings(metrics_bytes=0), loop.time), "127.0.0.1", 0, loop, peers)
    await control.open()
    print(json.dumps({"event": "listening", "ports": list(peers), "control": control.port}), flush=True)
    await stop.wait()


def main() -> int:
    """Run the command; return its exit code."""
    args = parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        import uvloop
    except ImportError:
        factory = asyncio.new_event_loop
    else:
        factory = uvloop.new_event_loop
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(serve(args))
    except OSError as error:
        print(f"fake_backend: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
