"""The event log of an attempt: one JSON object a line, for people and tests who ask what happened when.

Owns the file and its form. Refuses to know what the events mean; no value from an environment or a header ever gets
here.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from runtime.state import utc_now

EventValue = str | int | float | bool | None


class EventLog:
    """Appends events to one file, mode 0600. A full disk costs events, never the attempt."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._warned = False

    def add(self, event: str, step: str | None = None, **fields: EventValue) -> None:
        """Append one event, with the step it is about."""
        line: dict[str, EventValue] = {"ts": utc_now(), "event": event}
        if step is not None:
            line["step"] = step
        line.update(fields)
        try:
            os.write(self._descriptor, (json.dumps(line) + "\n").encode())
        except OSError as error:
            if not self._warned:
                self._warned = True
                print(f"dd-proxy run: {self._path}: events are lost: {error.strerror}", file=sys.stderr)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)
