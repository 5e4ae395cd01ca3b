"""One HTTP GET over a connection of its own, for health and for small JSON or text answers.

Owns the tiny client. Refuses to know what an answer means. Uses none of the proxy's connections, so that it has no
effect on least connections, pools or metrics.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

MAX_ANSWER = 8 * 2**20


@dataclass(frozen=True, slots=True)
class Answer:
    """What a GET gave. `status` None: no answer, and `reason` says why; `timed_out` tells silence from refusal."""

    status: int | None
    reason: str
    timed_out: bool = False
    body: bytes = b""

    @property
    def good(self) -> bool:
        """Tell whether the answer was 200."""
        return self.status == 200


def split_authority(authority: str) -> tuple[str, int]:
    """Split host:port; brackets of an IPv6 address are removed."""
    host, _, port = authority.rpartition(":")
    return host.strip("[]"), int(port)


async def get(authority: str, path: str, timeout_s: float, *, body: bool = False) -> Answer:
    """Ask `http://authority/path` once, for at most `timeout_s`. The body is read only when asked for.

    Never raises for anything the other side does; after cancellation its connection is closed.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await _get(authority, path, body)
    except TimeoutError:
        return Answer(None, f"no answer within {timeout_s:g} s", timed_out=True)
    except ConnectionRefusedError:
        return Answer(None, "connection refused")
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        return Answer(None, "connection closed" if isinstance(error, EOFError) else f"connection failed: {error}")
    except ValueError:
        return Answer(None, "the answer is not HTTP")


async def _get(authority: str, path: str, body: bool) -> Answer:
    host, port = split_authority(authority)
    reader, writer = await asyncio.open_connection(host, port)
    try:
        request = (
            f"GET {path} HTTP/1.1\r\nHost: {authority}\r\nUser-Agent: dd-proxy-monitor\r\nConnection: close\r\n\r\n"
        )
        writer.write(request.encode("latin-1"))
        status_line = await reader.readuntil(b"\n")
        version, status, *_ = status_line.split(None, 2)
        if not version.startswith(b"HTTP/1."):
            return Answer(None, "the answer is not HTTP")
        content = await _read_body(reader) if body else b""
        return Answer(int(status), f"status {int(status)}", body=content)
    finally:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()


async def _read_body(reader: asyncio.StreamReader) -> bytes:
    """Read a body that ends by length, by chunks or with the connection."""
    length: int | None = None
    chunked = False
    while (line := await reader.readline()) not in (b"\r\n", b"\n", b""):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
        chunked |= name.lower() == b"transfer-encoding" and b"chunked" in value.lower()
    if chunked:
        parts = []
        while size := int((await reader.readline()).split(b";")[0], 16):
            parts.append(await reader.readexactly(size))
            await reader.readline()
        return b"".join(parts)
    return await (reader.read(MAX_ANSWER) if length is None else reader.readexactly(min(length, MAX_ANSWER)))
