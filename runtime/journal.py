"""The attempt's state as its controller keeps it: the only writer of attempt.json and readiness.json while it runs.

Owns the current records and writes each change whole. Refuses to know why things change. Illegal moves raise
IllegalMove before anything is written.
"""

from __future__ import annotations

from dataclasses import replace

from runtime.events import EventLog, EventValue
from runtime.layout import AttemptDir
from runtime.state import (
    AttemptRecord,
    AttemptState,
    Classification,
    ControllerRef,
    DeploymentReadiness,
    HealthFailure,
    JobRef,
    ReadinessRecord,
    ReadinessState,
    StateError,
    read_attempt,
    write_json,
)


class Journal:
    """Keeps and writes one attempt's records and events."""

    def __init__(self, directory: AttemptDir, attempt: AttemptRecord, readiness: ReadinessRecord) -> None:
        self.directory = directory
        self.attempt = attempt
        self.readiness = readiness
        self._unsaved = False  # what is known and could not be written
        self._events = EventLog(directory.events)

    def __repr__(self) -> str:
        return f"<Journal {self.directory.path} {self.attempt.state} {self.readiness.state} r{self.readiness.revision}>"

    def event(self, event: str, step: str | None = None, **fields: EventValue) -> None:
        """Append one event."""
        self._events.add(event, step, **fields)

    def run(self, controller: ControllerRef, job: JobRef | None) -> None:
        """Record that this controller runs the attempt. Raises StateError when somebody has closed it meanwhile."""
        if self.closed_elsewhere() is not None:
            raise StateError(f"{self.directory.path} was closed before it began")
        attempt = self.attempt.move(AttemptState.RUNNING, controller=controller, job=job)
        readiness = self.readiness.move(ReadinessState.STARTING)
        self._save_attempt(attempt)
        self._save_readiness(readiness)

    def deployment(self, name: str, **changes: object) -> None:
        """Change fields of one deployment in readiness.json; nothing is written when nothing changes."""
        found = next(one for one in self.readiness.deployments if one.name == name)
        changed = replace(found, **changes)  # type: ignore[arg-type]  # field names are those of the record
        if changed != found:
            self._save_readiness(self.readiness.move(self.readiness.state, self._with(changed)))

    def ready(self) -> None:
        """Record that clients may use the endpoints."""
        self._save_readiness(self.readiness.move(ReadinessState.READY, self._all(ReadinessState.READY)))

    def lose(self, failure: HealthFailure) -> None:
        """Record a loss; the first one stays. It is known from now on, also where it cannot be written (OSError)."""
        self.readiness = self.readiness.fail(failure)
        self._unsaved = True
        self.event("health_failure", source=failure.source, backend=failure.backend, reason=failure.reason)
        self._save_readiness(self.readiness)

    def stop_readiness(self) -> None:
        """Record that the endpoints are gone; a loss stays a loss."""
        stopped = self.readiness.stop()
        if stopped is not self.readiness or self._unsaved:
            self._save_readiness(stopped)

    def closed_elsewhere(self) -> AttemptRecord | None:
        """Read how somebody closed this attempt who took its controller for gone; None when nobody did.

        Slurm gives a node up that it cannot reach, although what runs there lives on.
        """
        try:
            record = read_attempt(self.directory.path)
        except StateError:
            return None
        return record if record is not None and record.state.terminal else None

    def end(self, classification: Classification, reason: str | None) -> None:
        """Record how the attempt ended."""
        self._save_attempt(self.attempt.end(classification, reason))

    def close(self) -> None:
        """Close the event log."""
        self._events.close()

    def _with(self, changed: DeploymentReadiness) -> tuple[DeploymentReadiness, ...]:
        return tuple(changed if one.name == changed.name else one for one in self.readiness.deployments)

    def _all(self, state: ReadinessState) -> tuple[DeploymentReadiness, ...]:
        return tuple(replace(one, state=state) for one in self.readiness.deployments)

    def _save_attempt(self, record: AttemptRecord) -> None:
        write_json(self.directory.attempt_json, record)
        self.attempt = record

    def _save_readiness(self, record: ReadinessRecord) -> None:
        write_json(self.directory.readiness_json, record)
        self.readiness = record
        self._unsaved = False
