#!/usr/bin/env python3
"""Run overload and failure drills on dd-proxy: `python tools/drill.py` runs all of them and writes one report.

The command: chooses drills, runs one after the other, says loudly which promise was broken. Everything else is in
`tools/drilling`; the drills themselves are the files in `tools/drills`.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.drilling.checks import State
from tools.drilling.report import counts, render
from tools.drilling.runner import Endpoint, Report, run_drill, run_on
from tools.drilling.spec import BadDrill, Drill, read_drill
from tools.launch import StartError
from tools.load.session import raise_descriptor_limit
from tools.load.settings import parse_target

ROOT = Path(__file__).resolve().parents[1]
DRILLS = ROOT / "tools" / "drills"
REPORT = ROOT / "reports" / "drills.html"


def parser() -> argparse.ArgumentParser:
    """Return the parser of `drill`."""
    made = argparse.ArgumentParser(prog="drill", description="Overload and failure drills for dd-proxy.")
    made.add_argument("drills", nargs="*", metavar="DRILL", help="names or TOML files (default: all)")
    made.add_argument("--list", action="store_true", help="show what there is and end")
    made.add_argument("--scale", type=float, default=1.0, metavar="X", help="run X times as long (default 1)")
    made.add_argument("--report", type=Path, default=REPORT, metavar="FILE", help="page (default reports/drills.html)")
    made.add_argument("--keep", type=Path, metavar="DIR", help="keep the logs of replicas and proxy there")
    made.add_argument("--proxy", metavar="COMMAND", help="another dd-proxy command than that of this environment")
    made.add_argument("--url", help="drill a running endpoint instead; drills that touch replicas are skipped")
    made.add_argument("--metrics-url", help="its side port on this machine")
    return made


def chosen(names: list[str]) -> list[Drill]:
    """Read the drills that were asked for, all of them when none was. Raises BadDrill."""
    paths = [Path(name) if name.endswith(".toml") else DRILLS / f"{name}.toml" for name in names]
    if unknown := [name for name, path in zip(names, paths, strict=True) if not path.exists()]:
        raise BadDrill(f"no drill {', '.join(unknown)}; --list shows them, or name a .toml file")
    drills = [read_drill(path) for path in paths or sorted(DRILLS.glob("*.toml"))]
    return drills if names else sorted(drills, key=lambda drill: (drill.seconds, drill.name))


def say(text: str) -> None:
    """Show one line at once."""
    print(text, flush=True)


def tell(report: Report) -> None:
    """Say how a drill went: each promise that was broken or not judged, and the result."""
    if report.skipped:
        say(f"skipped  {report.drill.name}: {report.skipped}")
        return
    for verdict in report.verdicts:
        if verdict.state is not State.HELD:
            say(f"  {verdict.state.value.upper():8} {verdict.promise}: {verdict.said}")
    words = "; ".join(map(counts, report.figures))
    say(f"{'passed ' if report.passed else 'FAILED '}  {report.drill.name}: {words}")


def run(drill: Drill, options: argparse.Namespace, directory: Path) -> Report:
    """Run one drill as the options say. Raises StartError, OSError, TimeoutError, RuntimeError or ValueError."""
    seconds = drill.seconds * options.scale
    if options.url:
        side = parse_target(options.metrics_url)[0].port if options.metrics_url else None
        return run_on(drill, seconds, Endpoint(options.url, side), say)
    command = shlex.split(options.proxy) if options.proxy else ()
    return run_drill(drill, seconds, directory / drill.name, say, command)


def main(argv: list[str] | None = None) -> int:
    """Run the command: 0 when every promise held, 1 when one was broken or a drill could not run, 2 for bad usage."""
    options = parser().parse_args(argv)
    try:
        drills = chosen(options.drills)
    except BadDrill as bad:
        print(f"drill: {bad}", file=sys.stderr)
        return 2
    if options.list:
        for drill in drills:
            say(f"{drill.name:<18} {drill.seconds:4g} s  {drill.title}")
        return 0
    if options.scale <= 0:
        print("drill: --scale must be above zero", file=sys.stderr)
        return 2
    raise_descriptor_limit()
    reports, unable, interrupted = run_all(drills, options)
    options.report.parent.mkdir(parents=True, exist_ok=True)
    options.report.write_text(render(reports, time.strftime("%d %b %Y, %H:%M UTC", time.gmtime())), encoding="utf-8")
    failed = unable + sum(not report.passed and not report.skipped for report in reports)
    say(f"{len(reports) + unable} of {len(drills)} drills, {failed} failed; report: {options.report}")
    return 130 if interrupted else 1 if failed else 0


def run_all(drills: list[Drill], options: argparse.Namespace) -> tuple[list[Report], int, bool]:
    """Run the drills one after the other; return the reports, how many could not be carried out, and whether Ctrl-C
    came.
    """
    reports: list[Report] = []
    unable = 0
    with tempfile.TemporaryDirectory(prefix="dd-drill-") as temporary:
        for drill in drills:
            try:
                reports.append(run(drill, options, options.keep or Path(temporary)))
            except (StartError, OSError, TimeoutError, RuntimeError, ValueError) as error:
                unable += 1
                say(f"FAILED   {drill.name}: could not be carried out: {error}")
                continue
            except KeyboardInterrupt:
                say(f"stopped in {drill.name}")
                return reports, unable, True
            tell(reports[-1])
    return reports, unable, False


if __name__ == "__main__":
    sys.exit(main())
