"""Connections to backends: dialling them, and the protocol object that one of them is.

Owns sockets, options and TLS of the upstream side. Knows no HTTP: bytes go to the attempt that leases the connection,
everything else is told to it or, for an idle connection, to whoever owns the pool.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from typing import Protocol

from proxy.config import Config
from proxy.framing import MORE, SIZE_LINES, SIZES_AT, WHOLE_CHUNK_BYTES, FramingError, Scanner
from proxy.socket_writer import SocketWriter
from proxy.upstream import Backend

LOCAL_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})


class Lessee(Protocol):
    """Who uses a connection: an attempt."""

    def upstream_data(self, data: bytes) -> None:
        """Take bytes as they came."""

    def upstream_spliced(self, data: bytes, end: int | FramingError) -> None:
        """Take the piece at which a splice has to stop for once: its scanner said `end`, or found it malformed."""

    def upstream_ended(self, error: BaseException | None) -> None:
        """Take the end of the connection: None for an end of file, else what broke it."""

    def upstream_paused(self, paused: bool) -> None:
        """Stop or go on writing."""


class UpstreamConnection(SocketWriter):
    """One connection to a backend; idle while it has no `lessee`.

    `reads` counts reads of response bytes over its whole life, but for whole chunks that were spliced; `spliced` counts
    the bytes that went straight from the backend to the client during the present lease. One of the two grows with each
    read, so that progress can be seen without a clock.
    `on_idle_event(connection)` is called when an idle connection becomes readable or ends: it is of no use any more.
    """

    __slots__ = (
        *("_at_chunk", "_on_idle_event", "_reading_paused", "_scanner", "_sink"),
        *("backend", "ended", "lessee", "paused", "reads", "spliced"),
    )

    def __init__(self, backend: Backend, on_idle_event: Callable[[UpstreamConnection], None]) -> None:
        self.backend = backend
        self._on_idle_event = on_idle_event
        self.lessee: Lessee | None = None
        self._scanner: Scanner | None = None
        self._sink: SocketWriter | None = None
        self._at_chunk = False
        self.reads = 0
        self.spliced = 0
        self.ended = False
        self.paused = False  # the peer takes no more bytes for now
        self._reading_paused = False

    def __repr__(self) -> str:
        state = "closed" if self.ended else "leased" if self.lessee else "idle"
        return f"<UpstreamConnection {self.backend.id} {state} reads={self.reads}>"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self.connected(transport).setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        n = len(data)
        if self._at_chunk and n < WHOLE_CHUNK_BYTES and data[SIZES_AT[n]] == SIZE_LINES[n] and data[-2:] == b"\r\n":
            self.spliced += n
            self._sink.send(data)  # type: ignore[union-attr]  # set together with `_at_chunk`
            return
        self.reads += 1
        if self._scanner is not None:
            self._pass_on(data, self._scanner)
        elif self.lessee is not None:
            self.lessee.upstream_data(data)
        else:
            self._on_idle_event(self)

    def _pass_on(self, data: bytes, scanner: Scanner) -> None:
        """Give a piece of a splice to the sink, or to the lessee where it has to look at it."""
        assert self.lessee is not None
        assert self._sink is not None
        try:
            end = scanner.feed(data)
        except FramingError as e:
            self.lessee.upstream_spliced(data, e)
            return
        if end == MORE:
            self._at_chunk = scanner.at_chunk
            self.spliced += len(data)
            self._sink.send(data)
        else:
            self._at_chunk = False
            self.lessee.upstream_spliced(data, end)

    def splice(self, scanner: Scanner, sink: SocketWriter) -> None:
        """From now on give each piece for which the scanner says MORE to `sink`, without asking the lessee.

        The scanner is not even asked about a piece that is one whole chunk, as nearly every event of a stream is: that
        touches as few objects, and as little code, as can be.
        """
        self._scanner = scanner
        self._sink = sink
        self._at_chunk = scanner.at_chunk

    def release(self) -> None:
        """End the lease: bytes that come now are nobody's."""
        self.lessee = self._scanner = self._sink = None
        self._at_chunk = False
        self.spliced = 0

    def eof_received(self) -> bool | None:
        """See asyncio.Protocol; the transport closes itself."""
        self._end(None)
        return None

    def connection_lost(self, exc: BaseException | None) -> None:
        """See asyncio.Protocol."""
        super().connection_lost(exc)
        self._end(exc)

    def _end(self, error: BaseException | None) -> None:
        if self.ended:
            return
        self.ended = True
        if self.lessee is not None:
            self.lessee.upstream_ended(error or self._truncation())
        else:
            self._on_idle_event(self)

    def _truncation(self) -> OSError | None:
        """Give the error that an end of file without a TLS closing alert is: the peer did not end the connection."""
        tls = self.transport.get_extra_info("ssl_object")
        if tls is None:
            return None
        try:
            tls.read(1)
        except ssl.SSLZeroReturnError:  # as the empty read: the alert has come
            return None
        except ssl.SSLError as e:
            return e
        return None

    def pause_writing(self) -> None:
        """See asyncio.Protocol."""
        self.paused = True
        if self.lessee is not None:
            self.lessee.upstream_paused(True)

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self.paused = False
        if self.lessee is not None:
            self.lessee.upstream_paused(False)

    def pause_reading(self) -> None:
        """Read no more for now; idempotent."""
        if not self._reading_paused and not self.ended:
            self._reading_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again; idempotent."""
        if self._reading_paused and not self.ended:
            self._reading_paused = False
            self.transport.resume_reading()

    def close(self) -> None:
        """Close at once, without sending what is still buffered; idempotent."""
        self.ended = True
        self.transport.abort()


def tls_context(config: Config) -> ssl.SSLContext:
    """Make the TLS context for https backends.

    It verifies against the system's CAs or `--upstream-ca-file`, unless told not to. Raises OSError, which
    includes ssl.SSLError.
    """
    context = ssl.create_default_context(cafile=config.upstream_ca_file)
    if config.upstream_insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class Connector:
    """Dials backends. The TLS context is made when the first https backend needs it."""

    def __init__(self, config: Config, loop: asyncio.AbstractEventLoop) -> None:
        self._config = config
        self._loop = loop
        self._tls: ssl.SSLContext | None = None

    def tls_for(self, backend: Backend) -> ssl.SSLContext | None:
        """Give the TLS context for a backend, None for plain http."""
        if backend.url.scheme != "https":
            return None
        if self._tls is None:
            self._tls = tls_context(self._config)
        return self._tls

    async def connect(self, backend: Backend, factory: Callable[[], asyncio.BaseProtocol]) -> asyncio.BaseProtocol:
        """Connect to a backend; raises OSError (ssl.SSLError is one). After cancellation nothing stays open."""
        tls = self.tls_for(backend)
        _, protocol = await self._loop.create_connection(
            factory,
            backend.url.host,
            backend.url.port,
            ssl=tls,
            server_hostname=backend.url.host if tls is not None else None,
        )
        return protocol

    def dial(
        self,
        backend: Backend,
        on_idle_event: Callable[[UpstreamConnection], None],
        done: Callable[[UpstreamConnection | OSError], None],
    ) -> asyncio.Task[None]:
        """Start connecting; `done` gets the connection or the error, unless the task is cancelled before."""
        return self._loop.create_task(self._dial(backend, on_idle_event, done))

    async def _dial(
        self,
        backend: Backend,
        on_idle_event: Callable[[UpstreamConnection], None],
        done: Callable[[UpstreamConnection | OSError], None],
    ) -> None:
        made: list[UpstreamConnection] = []

        def factory() -> UpstreamConnection:
            made.append(UpstreamConnection(backend, on_idle_event))
            return made[0]

        try:
            await self.connect(backend, factory)
        except OSError as e:
            done(e)
        except asyncio.CancelledError:
            if made and hasattr(made[0], "transport"):
                made[0].close()  # connected in the same loop iteration as the cancellation
            raise
        else:
            done(made[0])
