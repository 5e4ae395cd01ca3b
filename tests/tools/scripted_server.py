"""An HTTP server that answers as a script says, byte by byte if need be, and counts what it was sent."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import orjson

TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


class Exchange:
    """One request as the server read it, and the ways to answer it."""

    def __init__(self, number: int, path: str, body: dict[str, Any], writer: asyncio.StreamWriter, nth: int) -> None:
        self.number, self.path, self.body, self.writer, self.nth_on_connection = number, path, body, writer, nth

    async def answer(
        self, status: int = 200, body: bytes = b'{"usage":{"completion_tokens":4}}', **headers: str
    ) -> None:
        lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        await self.writer.drain()

    async def stream(self, events: int, end: bool = True, pause: float = 0.0) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        self.writer.write(head)
        for piece in [TOKEN] * events + ([DONE] if end else []):
            self.writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await self.writer.drain()
            await asyncio.sleep(pause)
        if end:
            self.writer.write(b"0\r\n\r\n")
            await self.writer.drain()
        else:
            self.writer.close()


Script = Callable[[Exchange], Awaitable[None]]


class Server:
    """An HTTP server on a loop of its own thread, so that the run under test cannot hold it up."""

    def __init__(self, script: Script, tls: ssl.SSLContext | None = None) -> None:
        self.script = script
        self.requests = 0
        self.connections = 0
        self.lost = 0
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls), self._loop
        ).result()
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        nth = 0
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while not writer.is_closing():
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = next((int(line[15:]) for line in head.split("\r\n") if line.startswith("Content-Length:")), 0)
                body = await reader.readexactly(length)
                self.requests += 1
                nth += 1
                fields = orjson.loads(body) if body else {}
                await self.script(Exchange(self.requests, head.split(" ")[1], fields, writer, nth))
        writer.close()

    def close(self) -> None:
        async def end() -> None:
            self._server.close()
            rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextlib.contextmanager
def serving(script: Script, tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    server = Server(script, tls)
    try:
        yield server
    finally:
        server.close()
