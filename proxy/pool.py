"""Books of idle upstream connections, kept apart from active leases (those are balancer.Fleet's).

Decides and returns what is to be closed; closing is the caller's. Knows no sockets and no HTTP: a connection is
anything with a `backend`. Time is a number given by the caller.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from proxy.upstream import Backend


class Poolable(Protocol):
    """What the pool needs to know of a connection."""

    backend: Backend


Conn = TypeVar("Conn", bound=Poolable)


class Pool(Generic[Conn]):
    """Idle connections: at most `max_idle` in the whole process, each for at most `idle_timeout_s` seconds.

    The most recently used connection of a backend is taken first, the least recently used of all is closed first.
    """

    __slots__ = ("_idle", "_idle_timeout_s", "_max_idle")

    def __init__(self, max_idle: int, idle_timeout_s: float) -> None:
        self._max_idle = max_idle
        self._idle_timeout_s = idle_timeout_s
        self._idle: dict[Conn, float] = {}  # since when, oldest first

    def __len__(self) -> int:
        return len(self._idle)

    def __contains__(self, connection: object) -> bool:
        return connection in self._idle

    def __repr__(self) -> str:
        return f"<Pool {len(self._idle)}/{self._max_idle} idle>"

    def take(self, backend: Backend) -> Conn | None:
        """Take the most recently used idle connection of a backend out of the pool, or None."""
        if not backend.idle:
            return None
        connection: Conn = backend.idle.pop()
        del self._idle[connection]
        return connection

    def give(self, connection: Conn, now: float) -> Conn | None:
        """Put a reusable connection in; returns the connection that has to be closed for it, perhaps itself."""
        if self._max_idle <= 0:
            return connection
        connection.backend.idle.append(connection)
        self._idle[connection] = now
        if len(self._idle) <= self._max_idle:
            return None
        oldest = next(iter(self._idle))
        self.drop(oldest)
        return oldest

    def drop(self, connection: Conn) -> bool:
        """Take a connection out of the books; False when it was not idle."""
        if self._idle.pop(connection, None) is None:
            return False
        connection.backend.idle.remove(connection)
        return True

    def drop_backend(self, backend: Backend) -> list[Conn]:
        """Take all idle connections of a backend out of the books, to be closed."""
        connections: list[Conn] = list(backend.idle)
        for connection in connections:
            self.drop(connection)
        return connections

    def drop_expired(self, now: float) -> list[Conn]:
        """Take the connections out that have been idle for the timeout, to be closed."""
        expired = []
        for connection, since in self._idle.items():
            if now - since < self._idle_timeout_s:
                break
            expired.append(connection)
        for connection in expired:
            self.drop(connection)
        return expired
