"""Each client gets the answers to its own requests, in their order, whatever is retried, reused and cut meanwhile.

Replicas echo the target of the request that they were sent. `DD_LONG=1` walks a hundred times as often.
"""

from __future__ import annotations

import os
import random
import re

import pytest

from tests.unit.kit import Rig, chunked, complete_responses, cut, request, rig
from tests.unit.memory import Client, Replica

WALKS = 10_000 if os.environ.get("DD_LONG") == "1" else 100
_LENGTH = re.compile(rb"\r\nContent-Length: (\d+)\r\n")


class Walk:
    """Clients that ask one after the other or in pipelines, and replicas that answer, refuse, cut and leave."""

    def __init__(self, r: Rig, chance: random.Random) -> None:
        self.rig = r
        self.chance = chance
        self.asked: dict[Client, list[bytes]] = {r.client(): [] for _ in range(4)}
        self.unsent: dict[Client, bytes] = {}
        self.read: dict[Replica, bytes] = {}
        self.to_send: dict[Replica, list[bytes]] = {}
        self.number = 0

    def ask(self) -> None:
        client = self.chance.choice(list(self.asked))
        data = self.unsent.pop(client, b"")
        if not data:
            self.number += 1
            target = b"/%d" % self.number
            self.asked[client].append(target)
            method, body = self.chance.choice([(b"GET", b""), (b"POST", target * self.chance.choice([1, 100]))])
            data = request(body, method=method, target=target)
        at = self.chance.choice([len(data), len(data), len(data) // 2])
        if data[at:]:
            self.unsent[client] = data[at:]
        client.send(data[:at])

    def connect(self) -> None:
        dials = [d for d in self.rig.loop.dials if d.open]
        if dials:
            dial = self.chance.choice(dials)
            if self.chance.random() < 0.1:
                dial.refuse()
            else:
                self.rig.keep(dial.accept())

    def answer(self, *, kindly: bool = False) -> bool:
        """Let one replica take a step; False when none has anything to do."""
        busy = [r for r in self.rig.replicas if not r.is_gone() and self.due(r)]
        if not busy:
            return False
        replica = self.chance.choice(busy)
        if not kindly and self.chance.random() < 0.08:
            # An end of file would make an answer without length look complete.
            if self.chance.random() < 0.5 and self.to_send[replica][-1]:
                replica.eof()
            else:
                replica.reset()
            return True
        pieces = self.to_send[replica]
        if pieces[0] == b"":
            replica.eof()
        else:
            replica.send(pieces.pop(0))
        return True

    def due(self, replica: Replica) -> bool:
        """Read what came, and lay out the answer to a request that is whole."""
        self.read[replica] = self.read.get(replica, b"") + replica.received()
        head, found, rest = self.read[replica].partition(b"\r\n\r\n")
        if found and not self.to_send.get(replica):
            length = _LENGTH.search(head + b"\r\n")
            size = int(length[1]) if length else 0
            if len(rest) >= size:
                target = head.split(b" ")[1]
                assert rest[:size] == target * (size // len(target))
                self.read[replica] = rest[size:]
                self.to_send[replica] = self.lay_out(target)
        return bool(self.to_send.get(replica))

    def lay_out(self, body: bytes) -> list[bytes]:
        """Make the pieces of an answer; an empty one stands for an end of file."""
        status = self.chance.choice([200, 200, 200, 404, 429, 503])
        head = b"HTTP/1.1 %d X\r\n" % status
        framing = self.chance.choice(["length", "chunked", "close"])
        if framing == "length":
            data = head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        elif framing == "chunked":
            data = head + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(body[:1], body[1:])
        else:
            data = head + b"\r\n" + body
        pieces = cut(data, [self.chance.choice([len(data), 20, 3])])
        return [*pieces, b""] if framing == "close" else pieces

    def run(self, steps: int) -> None:
        for name in self.chance.choices(["ask", "connect", "answer"], [2, 3, 6], k=steps):
            getattr(self, name)()
        for client in self.unsent:
            client.send(self.unsent[client])
        for _ in range(10_000):
            for dial in [d for d in self.rig.loop.dials if d.open]:
                self.rig.keep(dial.accept())
            if not self.answer(kindly=True) and not any(d.open for d in self.rig.loop.dials):
                return
        raise AssertionError("it never comes to rest")

    def check(self) -> None:
        for client, asked in self.asked.items():
            methods = (b"POST",) * len(asked)
            ended = client.is_gone() or client.transport.half_closed
            answers = complete_responses(client.received(), ended=ended, methods=methods)
            own = [target for (status, body), target in zip(answers, asked, strict=False) if status != 502]
            assert [body for status, body in answers if status != 502] == own
            assert len(answers) == len(asked) or ended
        written = sum(len(piece) for client in self.asked for piece in client.transport.writes)
        assert sum(record["bytes_out"] for record in self.rig.records) == written


@pytest.mark.parametrize("part", range(2))
def test_each_client_gets_its_own_answers(part: int) -> None:
    answered = 0
    for seed in range(part, WALKS, 2):
        chance = random.Random(seed)
        with rig(chance.choice([1, 2, 4]), max_idle=chance.choice([0, 1, 9]), breaker_failure_threshold=0) as r:
            walk = Walk(r, chance)
            try:
                walk.run(150)
                walk.check()
            except BaseException as e:
                e.add_note(f"seed {seed}")
                raise
            answered += sum(record["complete"] for record in r.records)
    assert answered > WALKS
