"""Where the services of an attempt are: nodes, replicas, endpoints, as services.json hands them to the monitor.

Owns that record. Refuses to know how the services are started and whether they answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from runtime.layout import AttemptDir
from runtime.state import SCHEMA_VERSION, SERVICES_FILE, StateError, read_record


@dataclass(frozen=True, slots=True)
class Node:
    """One node of the allocation, in its order. `address` is what its services bind."""

    name: str
    address: str


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica: its step name, its node's name and the address it listens on."""

    name: str
    deployment: str
    node: str
    host: str
    port: int

    @property
    def authority(self) -> str:
        """Give host:port as a URL and the proxy's metrics write it."""
        return authority(self.host, self.port)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One endpoint on the head node: its step name, its URL for clients and the host:port of its side port."""

    name: str
    deployment: str
    url: str
    metrics: str


@dataclass(frozen=True, slots=True)
class Services:
    """services.json. Endpoints are there once they listen. `job` and `restart_count` say whose allocation it was."""

    nodes: tuple[Node, ...]
    replicas: tuple[Replica, ...]
    endpoints: tuple[Endpoint, ...] = ()
    job: str | None = None
    restart_count: int = 0
    schema_version: int = SCHEMA_VERSION

    def of(self, deployment: str) -> tuple[Replica, ...]:
        """List the replicas of one deployment, by index."""
        return tuple(one for one in self.replicas if one.deployment == deployment)

    def node(self, name: str) -> Node:
        """Find a node by its name. Raises KeyError."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)

    @property
    def head(self) -> Node:
        """Give the node where endpoints, monitor and client run."""
        return self.nodes[0]


def authority(host: str, port: int) -> str:
    """Write host:port; an IPv6 address gets its brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def services_path(attempt: AttemptDir) -> Path:
    """Locate services.json."""
    return attempt.path / SERVICES_FILE


def read_services(attempt: AttemptDir) -> Services:
    """Read services.json. Raises StateError, also when it is not there."""
    services = read_record(services_path(attempt), Services)
    if services is None:
        raise StateError(f"{services_path(attempt)}: not there; the controller writes it before it starts the monitor")
    return services
