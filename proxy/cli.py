"""The command line: which subcommand runs, and how `serve` options on it and in a file become one configuration.

Owns exit code 2 and the one line that goes with it. Knows nothing of sockets or of what a subcommand does; each is
imported only when it runs, so that `serve` carries none of the others.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from proxy import __version__
from proxy.config import Config, ConfigError, nearest
from proxy.config_files import build_config, load_toml
from proxy.kinds import Flag, show
from proxy.options import OPTIONS

if TYPE_CHECKING:
    from types import ModuleType

USAGE_ERROR = 2
INTERRUPTED = 130
COMMAND_LINE = "command line"


class UsageError(Exception):
    """A command line that cannot be obeyed; the text is the one line for the person who typed it."""


def main(argv: list[str] | None = None) -> int:
    """Run one subcommand and return the exit code of the process."""
    _reserve_standard_descriptors()
    arguments = sys.argv[1:] if argv is None else argv
    try:
        return _dispatch(arguments)
    except UsageError as error:
        _complain(f"dd-proxy: {error}")
        return USAGE_ERROR
    except KeyboardInterrupt:
        return INTERRUPTED


def _dispatch(arguments: Sequence[str]) -> int:
    word = arguments[0] if arguments else ""
    if word in ("-h", "--help"):
        return _say(_help().overview())
    if word == "--version":
        return _say(f"dd-proxy {__version__}")
    if not word or word.startswith("-"):
        return _serve(arguments)
    if word not in SUBCOMMANDS:
        raise UsageError(f"unknown subcommand {show(word)}, the nearest is {nearest(word, [*SUBCOMMANDS])}; see --help")
    return SUBCOMMANDS[word](arguments)


def _serve_command(arguments: Sequence[str]) -> int:
    return _serve(arguments[1:])


def _serve(arguments: Sequence[str]) -> int:
    if any(word in ("-h", "--help") for word in arguments):
        return _say(_help().serve_help())
    config = read_command_line(arguments, os.environ.get("TMPDIR") or "/tmp")
    from proxy.server import run

    return run(config)


def _check(arguments: Sequence[str]) -> int:
    if any(word in ("-h", "--help") for word in arguments[1:]):
        return _say(_help().check_help())
    if len(arguments) != 2 or arguments[1].startswith("-"):
        raise UsageError("check takes one file: dd-proxy check FILE")
    path = arguments[1]
    values, errors = load_toml(path)
    if "job" in values or "deployment" in values:
        return _runtime(arguments)
    if not errors:
        _, errors = build_config(values, path, "/tmp")
    for error in errors:
        _complain(str(error))
    if errors:
        return USAGE_ERROR
    return _say(f"{path}: ok")


def _runtime(arguments: Sequence[str]) -> int:
    from runtime.cli import main as run

    return run(list(arguments))


def _top(arguments: Sequence[str]) -> int:
    from proxy.top import main as run

    return _printing(run, arguments[1:])


def _why(arguments: Sequence[str]) -> int:
    from proxy.why import main as run

    return _printing(run, arguments[1:])


SUBCOMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "serve": _serve_command,
    "check": _check,
    "top": _top,
    "why": _why,
    **dict.fromkeys(("render", "submit", "run", "monitor", "exec", "status", "cancel"), _runtime),
}


def read_command_line(arguments: Sequence[str], temp_dir: str) -> Config:
    """Return the configuration that `serve` arguments, and the file they name, give.

    `temp_dir` is the spool folder where they name none. Raises UsageError with the first error.
    """
    given = _parse(arguments)
    config_file = given.pop("config", None)
    path = config_file if isinstance(config_file, str) else None
    values, errors = load_toml(path) if path is not None else ({}, [])
    if not errors:
        config, errors = build_config({**values, **given}, path or COMMAND_LINE, temp_dir)
        if config is not None:
            return config
    raise UsageError(_first_of(errors, given, values, path))


def _first_of(
    errors: Sequence[ConfigError], given: Mapping[str, object], values: Mapping[str, object], path: str | None
) -> str:
    """Return the line for the first of several errors: told as an option, or with its file where the file said it."""
    first = errors[0]
    if path is not None and (not first.key or (first.key in values and first.key not in given)):
        more = f" (and {len(errors) - 1} more: run dd-proxy check {path})" if len(errors) > 1 else ""
        return f"{first}{more}"
    if first.key == "spool_dir" and "spool_dir" not in given:
        return f"--spool-dir: {first.reason}; it comes from $TMPDIR, change either"
    return f"--{first.key.replace('_', '-')}: {first.reason}"


def _parse(arguments: Sequence[str]) -> dict[str, object]:
    """Return the option values that stand on the command line, by key and as a TOML file would hold them."""
    import argparse

    class Parser(argparse.ArgumentParser):
        """A parser whose errors are one line, without a usage text."""

        def error(self, message: str) -> NoReturn:
            raise UsageError(message.removeprefix("argument ").replace("expected one argument", "its value is missing"))

    parser = Parser(prog="dd-proxy", add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    parser.add_argument("--config")
    for option in OPTIONS:
        if isinstance(option.kind, Flag):
            parser.add_argument(f"--{option.name}", action="store_true")
        else:
            action = "append" if option.repeatable else "store"
            parser.add_argument(f"--{option.name}", action=action, type=option.kind.from_text)
    known, unknown = parser.parse_known_args(list(arguments))
    if unknown:
        raise UsageError(_unknown(unknown))
    return vars(known)


def _unknown(words: Sequence[str]) -> str:
    """Return the line for words that belong to no option; never the value of one, which may be a secret."""
    for word in words:
        name = word.partition("=")[0]
        if name.startswith("-"):
            known = ["--config", *(f"--{option.name}" for option in OPTIONS)]
            return f"unknown option {show(name)}, the nearest is {nearest(name, known)}; see --help"
    return f"unexpected argument {show(words[0])}; see --help"


def _help() -> ModuleType:
    from proxy import help as texts

    return texts


def _say(text: str) -> int:
    """Print a line for whoever asked; returns the exit code, 1 when it cannot be written."""
    try:
        print(text, flush=True)
    except OSError:
        _give_up_output()
        return 1
    return 0


def _printing(run: Callable[[list[str]], int], arguments: Sequence[str]) -> int:
    """Run what prints; returns its exit code, 1 when its lines cannot be written."""
    try:
        try:
            return run(list(arguments))
        finally:
            sys.stdout.flush()
    except OSError:
        _give_up_output()
        return 1


def _give_up_output() -> None:
    """The reader has left or the disk is full; without this the interpreter's last flush would complain again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _complain(line: str) -> None:
    """Print one line on standard error: one, whatever the words from outside hold."""
    shown = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in line)
    with suppress(OSError):
        print(shown, file=sys.stderr, flush=True)


def _reserve_standard_descriptors() -> None:
    """Keep 0, 1 and 2 from becoming sockets when they were closed: what is meant for a terminal must reach nobody else.

    They are opened for reading, so that a write still fails and a lost log event is counted as such.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDONLY)  # takes the lowest free number, which is this one


if __name__ == "__main__":
    sys.exit(main())
