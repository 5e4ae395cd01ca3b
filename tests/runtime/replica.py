"""A replica that ends as engines do: on TERM it finishes the responses it has begun, then exits.

    python replica.py --host H --port P [--events N --interval S]

Streams N server-sent events per POST; GET answers /health and /metrics. Only for drains in which Slurm itself signals
the replicas; everything else uses tools/fake_backend.py.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from contextlib import suppress

_PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s"
_STREAM = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
)


class Engine:
    """Counts its responses, so that it knows when it may go."""

    def __init__(self, events: int, interval: float) -> None:
        self.events, self.interval = events, interval
        self.idle = asyncio.Event()
        self.idle.set()
        self.active = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request, then close."""
        with suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"GET"):
                body = b"vllm:num_requests_waiting 0\n"
                writer.write(_PLAIN % (len(body), body))
            else:
                await self.stream(writer)
            await writer.drain()
        writer.close()

    async def stream(self, writer: asyncio.StreamWriter) -> None:
        """Send all events, one each interval."""
        self.active += 1
        self.idle.clear()
        try:
            writer.write(_STREAM)
            for number in range(self.events):
                event = b"data: %d\n\n" % number
                writer.write(b"%x\r\n%s\r\n" % (len(event), event))
                await writer.drain()
                await asyncio.sleep(self.interval)
            event = b"data: [DONE]\n\n"
            writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(event), event))
        finally:
            self.active -= 1
            if self.active == 0:
                self.idle.set()


async def main() -> None:
    """Serve until TERM, then until idle."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--events", type=int, default=20)
    parser.add_argument("--interval", type=float, default=0.1)
    options = parser.parse_args()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    engine = Engine(options.events, options.interval)
    server = await asyncio.start_server(engine.serve, options.host, options.port)
    await stop.wait()
    server.close()
    await engine.idle.wait()


if __name__ == "__main__":
    asyncio.run(main())
