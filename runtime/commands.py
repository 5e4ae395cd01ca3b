"""The lifecycle's subcommands: their arguments, and who carries them out.

Owns usage. The work itself is done elsewhere; what a command needs is imported when it is called.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from runtime.layout import LayoutError
from runtime.planfile import PlanErrors, load_plan
from runtime.state import StateError
from runtime.usage import Parser, UsageError

_Command = Callable[[argparse.Namespace], int]


def carry_out(argv: list[str]) -> int:
    """Carry out one of the subcommands below, `argv[0]`, and return its exit code. Raises UsageError."""
    arguments = _parsers()[argv[0]].parse_args(argv[1:])
    command: _Command = arguments.carry_out
    try:
        return command(arguments)
    except PlanErrors as error:
        print(error, file=sys.stderr)
        return 2
    except (LayoutError, StateError) as error:
        print(f"dd-proxy {argv[0]}: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        raise
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"dd-proxy {argv[0]}: {where}{error.strerror or error}", file=sys.stderr)
        return 1


def _parsers() -> dict[str, Parser]:
    parsers: dict[str, Parser] = {}

    def command(name: str, carry_out: _Command, description: str) -> Parser:
        parsers[name] = Parser(prog=f"dd-proxy {name}", description=description)
        parsers[name].set_defaults(carry_out=carry_out)
        return parsers[name]

    for name, carry_out, description in _PLAN_COMMANDS:
        command(name, carry_out, description).add_argument("plan", metavar="PLAN", type=Path, help="plan file (TOML)")

    run = command("run", _run, _RUN)
    run.add_argument("plan", metavar="PLAN", type=Path, nargs="?", help="plan file (TOML), with --local")
    run.add_argument("--local", action="store_true", help="run on this machine, without Slurm (default: off)")
    run.add_argument("--attempt-dir", metavar="DIR", type=Path, help="attempt directory of a submitted run")
    run.add_argument("--preflight", action="store_true", help=argparse.SUPPRESS)  # a step that the controller starts

    monitor = command("monitor", _monitor, "Watch the services of one attempt; the controller starts it as a step.")
    monitor.add_argument("--attempt-dir", metavar="DIR", type=Path, required=True, help="attempt directory")

    status = command("status", _status, "Show all attempts of a run: readiness, steps, and what Slurm says.")
    status.add_argument("directory", metavar="DIR", type=Path, help="run or attempt directory")
    status.add_argument("--json", action="store_true", help="print one JSON object (default: text)")
    status.add_argument("--watch", action="store_true", help="follow the attempt until it ends (default: print once)")

    cancel = command("cancel", _cancel, _CANCEL)
    cancel.add_argument("directory", metavar="DIR", type=Path, help="run or attempt directory")
    return parsers


_RUN = """Run a plan: with --attempt-dir as the batch process of its Slurm job (the rendered script does that),
with --local the whole lifecycle on this machine.
Exit code: 0 succeeded, 1 failed, 2 bad plan, 130 or 143 cancelled by INT or TERM."""

_CANCEL = """Ask the controller of the last attempt to stop in order, and wait for it; a pending job is cancelled.
Exit code: 0 when the attempt ended so or had ended already, 1 otherwise."""


def _check(arguments: argparse.Namespace) -> int:
    load_plan(arguments.plan)
    print(f"{arguments.plan}: ok")
    return 0


def _render(arguments: argparse.Namespace) -> int:
    from runtime.render import render

    sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]  # the same bytes in any locale
    print(render(load_plan(arguments.plan)), end="")
    return 0


def _submit(arguments: argparse.Namespace) -> int:
    from runtime.submit import main_submit

    return main_submit(load_plan(arguments.plan))


_PLAN_COMMANDS: tuple[tuple[str, _Command, str], ...] = (
    ("check", _check, "Check a plan and print every error, one line each."),
    ("render", _render, "Print the batch script of a plan: the same plan gives the same bytes anywhere."),
    ("submit", _submit, "Submit a plan to Slurm and print job id, run and attempt directory as one JSON line."),
)


def _run(arguments: argparse.Namespace) -> int:
    plan_file, attempt_dir = arguments.plan, arguments.attempt_dir
    if arguments.local == (plan_file is None) or (plan_file is None) == (attempt_dir is None):
        usage = "run: takes either --attempt-dir DIR or PLAN --local (dd-proxy submit PLAN is for Slurm)"
        raise UsageError(f"dd-proxy {usage}")
    if arguments.preflight:
        from runtime.nodecheck import main_preflight

        return main_preflight(attempt_dir)
    from runtime.controller import main_run

    plan = load_plan(plan_file) if plan_file is not None else None
    return main_run(attempt_dir=attempt_dir, plan=plan, local=arguments.local)


def _monitor(arguments: argparse.Namespace) -> int:
    from runtime.monitor import main_monitor

    return main_monitor(attempt_dir=arguments.attempt_dir)


def _status(arguments: argparse.Namespace) -> int:
    from runtime.status import main_status

    return main_status(arguments.directory, as_json=arguments.json, watch=arguments.watch)


def _cancel(arguments: argparse.Namespace) -> int:
    from runtime.cancel import main_cancel

    return main_cancel(arguments.directory)
