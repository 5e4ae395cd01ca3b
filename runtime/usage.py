"""Command lines of the lifecycle's subcommands: one-line errors, descriptions that keep their line breaks."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn


class UsageError(Exception):
    """A command line that cannot be obeyed; the text is the one line for whoever typed it."""


class Parser(argparse.ArgumentParser):
    """A parser that raises UsageError instead of printing its usage and exiting."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def error(self, message: str) -> NoReturn:
        """Raise UsageError with the one line."""
        raise UsageError(f"{self.prog}: {message}; see {self.prog} --help")
