"""Where a run keeps its files: names, creation and discovery of run and attempt directories.

Owns paths and their modes (directories 0700, files 0600). Refuses to know what the files say.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_ATTEMPT = re.compile(r"attempt-([1-9]\d*)", re.ASCII)


class LayoutError(Exception):
    """A directory is not what a command needs, or cannot be made. The text is one line for a person."""


@dataclass(frozen=True, slots=True)
class AttemptDir:
    """The paths of one attempt. `path` is absolute; nothing here touches the disk but `create` and `following`."""

    path: Path

    @property
    def number(self) -> int:
        """Tell which attempt of its run this is, from 1."""
        match = _ATTEMPT.fullmatch(self.path.name)
        if match is None:
            raise LayoutError(f"{self.path} is not an attempt directory: its name is not attempt-N")
        return int(match[1])

    @property
    def run_dir(self) -> Path:
        """Locate the run that this attempt belongs to."""
        return self.path.parent

    @property
    def run(self) -> str:
        """Name the run."""
        return self.path.parent.name

    @property
    def plan_json(self) -> Path:
        """Locate the resolved plan."""
        return self.path / "plan.json"

    @property
    def script(self) -> Path:
        """Locate the batch script."""
        return self.path / "script.sh"

    @property
    def attempt_json(self) -> Path:
        """Locate the attempt's state."""
        return self.path / "attempt.json"

    @property
    def readiness_json(self) -> Path:
        """Locate the readiness record."""
        return self.path / "readiness.json"

    @property
    def health_json(self) -> Path:
        """Locate the monitor's latest snapshot."""
        return self.path / "health.json"

    @property
    def winner_json(self) -> Path:
        """Locate the record that exists only after success."""
        return self.path / "winner.json"

    @property
    def report_json(self) -> Path:
        """Locate the final report."""
        return self.path / "report.json"

    @property
    def events(self) -> Path:
        """Locate the event log, one JSON object a line."""
        return self.path / "events.jsonl"

    @property
    def logs(self) -> Path:
        """Locate the directory of the steps' output."""
        return self.path / "logs"

    @property
    def steps(self) -> Path:
        """Locate the directory of the steps' identities."""
        return self.path / "steps"

    def step_json(self, name: str) -> Path:
        """Locate the identity of the step `name`."""
        return self.steps / f"{name}.json"

    def create(self) -> None:
        """Make the directories of this attempt. Raises LayoutError when it exists already or cannot be made."""
        try:
            for folder in (self.path, self.logs, self.steps):
                folder.mkdir(mode=0o700)
        except OSError as error:
            raise LayoutError(f"cannot create {self.path}: {error.strerror}") from None

    def following(self) -> AttemptDir:
        """Name the attempt after this one, in the same run."""
        return AttemptDir(self.run_dir / f"attempt-{self.number + 1}")


def new_run(state_dir: Path, name: str, now: datetime | None = None) -> AttemptDir:
    """Create a run directory with its first attempt, both private to the user, and return that attempt.

    The run's name is `name` and the UTC second; a second run within one second gets a counter. Raises LayoutError.
    """
    stamp = f"{name}-{(now or datetime.now(UTC)).astimezone(UTC):%Y%m%dT%H%M%SZ}"
    state_dir = Path(os.path.abspath(state_dir))
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        run_dir = _first_free(state_dir, stamp)
    except OSError as error:
        raise LayoutError(f"cannot create a run directory in {state_dir}: {error.strerror}") from None
    attempt = AttemptDir(run_dir / "attempt-1")
    attempt.create()
    return attempt


def _first_free(state_dir: Path, stamp: str) -> Path:
    counter = 1
    while True:
        run_dir = state_dir / (stamp if counter == 1 else f"{stamp}-{counter}")
        try:
            run_dir.mkdir(mode=0o700)  # exclusive: two submissions in one second cannot share a run
        except FileExistsError:
            counter += 1
        else:
            return run_dir


def find_attempts(directory: Path) -> list[AttemptDir]:
    """List the attempts of a run or attempt directory, oldest first. Raises LayoutError when it is neither."""
    directory = Path(os.path.abspath(directory))
    if _ATTEMPT.fullmatch(directory.name) and directory.is_dir():
        directory = directory.parent
    if not directory.is_dir():
        raise LayoutError(f"{directory}: no such run or attempt directory")
    found = [AttemptDir(child) for child in directory.iterdir() if _ATTEMPT.fullmatch(child.name) and child.is_dir()]
    if not found:
        raise LayoutError(f"{directory} holds no attempt: give a run directory or one of its attempt-N directories")
    return sorted(found, key=lambda attempt: attempt.number)


def write_private(path: Path, text: str) -> None:
    """Create a file that must not exist yet, mode 0600, and bring it to the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def read_json(path: Path) -> Mapping[str, Any] | None:
    """Read one state file: None when it is not there. Raises LayoutError when it holds no JSON object."""
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise LayoutError(f"{path} cannot be read: {error}") from None
    if not isinstance(data, dict):
        raise LayoutError(f"{path} does not hold a JSON object")
    return data
