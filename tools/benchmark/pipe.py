#!/usr/bin/env python3
"""A byte pipe on uvloop, the floor for any proxy in Python: `pipe.py PORT BACKEND_PORT...`.

Each client connection gets a backend connection of its own and bytes go through as they come. It knows no HTTP, so it
can neither retry, balance by load nor share a connection.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import Iterator
from typing import cast

import uvloop


class End(asyncio.Protocol):
    """One end of a pipe; what it reads goes to `other`, as soon as there is one."""

    def __init__(self, other: End | None = None) -> None:
        self.other = other
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Pass it on."""
        assert self.other is not None
        self.other.transport.write(data)

    def pause_writing(self) -> None:
        """Slow the other end down."""
        if self.other is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        """Let the other end go on."""
        if self.other is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, exc: BaseException | None) -> None:
        """End the other end too."""
        if self.other is not None:
            self.other.transport.close()


class Accepted(End):
    """A client's end: what it reads before its backend is connected waits."""

    def __init__(self, ports: Iterator[int]) -> None:
        super().__init__()
        self._port = next(ports)
        self._waiting = b""
        self._dialling: asyncio.Task[None]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        super().connection_made(transport)
        self._dialling = asyncio.get_running_loop().create_task(self._dial())

    def data_received(self, data: bytes) -> None:
        """Pass it on, or keep it."""
        if self.other is None:
            self._waiting += data
        else:
            self.other.transport.write(data)

    async def _dial(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, other = await loop.create_connection(lambda: End(self), "127.0.0.1", self._port)
        except OSError:
            self.transport.abort()
            return
        if self.transport.is_closing():
            other.transport.close()
        else:
            other.transport.write(self._waiting)
            self.other, self._waiting = other, b""


async def serve(port: int, backends: list[int]) -> None:
    """Serve until the process ends."""
    ports = itertools.cycle(backends)
    server = await asyncio.get_running_loop().create_server(lambda: Accepted(ports), "127.0.0.1", port, backlog=4096)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), [int(backend) for backend in sys.argv[2:]]))
