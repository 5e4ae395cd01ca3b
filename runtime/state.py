"""What an attempt leaves on disk: its records, the moves they may make, and the one writer.

Owns the schemas of attempt, readiness, health and winner files, the two transition tables and the atomic write. Refuses
to know Slurm, processes and why a state changes (verdict and controller do).

    attempt    created ─> submitted ─> running ─> succeeded | failed | cancelled    (terminal states never change)
    readiness  pending ─> starting ─> ready ─> stopped | failed                     (failed keeps its health failure)
"""

from __future__ import annotations

import enum
import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from runtime.codec import DecodeError, Record, decode, encode

SCHEMA_VERSION = 1

ATTEMPT_FILE = "attempt.json"
READINESS_FILE = "readiness.json"
HEALTH_FILE = "health.json"
SERVICES_FILE = "services.json"


class StateError(Exception):
    """A state file that cannot be read or does not hold what it should. The text says which and why."""


class IllegalMove(Exception):
    """A state change that the transition table does not allow."""


class AttemptState(enum.StrEnum):
    """Where an attempt is in its life."""

    CREATED = "created"
    SUBMITTED = "submitted"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        """Tell whether this state never changes again."""
        return not ATTEMPT_MOVES[self]


class ReadinessState(enum.StrEnum):
    """Whether clients may use the endpoints."""

    PENDING = "pending"
    STARTING = "starting"
    READY = "ready"
    STOPPED = "stopped"
    FAILED = "failed"


class Classification(enum.StrEnum):
    """Why an attempt ended."""

    SUCCEEDED = "succeeded"
    CLIENT_FAILED = "client_failed"
    STARTUP_FAILED = "startup_failed"
    SERVICE_LOST = "service_lost"
    OUTPUT_MISMATCH = "output_mismatch"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    PREEMPTED = "preempted"
    NODE_LOST = "node_lost"
    INTERNAL_ERROR = "internal_error"

    @property
    def state(self) -> AttemptState:
        """Give the terminal state that this classification belongs to."""
        if self is Classification.SUCCEEDED:
            return AttemptState.SUCCEEDED
        return AttemptState.CANCELLED if self is Classification.CANCELLED else AttemptState.FAILED


_ENDS = frozenset({AttemptState.FAILED, AttemptState.CANCELLED})
ATTEMPT_MOVES: Mapping[AttemptState, frozenset[AttemptState]] = {
    AttemptState.CREATED: _ENDS | {AttemptState.SUBMITTED, AttemptState.RUNNING},
    AttemptState.SUBMITTED: _ENDS | {AttemptState.RUNNING},
    AttemptState.RUNNING: _ENDS | {AttemptState.SUCCEEDED},
    AttemptState.SUCCEEDED: frozenset(),
    AttemptState.FAILED: frozenset(),
    AttemptState.CANCELLED: frozenset(),
}
# A state that still changes its counts may be written again. Only what was ready can be lost: a service that dies
# before that is a failed start, which stops.
READINESS_MOVES: Mapping[ReadinessState, frozenset[ReadinessState]] = {
    ReadinessState.PENDING: frozenset({ReadinessState.STARTING, ReadinessState.STOPPED}),
    ReadinessState.STARTING: frozenset({ReadinessState.STARTING, ReadinessState.READY, ReadinessState.STOPPED}),
    ReadinessState.READY: frozenset({ReadinessState.READY, ReadinessState.STOPPED, ReadinessState.FAILED}),
    ReadinessState.STOPPED: frozenset(),
    ReadinessState.FAILED: frozenset({ReadinessState.FAILED}),
}
TERMINAL_READINESS = frozenset({ReadinessState.STOPPED, ReadinessState.FAILED})


@dataclass(frozen=True, slots=True)
class JobRef:
    """The Slurm job of an attempt. `restart_count` is Slurm's: 0 at first, one more with each requeue."""

    id: str
    restart_count: int


@dataclass(frozen=True, slots=True)
class ControllerRef:
    """The process that owns the attempt."""

    host: str
    pid: int


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """attempt.json. Times are UTC in ISO 8601 with a Z."""

    run: str
    attempt: int
    job: JobRef | None
    state: AttemptState
    created_at: str
    updated_at: str
    classification: Classification | None = None
    reason: str | None = None
    controller: ControllerRef | None = None
    schema_version: int = SCHEMA_VERSION

    def move(self, state: AttemptState, **changes: Any) -> AttemptRecord:
        """Give the record in its next state, with `changes` and a new time. Raises IllegalMove."""
        if state not in ATTEMPT_MOVES[self.state]:
            raise IllegalMove(f"attempt {self.attempt} of {self.run} is {self.state} and cannot become {state}")
        return replace(self, state=state, updated_at=utc_now(), **changes)

    def end(self, classification: Classification, reason: str | None) -> AttemptRecord:
        """Give the record in the terminal state of `classification`. Raises IllegalMove when it has ended already."""
        return self.move(classification.state, classification=classification, reason=reason)


@dataclass(frozen=True, slots=True)
class HealthFailure:
    """The first loss of a required service. `backend` is host:port; both names are None when the monitor was lost."""

    observed_at: str
    deployment: str | None
    backend: str | None
    source: str
    reason: str


@dataclass(frozen=True, slots=True)
class DeploymentReadiness:
    """One deployment in readiness.json. `endpoint` is its URL, `metrics` the host:port of its side port."""

    name: str
    state: ReadinessState
    expected_backends: int
    ready_backends: int
    endpoint: str | None = None
    metrics: str | None = None


@dataclass(frozen=True, slots=True)
class ReadinessRecord:
    """readiness.json. A health failure once set stays, with state `failed`."""

    revision: int
    state: ReadinessState
    updated_at: str
    deployments: tuple[DeploymentReadiness, ...]
    health_failure: HealthFailure | None = None
    schema_version: int = SCHEMA_VERSION

    def move(
        self, state: ReadinessState, deployments: tuple[DeploymentReadiness, ...] | None = None
    ) -> ReadinessRecord:
        """Give the next revision. Raises IllegalMove; `failed` needs `fail`, so that it always has its evidence."""
        if state not in READINESS_MOVES[self.state] or (state == ReadinessState.FAILED and not self.health_failure):
            raise IllegalMove(f"readiness is {self.state} and cannot become {state}")
        return self._next(state, deployments, self.health_failure)

    def fail(self, failure: HealthFailure) -> ReadinessRecord:
        """Give the next revision with the loss recorded; a loss that is recorded already is kept instead."""
        if ReadinessState.FAILED not in READINESS_MOVES[self.state]:
            raise IllegalMove(f"readiness is {self.state} and cannot become {ReadinessState.FAILED}")
        marked = tuple(
            replace(one, state=ReadinessState.FAILED) if one.name == failure.deployment else one
            for one in self.deployments
        )
        return self._next(ReadinessState.FAILED, marked, self.health_failure or failure)

    def stop(self) -> ReadinessRecord:
        """Give the next revision with every deployment stopped; this one when it has stopped or failed already."""
        if self.state in TERMINAL_READINESS:
            return self
        stopped = ReadinessState.STOPPED
        return self.move(stopped, tuple(replace(one, state=stopped) for one in self.deployments))

    def _next(
        self,
        state: ReadinessState,
        deployments: tuple[DeploymentReadiness, ...] | None,
        failure: HealthFailure | None,
    ) -> ReadinessRecord:
        return ReadinessRecord(
            revision=self.revision + 1,
            state=state,
            updated_at=utc_now(),
            deployments=self.deployments if deployments is None else deployments,
            health_failure=failure,
        )


@dataclass(frozen=True, slots=True)
class DeploymentHealth:
    """One deployment in health.json: how many of its replicas answered their last probe."""

    name: str
    expected: int
    healthy: int


@dataclass(frozen=True, slots=True)
class HealthRecord:
    """health.json, the monitor's snapshot. `failure` once set stays; `final` marks the last one of an orderly stop."""

    sequence: int
    observed_at: str
    deployments: tuple[DeploymentHealth, ...]
    failure: HealthFailure | None = None
    final: bool = False
    schema_version: int = SCHEMA_VERSION

    @property
    def good(self) -> bool:
        """Tell whether every replica answered and nothing was ever lost."""
        return self.failure is None and all(one.healthy == one.expected for one in self.deployments)


@dataclass(frozen=True, slots=True)
class OutputRecord:
    """One output of the client as it was found: path relative to the attempt directory, lines, SHA-256, bytes."""

    path: str
    records: int
    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True)
class WinnerRecord:
    """winner.json: exists only in an attempt that succeeded."""

    run: str
    attempt: int
    outputs: tuple[OutputRecord, ...]
    published_at: str
    schema_version: int = SCHEMA_VERSION


def utc_now() -> str:
    """Give the time as the state files write it: UTC, milliseconds, Z."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def new_attempt(run: str, attempt: int, job: JobRef | None) -> AttemptRecord:
    """Give the record of an attempt that only its directory exists of."""
    now = utc_now()
    return AttemptRecord(run=run, attempt=attempt, job=job, state=AttemptState.CREATED, created_at=now, updated_at=now)


def new_readiness(expected: Mapping[str, int]) -> ReadinessRecord:
    """Give revision 1 of the readiness of deployments, each with its number of replicas."""
    pending = ReadinessState.PENDING
    deployments = tuple(DeploymentReadiness(name, pending, count, 0) for name, count in expected.items())
    return ReadinessRecord(revision=1, state=pending, updated_at=utc_now(), deployments=deployments)


def write_json(path: Path, value: Any, *, once: bool = False) -> None:
    """Write a record or JSON value whole: to a temporary name, fsynced, then put in place; mode 0600.

    A reader sees the old file or the new one, also after a crash. With `once` an existing file is kept and
    FileExistsError raised. Raises OSError when it cannot be written; then the old file is untouched.
    """
    data = (json.dumps(encode(value), ensure_ascii=False) + "\n").encode()
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if once:
            _link(temporary, path)
        else:
            os.replace(temporary, path)
    except BaseException:  # interrupted as well: no half-written file stays beside the record
        os.unlink(temporary)
        raise
    if once:  # it is published, whatever fails now
        with suppress(OSError):
            os.unlink(temporary)
            _bring_to_disk(path.parent)
    else:
        _bring_to_disk(path.parent)


def _link(temporary: str, path: Path) -> None:
    try:
        os.link(temporary, path)
    except FileExistsError:
        if os.stat(temporary).st_nlink < 2:  # else NFS lost the answer, and the call that was repeated met its own link
            raise


def _bring_to_disk(folder: Path) -> None:
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def read_record(path: Path, kind: type[Record]) -> Record | None:
    """Read one state file; None when it does not exist. Raises StateError for a file that is not what it should be."""
    try:
        data = json.loads(path.read_bytes())
        if isinstance(data, dict) and data.get("schema_version", SCHEMA_VERSION) != SCHEMA_VERSION:
            raise StateError(f"{path}: schema_version {data['schema_version']!r} is not {SCHEMA_VERSION}")
        return decode(kind, data)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(f"{path}: cannot be read: {error.strerror}") from None
    except DecodeError as error:
        raise StateError(f"{path}: {error}") from None
    except ValueError as error:
        raise StateError(f"{path}: not JSON: {error}") from None


def read_attempt(directory: Path) -> AttemptRecord | None:
    """Read attempt.json of an attempt directory. Raises StateError."""
    return read_record(directory / ATTEMPT_FILE, AttemptRecord)


def read_readiness(directory: Path) -> ReadinessRecord | None:
    """Read readiness.json of an attempt directory. Raises StateError."""
    return read_record(directory / READINESS_FILE, ReadinessRecord)


def read_health(directory: Path) -> HealthRecord | None:
    """Read health.json of an attempt directory. Raises StateError."""
    return read_record(directory / HEALTH_FILE, HealthRecord)
