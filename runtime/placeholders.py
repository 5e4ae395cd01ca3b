"""Placeholders in a command: `{identifier}` and `{endpoint.NAME}`, and `{{…}}` for a literal one.

Owns the grammar and the substitution. Pure: refuses to know what a command is for. Every other brace, as in JSON
arguments, stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

REPLICA_NAMES = ("host", "port", "index", "attempt_dir")
CLIENT_NAMES = ("attempt_dir",)
ENDPOINT_PREFIX = "endpoint."

_NAME = r"(?:endpoint\.[A-Za-z0-9_-]+|[A-Za-z_][A-Za-z0-9_]*)"
_TOKEN = re.compile(rf"\{{\{{(?P<literal>{_NAME})\}}\}}|\{{(?P<name>{_NAME})\}}", re.ASCII)


def placeholders(command: Sequence[str]) -> list[str]:
    """List the placeholder names in a command, in order, each once; escaped ones are none."""
    names = (match["name"] for argument in command for match in _TOKEN.finditer(argument))
    return list(dict.fromkeys(name for name in names if name is not None))


def substitute(command: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """Put `values` in place of the placeholders, and single braces in place of escaped ones.

    Values are put in as they are: braces inside them mean nothing. Raises KeyError for a name without a value.
    """

    def replacement(match: re.Match[str]) -> str:
        literal: str | None = match["literal"]
        return f"{{{literal}}}" if literal is not None else values[match["name"]]

    return [_TOKEN.sub(replacement, argument) for argument in command]
