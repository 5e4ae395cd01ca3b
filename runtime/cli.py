"""The entry of the lifecycle's subcommands, and `exec`.

Owns exit codes: 2 for bad usage or a bad plan, 1 when a command could not do its work, each with clear lines on stderr.
Imports as little as it can before it knows the subcommand, because every step of an attempt starts through `exec`.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import nullcontext
from pathlib import Path

from runtime.signals import held_signals
from runtime.usage import Parser, UsageError


def main(argv: list[str]) -> int:
    """Carry out one subcommand, `argv[0]`, and return its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored by who started this, every child would seem to exit with 0
    try:
        if argv[0] == "exec":
            return _exec(argv[1:])
        # Importing the lifecycle takes a moment in which a signal must not kill what will end in order on it.
        lasting = argv[0] in ("run", "monitor") and "--preflight" not in argv
        with held_signals() if lasting else nullcontext():
            from runtime.commands import carry_out

            code = carry_out(argv)
        sys.stdout.flush()
        return code
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    except BrokenPipeError:
        # Whoever read has left; without this the interpreter's last flush would complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _exec(argv: list[str]) -> int:
    """Read by hand: everything after `--` belongs to the command, whatever it looks like."""
    from runtime.identity import become

    own, command = (argv[: argv.index("--")], argv[argv.index("--") + 1 :]) if "--" in argv else (argv, [])
    parser = Parser(
        prog="dd-proxy exec",
        usage="dd-proxy exec --identity FILE -- COMMAND [ARGUMENT...]",
        description="Record this step's identity in FILE, then become COMMAND: same process, its exit code.",
    )
    parser.add_argument("--identity", metavar="FILE", type=Path, required=True, help="steps/NAME.json of the attempt")
    parser.add_argument(
        "--die-with-parent",
        metavar="PID",
        type=int,
        help="a local step: be killed when PID dies (default: a Slurm step)",
    )
    arguments = parser.parse_args(own)
    if not command:
        parser.error("no command: write it after --")
    return become(arguments.identity, command, arguments.die_with_parent)
