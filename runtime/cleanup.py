"""The order in which an attempt is taken down, as data.

Owns the order and its reasons. Refuses to know how an act is done (teardown does it).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from runtime.state import Classification


class Act(enum.StrEnum):
    """One act of the cleanup. Each is bounded in time and harmless when there is nothing to do."""

    TERM_CLIENT = "term_client"
    STOP_MONITOR = "stop_monitor"
    DRAIN_ENDPOINTS = "drain_endpoints"
    AWAIT_ENDPOINTS = "await_endpoints"
    FORCE_ENDPOINTS = "force_endpoints"
    STOP_REST = "stop_rest"
    READ_HEALTH = "read_health"


# Launchers and replicas outlive every endpoint (AWAIT before STOP_REST), so that active responses can end complete.
# The monitor stops first of all services: what is taken down in order must not look like a loss.
_FROM_DRAIN = (Act.AWAIT_ENDPOINTS, Act.FORCE_ENDPOINTS, Act.STOP_REST, Act.READ_HEALTH)
CLIENT_FIRST = (Act.TERM_CLIENT, Act.STOP_MONITOR, Act.DRAIN_ENDPOINTS, *_FROM_DRAIN)
CLIENT_WITH_DRAIN = (Act.STOP_MONITOR, Act.DRAIN_ENDPOINTS, Act.TERM_CLIENT, *_FROM_DRAIN)
NO_CLIENT = (Act.STOP_MONITOR, Act.DRAIN_ENDPOINTS, *_FROM_DRAIN)

CLEANUP_ORDER: Mapping[Classification | None, tuple[Act, ...]] = {
    # The client's output no longer counts: it stops producing at once.
    Classification.SERVICE_LOST: CLIENT_FIRST,
    Classification.INTERNAL_ERROR: CLIENT_FIRST,
    # The client's open streams may finish: it is told to stop when the endpoints are.
    Classification.CANCELLED: CLIENT_WITH_DRAIN,
    Classification.TIMED_OUT: CLIENT_WITH_DRAIN,
    Classification.PREEMPTED: CLIENT_WITH_DRAIN,
    Classification.NODE_LOST: CLIENT_WITH_DRAIN,
    # The client has ended, or never started. None: it exited 0 and the verdict is still open.
    None: NO_CLIENT,
    Classification.CLIENT_FAILED: NO_CLIENT,
    Classification.STARTUP_FAILED: NO_CLIENT,
}
