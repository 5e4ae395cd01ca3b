"""What --help prints, and the README's table of options, from the one table. Loaded only when somebody asks."""

from __future__ import annotations

from proxy.options import SECTIONS, Option

COMMANDS = (
    ("serve", "one endpoint in front of the replicas of one model (without a subcommand: this)"),
    ("check FILE", "validate a config or plan file: every error, one line each"),
    ("top", "live view of a running proxy"),
    ("why", "explain what happened to a request"),
    ("submit PLAN", "start replicas, endpoint and client of a plan as one Slurm job"),
    ("run", "the whole lifecycle of a plan, inside a job or on this machine (--local)"),
    ("status DIR", "attempts, readiness and steps of a run"),
    ("cancel DIR", "stop a run in order"),
    ("render PLAN", "print the batch script of a plan"),
    ("monitor", "health monitor of one attempt (a step of `run`)"),
    ("exec", "record a step's identity, then become its command (a step of `run`)"),
)

_WIDTH = 34


def overview() -> str:
    """Return the help of `dd-proxy` itself."""
    lines = ["usage: dd-proxy [serve] --listen-port N --backend URL [--backend URL ...] [options]"]
    lines += ["       dd-proxy SUBCOMMAND ...", "", "One endpoint for many LLM replicas.", "", "subcommands:"]
    lines += [f"  {name:<14}{text}" for name, text in COMMANDS]
    lines += ["", "example:", "  dd-proxy --listen-port 8000 --backend http://node1:8001 --backend http://node2:8001"]
    lines += ["", "dd-proxy SUBCOMMAND --help lists its options; dd-proxy --version prints the version."]
    return "\n".join(lines)


def serve_help() -> str:
    """Return the help of `serve`: one line per option with its default."""
    lines = ["usage: dd-proxy serve --listen-port N --backend URL [--backend URL ...] [options]", ""]
    lines += ["One endpoint in front of the replicas of one model. Defaults in brackets. Times are seconds; sizes are"]
    lines += ['bytes or "64KiB", "100MiB". Each option is also a key of the config file, `-` written as `_`.']
    for title, options in SECTIONS:
        lines += ["", f"{title}:"]
        lines += [f"  {_usage(option):<{_WIDTH}}{option.help} [{option.default_text}]" for option in options]
    lines += [f"  {'--config FILE':<{_WIDTH}}TOML file with any of these options; the command line wins [none]"]
    lines += [f"  {'-h, --help':<{_WIDTH}}print this"]
    return "\n".join(lines)


def check_help() -> str:
    """Return the help of `check`."""
    return (
        "usage: dd-proxy check FILE\n\n"
        "Validate a config file of `serve`, or a plan (a file with [job] or [[deployment]]), and start nothing.\n"
        "Each error is one line with file, key and reason. Exit code: 0 when the file is good, else 2."
    )


def markdown() -> str:
    """Return the table of options for the README."""
    lines = ["| option | default | meaning |", "| --- | --- | --- |"]
    for title, options in SECTIONS:
        lines.append(f"| **{title}** | | |")
        lines += [f"| `{_usage(option)}` | {option.default_text} | {option.help} |" for option in options]
    return "\n".join(lines)


def _usage(option: Option) -> str:
    return f"--{option.name} {option.metavar}".rstrip()
