"""Kinds of values in a plan, beside those that `serve` options share (proxy.kinds).

Owns what one value may be, in words for a person: a kind turns a TOML value into what the plan keeps or raises
ValueError with the reason. Pure; knows no key by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from proxy.kinds import show
from runtime.plan import EnvValue, FromEnv
from runtime.units import parse_duration, parse_memory

_NAME = re.compile(r"[a-z0-9-]+", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

# What the rendered script or `submit` sets itself; a second value would break the lifecycle or silently win.
_RESERVED_SBATCH: Mapping[str, str] = {
    "job-name": "use job.name",
    "J": "use job.name",
    "nodes": "use job.nodes",
    "N": "use job.nodes",
    "time": "use job.time",
    "t": "use job.time",
    "time-min": "use job.time",
    "mem": "use job.mem_per_node",
    "cpus-per-task": "use job.cpus_per_node",
    "c": "use job.cpus_per_node",
    "gpus": "use job.gpus_per_node",
    "G": "use job.gpus_per_node",
    "gpus-per-node": "use job.gpus_per_node",
    "gpus-per-task": "use job.gpus_per_node",
    "signal": "the drain budget sets it",
    "output": "the run directory holds the batch output",
    "o": "the run directory holds the batch output",
    "error": "the run directory holds the batch output",
    "e": "the run directory holds the batch output",
    "open-mode": "attempts append to one batch output",
    "ntasks": "one run is one batch process",
    "n": "one run is one batch process",
    "ntasks-per-node": "one run is one batch process",
    "array": "one run is one job",
    "a": "one run is one job",
    "wrap": "the script is rendered",
    "parsable": "submit prints the job id",
    "test-only": "use dd-proxy check",
    "export": "the steps need the environment that submit was called with",
    "export-file": "the steps need the environment that submit was called with",
}


@dataclass(frozen=True, slots=True)
class Text:
    """A line of text, not empty, without control characters."""

    def convert(self, value: object) -> str:
        """Return the text."""
        if not isinstance(value, str):
            raise ValueError(f"{show(value)} is not text in quotes")
        if not value or _CONTROL.search(value):
            raise ValueError(f"{show(value)} must be one line, not empty and without control characters")
        return value


@dataclass(frozen=True, slots=True)
class Name:
    """A name of lower-case letters, digits and hyphens, as it stands in step, file and job names."""

    def convert(self, value: object) -> str:
        """Return the name."""
        if not isinstance(value, str) or not _NAME.fullmatch(value):
            raise ValueError(f"{show(value)} is not a name of lower-case letters, digits and hyphens")
        return value


@dataclass(frozen=True, slots=True)
class Duration:
    """A duration in quotes, kept in seconds; zero only where `zero` allows it."""

    zero: bool = False

    def convert(self, value: object) -> float:
        """Return the seconds."""
        if not isinstance(value, str):
            raise ValueError(f'{show(value)} is not a duration in quotes, such as "30s", "15m" or "02:00:00"')
        seconds = parse_duration(value)
        if seconds == 0 and not self.zero:
            raise ValueError(f"{show(value)} is out of range: it must be more than 0")
        return seconds


@dataclass(frozen=True, slots=True)
class Memory:
    """A size of memory in quotes, kept in bytes."""

    def convert(self, value: object) -> int:
        """Return the bytes."""
        if not isinstance(value, str):
            raise ValueError(f'{show(value)} is not a size in quotes, such as "512MiB" or "40GiB"')
        return parse_memory(value)


@dataclass(frozen=True, slots=True)
class Command:
    """An argument vector: the program first."""

    def convert(self, value: object) -> tuple[str, ...]:
        """Return the arguments."""
        if not isinstance(value, list):
            raise ValueError(f'{show(value)} is not a list of arguments; write ["program", "--option", "value"]')
        for item in value:
            if not isinstance(item, str) or "\0" in item:
                raise ValueError(f"{show(item)} is not an argument in quotes")
        if not value or not value[0]:
            raise ValueError("names no program")
        return tuple(value)


@dataclass(frozen=True, slots=True)
class SbatchOptions:
    """Further sbatch options, one argv item each, none of which the plan or the lifecycle sets itself."""

    def convert(self, value: object) -> tuple[str, ...]:
        """Return the options."""
        if not isinstance(value, list):
            raise ValueError(f'{show(value)} is not a list of options; write ["--exclusive"]')
        for item in value:
            if not isinstance(item, str) or not item.startswith("-") or _CONTROL.search(item):
                raise ValueError(f'{show(item)} is not an option in one item, such as "--comment=nightly"')
            name = item.split("=")[0].lstrip("-") if item.startswith("--") else item[1:2]
            if name in _RESERVED_SBATCH:
                raise ValueError(f"{show(item)} cannot be given here: {_RESERVED_SBATCH[name]}")
        return tuple(value)


@dataclass(frozen=True, slots=True)
class Env:
    """Environment variables: text, or `{ from_env = "NAME" }`. Reasons never show a value: it may be a secret."""

    def convert(self, value: object) -> dict[str, EnvValue]:
        """Return the values and references by name."""
        if not isinstance(value, dict):
            raise ValueError('is not a table; write { KEY = "value", SECRET = { from_env = "SECRET" } }')
        return {self._variable(key): self._value(key, item) for key, item in value.items()}

    @staticmethod
    def _variable(name: str) -> str:
        if not _VARIABLE.fullmatch(name):
            raise ValueError(f"{show(name)} is not the name of an environment variable")
        return name

    @classmethod
    def _value(cls, key: str, value: object) -> EnvValue:
        if isinstance(value, str):
            if "\0" in value:
                raise ValueError(f"the value of {key} holds a NUL byte")
            return value
        if isinstance(value, dict) and list(value) == ["from_env"] and isinstance(value["from_env"], str):
            return FromEnv(cls._variable(value["from_env"]))
        raise ValueError(f'the value of {key} is neither text in quotes nor {{ from_env = "NAME" }}')


@dataclass(frozen=True, slots=True)
class OutputPath:
    """A path that stays within the attempt directory."""

    def convert(self, value: object) -> str:
        """Return the path without detours."""
        path = PurePosixPath(Text().convert(value))
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise ValueError(f"{show(value)} must name a file below the attempt directory")
        return str(path)
