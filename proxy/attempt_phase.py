"""The phases of one attempt, which relay.Attempt goes through and nobody else changes.

CONNECTING -> WAITING (for the head) -> HELD (head here, no body byte yet) -> STREAMING -> ENDED
                                     -> KEEPING (a retryable answer, read whole in case it is the last) -> ENDED
"""

from __future__ import annotations

from enum import Enum


class Phase(Enum):
    """Where an attempt is."""

    CONNECTING = "connecting"
    WAITING = "waiting"
    HELD = "held"
    KEEPING = "keeping"
    STREAMING = "streaming"
    ENDED = "ended"


# As globals: to look a member up in its class takes several times as long, and this is done ten times for a request.
CONNECTING, WAITING, HELD, KEEPING, STREAMING, ENDED = Phase
