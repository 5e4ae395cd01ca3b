#!/usr/bin/env python3
"""What dd-proxy costs next to nginx and next to a byte pipe on this machine: CPU per request and event, and memory.

    python tools/bench.py               # everything, three interleaved rounds, ten minutes
    python tools/bench.py --quick       # the main rows, under two minutes
    python tools/bench.py --scale       # 4,000 streams at once, 10,000 idle clients, through dd-proxy alone

Owns rounds and their order; docs/performance.md says how to read the table. Fails when an answer was wrong or missing,
never because of a time.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs as a script from anywhere

from tools.benchmark import page, scale
from tools.benchmark.contestants import CANNOT_RETRY, PRODUCT, Running, launch, program
from tools.benchmark.host import Cpus, Missing, raise_descriptor_limit
from tools.benchmark.rig import EIGHT, Fleet, Measured, Rig, Size
from tools.benchmark.table import Record, failures, notes, table
from tools.launch import StartError, wait_until


@dataclass(frozen=True, slots=True)
class Work:
    """One workload, and the backends that the proxy has meanwhile."""

    run: Callable[[Rig, Running], Measured]
    fleet: Fleet = EIGHT


WORKS: dict[str, Work] = {
    "rest": Work(Rig.rest),
    "unary": Work(Rig.unary),
    "varying": Work(Rig.varying),
    "retry": Work(Rig.retry, Fleet(serving=1, refusing=1)),
    "64 backends": Work(Rig.unary, Fleet(64)),
    "256 backends": Work(Rig.unary, Fleet(256)),
    "streams 128": Work(lambda rig, proxy: rig.streams(proxy, 128)),
    "streams 512": Work(lambda rig, proxy: rig.streams(proxy, 512)),
    "uploads": Work(Rig.uploads),
    "crowd": Work(Rig.crowd),
}
QUICK = ("rest", "unary", "varying", "streams 128")
IDLE_CLIENTS = 10_000
SPARE_FILES = 500  # for everything but backends and idle clients
FILES_EACH = 4  # of a backend: where it listens, and its pooled, sampled and probed connections


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK)}, shorter")
    parser.add_argument("--rounds", type=int, default=0, metavar="N", help="interleaved rounds (0: 3, quick: 2)")
    parser.add_argument("--work", default="", metavar="A,B", help=f"only these: {', '.join(WORKS)}")
    parser.add_argument("--scale", action="store_true", help="the scale test instead of the comparison")
    parser.add_argument("--streams", type=int, default=scale.STREAMS, metavar="N", help="of --scale")
    parser.add_argument("--events", type=int, default=scale.EVENTS_EACH, metavar="N", help="of each stream of --scale")
    parser.add_argument("--idle-clients", type=int, default=IDLE_CLIENTS, metavar="N", help="fewer where files are few")
    parser.add_argument("--document", action="store_true", help="put what was measured into docs/performance.md")
    options = parser.parse_args(argv)
    options.works = [work for work in options.work.split(",") if work] or list(QUICK if options.quick else WORKS)
    if unknown := [work for work in options.works if work not in WORKS]:
        parser.error(f"no workload {', '.join(unknown)}; there are {', '.join(WORKS)}")
    partial = options.works != list(WORKS) or (options.streams, options.events) != (scale.STREAMS, scale.EVENTS_EACH)
    if options.document and partial:
        parser.error("--document takes the whole: leave out --quick, --work, --streams and --events")
    options.rounds = options.rounds or (2 if options.quick else 3)
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 1 when an answer was wrong or missing, 2 when something that it needs is not here."""
    options = parse(argv)
    descriptors = raise_descriptor_limit()
    try:
        with tempfile.TemporaryDirectory(prefix="dd-proxy-bench-") as folder:
            if options.scale:
                load = scale.Load(options.streams, options.events, options.idle_clients)
                said, failed = scale.run(Path(folder), load, descriptors)
                if options.document and not failed:
                    page.put("scale", f"```\n{said}\n```\n\n{page.conditions()}.")
                return 1 if failed else 0
            return compare(options, Path(folder), descriptors)
    except (Missing, StartError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    except (OSError, RuntimeError) as error:
        print(f"FAILED {error}", file=sys.stderr)
        return 1


def compare(options: argparse.Namespace, folder: Path, descriptors: int) -> int:
    """Measure every proxy in every round and print the table."""
    check_files(options.works, descriptors)
    cpus, began = Cpus(), time.monotonic()
    names = [PRODUCT, *(["nginx"] if program("nginx") else []), "pipe"]
    size = size_of(options, descriptors)
    cpus.keep_off()
    rig, records = Rig(cpus, size, folder), list[Record]()
    try:
        for number in range(1, options.rounds + 1):
            shift = (number - 1) % len(names)
            for name in names[shift:] + names[:shift]:  # nobody is always the first
                records += measured(rig, name, number, options.works, folder / f"{name}-{number}")
                _say(number, options.rounds, name)
    finally:
        rig.close()
    text = table(records, names, size.idle_clients)
    how = _how(options.rounds, cpus)
    print(f"{text}\n\n{how}; {time.monotonic() - began:.0f} s")
    doubts = notes(records, names)
    if "nginx" not in names:
        doubts.append("nginx is not installed (Debian: apt-get install nginx-light), so its columns are missing")
    for line in doubts:
        print("note:", line)
    failed = failures(records)
    for line in failed:
        print("FAILED", line)
    if options.document and not failed:
        said = [text, f"{how}.\n{page.conditions()}."]
        page.put(
            "bench", "\n\n".join([*said, *(["To be doubted:", "\n".join(f"- {d}" for d in doubts)] if doubts else [])])
        )
    return 1 if failed else 0


def size_of(options: argparse.Namespace, descriptors: int) -> Size:
    """Say how much is done; the pipe holds two descriptors for each client."""
    idle = min(options.idle_clients, (descriptors - 1500) // 2)
    if options.quick:
        return Size(seconds=3, events=150, uploads=1, idle_clients=idle, rest_s=1.0)
    return Size(seconds=5, events=300, uploads=4, idle_clients=idle, rest_s=3.0)


def check_files(works: Sequence[str], descriptors: int) -> None:
    """Raise Missing when the limit of open files is too low for the backends of a workload."""
    backends = max(WORKS[work].fleet.serving for work in works)
    needed = SPARE_FILES + FILES_EACH * backends
    if descriptors < needed:
        raise Missing(f"{backends} backends need {needed:,} open files, and {descriptors:,} are allowed (ulimit -Hn)")


def by_fleet(works: Sequence[str]) -> dict[Fleet, list[str]]:
    """Group workloads by the backends that they need.

    Those of eight backends come last, since they begin with the plain requests that the others are compared with.
    """
    fleets = sorted(dict.fromkeys(WORKS[work].fleet for work in works), key=lambda fleet: fleet == EIGHT)
    return {fleet: [work for work in works if WORKS[work].fleet == fleet] for fleet in fleets}


def measured(rig: Rig, name: str, number: int, works: Sequence[str], folder: Path) -> Iterator[Record]:
    """Put each workload on a proxy, which is started anew for each fleet; leave out what the proxy cannot do."""
    for fleet, group in by_fleet(works).items():
        if not (fleet.refusing and name in CANNOT_RETRY):
            for work, found in on_one_proxy(rig, name, fleet, group, folder / f"{fleet.serving}-{fleet.refusing}"):
                yield Record(number, name, work, found.values, found.faults)


def on_one_proxy(
    rig: Rig, name: str, fleet: Fleet, works: Sequence[str], folder: Path
) -> Iterator[tuple[str, Measured]]:
    """Start one proxy and put each workload on it; what fails becomes a fault of every workload that is left."""
    clients = rig.size.idle_clients + 600
    left = list(works)
    try:
        started = launch(folder, rig.ports(fleet), clients, fleet.refusing)
        with Running(name, started, rig.cpus.pinned([], rig.cpus.proxy)) as proxy:
            wait_until(proxy.answers, 30, f"an answer through {name}")
            for work in works:
                found = WORKS[work].run(rig, proxy)
                left.remove(work)
                yield work, found
    except (OSError, RuntimeError, TimeoutError) as error:
        for work in left:
            yield work, Measured({}, [f"{type(error).__name__}: {error}"])


def _say(number: int, rounds: int, name: str) -> None:
    print(f"round {number} of {rounds}: {name} done", file=sys.stderr, flush=True)


def _how(rounds: int, cpus: Cpus) -> str:
    where = "Not pinned, since there is one CPU" if cpus.proxy is None else f"The proxy alone on CPU {cpus.proxy}"
    spread = "median [range] of" if rounds > 1 else "from"
    return f"{where}; {spread} {rounds} interleaved rounds, ratios formed inside each"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
