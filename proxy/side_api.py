"""What the parts of the side port share: the endpoint as they see it, and a request and its reply as plain records.

Owns no behaviour. Refuses to know sockets and h11 (side_port.py) and what any path means (admin.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import orjson

from proxy.balancer import Fleet
from proxy.config import BackendUrl, Config
from proxy.counters import Counters
from proxy.recent import RecentRequests
from proxy.upstream import Backend

JSON = "application/json"


class DropCount(Protocol):
    """The access log: how many events could not be written."""

    @property
    def dropped(self) -> int: ...


class MemoCount(Protocol):
    """A memo of message heads: how often it knew one, and how many it holds."""

    @property
    def hits(self) -> int: ...
    @property
    def misses(self) -> int: ...
    @property
    def size(self) -> int: ...


class Endpoint(Protocol):
    """The running endpoint: its state to be shown, and the changes that people may ask for."""

    @property
    def config(self) -> Config: ...
    @property
    def fleet(self) -> Fleet: ...
    @property
    def counters(self) -> Counters: ...
    @property
    def draining(self) -> bool: ...
    @property
    def log(self) -> DropCount: ...
    @property
    def started_at(self) -> float: ...
    @property
    def recent(self) -> RecentRequests: ...
    @property
    def memo_requests(self) -> MemoCount: ...
    @property
    def memo_responses(self) -> MemoCount: ...

    def active_requests(self) -> int:
        """Count the client requests that are being served."""

    def add_backend(self, url: BackendUrl, required: bool) -> tuple[Backend, bool]:
        """Add a backend, or change `required` of a known one; True when it is new.

        Raises ValueError when its host and port are a backend under another scheme.
        """

    def drain_backend(self, backend: Backend) -> None:
        """Take a backend out of selection; its active responses go on."""

    def resume_backend(self, backend: Backend) -> None:
        """Let a draining backend re-enter selection."""

    def remove_backend(self, backend: Backend, timeout_s: float) -> None:
        """Drain a backend and remove it after at most `timeout_s`; returns at once."""


@dataclass(frozen=True, slots=True)
class Request:
    """One whole request to the side port; field names in lower case, of a repeated field the last value."""

    method: str
    target: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Reply:
    """One whole answer of the side port."""

    status: int
    body: bytes
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()


def json_reply(status: int, value: object, headers: tuple[tuple[str, str], ...] = ()) -> Reply:
    """Make an answer whose body is `value` as one line of JSON."""
    return Reply(status, orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE), headers=headers)


def error_reply(status: int, message: str, headers: tuple[tuple[str, str], ...] = ()) -> Reply:
    """Make an error in the shape of the client port's errors."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return json_reply(status, {"error": {"message": message, "type": kind, "code": status}}, headers)
