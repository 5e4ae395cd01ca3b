"""A body in a file goes to the backend piece by piece, with room for others, and for nobody once nobody takes it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from proxy.body import PIECE_BYTES, RequestBody, SpoolError
from proxy.connector import UpstreamConnection
from proxy.request import TURN_BYTES, SpooledSender
from tests.unit.memory import Loop


class Sending:
    """A sender, and a connection that takes everything."""

    def __init__(self, folder: Path, size: int) -> None:
        self.loop = Loop()
        self.taken = 0
        self.closing = False
        self.failures: list[SpoolError] = []
        self.body = RequestBody(0, str(folder))
        self.body.append(b"x" * size)
        transport = SimpleNamespace(is_closing=lambda: self.closing)
        self.connection = SimpleNamespace(paused=False, transport=transport, queue=self.queue)
        loop: asyncio.AbstractEventLoop = self.loop.as_asyncio()
        self.sender = SpooledSender(cast(UpstreamConnection, self.connection), self.body, loop, self.failures.append)

    def queue(self, piece: bytes) -> None:
        self.taken += len(piece)


def test_others_have_their_turn_while_a_fast_backend_takes_a_large_body(tmp_path: Path) -> None:
    sending = Sending(tmp_path, 3 * TURN_BYTES + 1)
    sending.sender.go_on()
    assert sending.taken == TURN_BYTES
    sending.sender.go_on()  # a turn is due anyway
    assert sending.taken == TURN_BYTES
    sending.loop.run()
    assert sending.taken == 3 * TURN_BYTES + 1
    assert sending.sender.done


def test_a_connection_that_takes_no_more_is_waited_for(tmp_path: Path) -> None:
    sending = Sending(tmp_path, 2 * TURN_BYTES)
    sending.connection.paused = True
    sending.sender.go_on()
    sending.loop.run()
    assert sending.taken == 0
    sending.connection.paused = False
    sending.sender.go_on()
    sending.loop.run()
    assert sending.sender.done


def test_nothing_is_read_for_a_connection_that_is_lost_or_not_wanted_any_more(tmp_path: Path) -> None:
    sending = Sending(tmp_path, 3 * TURN_BYTES)
    sending.sender.go_on()
    sending.closing = True
    sending.loop.run()
    assert sending.taken == TURN_BYTES
    sending = Sending(tmp_path, 3 * TURN_BYTES)
    sending.sender.go_on()
    sending.sender.stop()
    sending.body.close()
    sending.loop.run()
    assert (sending.taken, sending.failures) == (TURN_BYTES, [])


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    sending = Sending(tmp_path, PIECE_BYTES)
    sending.body.close()
    sending.sender.go_on()
    sending.loop.run()
    assert len(sending.failures) == 1
    assert not sending.sender.done
