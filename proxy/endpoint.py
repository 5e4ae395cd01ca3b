"""The process's one endpoint: what all of its connections share, and every limit in time.

Owns the fleet, the pool, the counters and the sweeper. Limits are kept without timer objects: those of clients by
client_limits.py, exchanges are looked at one by one, both every `sweep_interval_s`.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections import defaultdict
from typing import Protocol

from proxy.access_log import AccessLog
from proxy.balancer import Fleet
from proxy.breaker import BreakerState
from proxy.client_limits import ClientLimits
from proxy.config import BackendUrl, Config
from proxy.connector import Connector, UpstreamConnection
from proxy.counters import Counters
from proxy.departures import Departures
from proxy.downstream import Downstream
from proxy.events import Event, RequestEntry
from proxy.handler import Exchange
from proxy.head_memo import MAX_AGE_S, request_memo, response_memo
from proxy.headers import HeadError, RequestHead
from proxy.outcome import Eviction, Rejection
from proxy.pool import Pool
from proxy.recent import RecentRequests
from proxy.records import Records
from proxy.replies import MESSAGES
from proxy.upstream import Backend

READS_AGE_S = 0.1  # one look at all exchanges serves the probes of all backends for so long
_SANE_ID = re.compile(rb"[0-9A-Za-z._:/+=-]{1,128}")


class Probes(Protocol):
    """Health probes and queue samples of all backends."""

    def start(self, backend: Backend) -> None:
        """Begin with one backend, with a probe at once."""

    def stop(self, backend: Backend) -> None:
        """End with one backend."""

    def probe_now(self, backend: Backend) -> None:
        """Probe now rather than at the next interval."""


class Endpoint:
    """One logical endpoint: shared by all connections, run by one event loop thread."""

    def __init__(self, config: Config, log: AccessLog, loop: asyncio.AbstractEventLoop) -> None:
        self.config = config
        self.log = log
        self.loop = loop
        self.started_at = time.time()
        self.wall_clock = time.time
        self.counters = Counters()
        self.fleet = Fleet(config, self._breaker_changed)
        self.pool: Pool[UpstreamConnection] = Pool(config.max_idle, config.idle_timeout_s)
        self.connector = Connector(config, loop)
        self.departures = Departures(loop)
        self.memo_requests = request_memo()
        self.memo_responses = response_memo()
        self.records = Records(log, loop)
        self.draining = False
        self.removed_attempts = 0  # of backends that have left
        self.probes: Probes | None = None
        self.exchanges: set[Exchange] = set()
        self.downstreams: set[Downstream] = set()
        self.limits = ClientLimits(config.client_timeout_s)
        self._removals: dict[Backend, asyncio.TimerHandle] = {}
        self._quiet = asyncio.Event()  # set when no client connection is open
        self._quiet.set()
        self._memo_forgotten_at = time.monotonic()
        self._reads: defaultdict[Backend, int] = defaultdict(int)
        self._reads_at = float("-inf")
        self._sweeper: asyncio.TimerHandle | None = None
        self._id_prefix = os.urandom(4).hex()
        self._id_number = 0
        self.request_id_header = None if config.request_id_header is None else config.request_id_header.encode("ascii")
        self._id_field = None if self.request_id_header is None else _field_pattern(self.request_id_header)

    def __repr__(self) -> str:
        return f"<Endpoint exchanges={len(self.exchanges)} clients={len(self.downstreams)} {self.pool!r}>"

    @property
    def recent(self) -> RecentRequests:
        """The last requests, up to now."""
        return self.records.recent

    # ------------------------------------------------------------------ exchanges

    def exchange_began(self, exchange: Exchange) -> None:
        """Count a request whose head has arrived."""
        self.counters.requests += 1
        self.counters.active_requests += 1
        self.exchanges.add(exchange)

    def exchange_ended(self, exchange: Exchange, complete: bool, now: float) -> None:
        """Count a request that has ended, and have it told; called once for each."""
        self.exchanges.discard(exchange)
        self.counters.active_requests -= 1
        if exchange.attempts > 1:
            self.counters.failovers += 1
        seconds = now - exchange.started
        self._count_response(exchange.status, seconds)
        x, head = exchange, exchange.head
        numbers = (x.status, complete, x.bytes_in, x.bytes_out, seconds)
        self.records.add((now, x.request_id, head.method, head.path, *numbers, x.told, x.choices))

    def refused_head(self, error: HeadError, rejection: Rejection, bytes_in: int, bytes_out: int) -> None:
        """Count and log a request whose head made no exchange."""
        self.counters.requests += 1
        self.counters.rejected[rejection] += 1
        entry: RequestEntry = {
            "request_id": self._new_id(),
            "method": None if error.method is None else error.method.decode("latin-1"),
            "path": error.path,
            "final_status": error.status,
            "attempts": 0,
            "failover": False,
            "complete": True,
            "bytes_in": bytes_in,
            "bytes_out": bytes_out,
            "total_s": 0.0,
            "upstreams": [],
        }
        self._count_response(error.status, 0.0)
        self.records.add_entry(entry)

    def _count_response(self, status: int, seconds: float) -> None:
        counters = self.counters
        counters.responses[status] += 1
        counters.request_seconds.observe(seconds)
        if status == 429:
            counters.final_429 += 1
        elif status >= 500:
            counters.final_5xx += 1

    def active_requests(self) -> int:
        """Count the client requests that have not ended."""
        return self.counters.active_requests

    def _new_id(self) -> str:
        self._id_number += 1
        return f"{self._id_prefix}-{self._id_number:x}"

    def request_id(self, head: RequestHead) -> str:
        """Give a request its id: the one that it brought, where ids are exchanged and it is sane, else a new one."""
        if self._id_field:
            match = self._id_field.search(b"\r\n" + head.before_host + b"\r\n" + head.after_host)
            if match is not None and _SANE_ID.fullmatch(match[1]):
                return str(match[1].decode("ascii"))
        return self._new_id()

    def request_id_line(self, request_id: str) -> bytes:
        """Give the field line that tells a client its request's id; empty unless that is wanted."""
        if self.request_id_header is None:
            return b""
        return b"%b: %b\r\n" % (self.request_id_header, request_id.encode("ascii"))

    # ------------------------------------------------------------------ upstream connections

    def idle_event(self, connection: UpstreamConnection) -> None:
        """Evict an idle connection that became readable or ended: its peer is done with it."""
        if self.pool.drop(connection):
            self._evict(connection, Eviction.STALE)

    def connection_back(self, connection: UpstreamConnection, reusable: bool, now: float) -> None:
        """Take a connection back from an attempt that has ended."""
        backend = connection.backend
        if connection.ended or not reusable:
            if not connection.ended:
                self._evict(connection, Eviction.DISCARDED)
            else:
                self._evict(connection, Eviction.STALE)
            return
        if backend.draining or backend.removed:
            self._evict(connection, Eviction.DRAIN)
            return
        connection.resume_reading()
        surplus = self.pool.give(connection, now)
        if surplus is not None:
            self._evict(surplus, Eviction.POOL_FULL)

    def _evict(self, connection: UpstreamConnection, reason: Eviction) -> None:
        connection.backend.evicted[reason] += 1
        connection.close()

    def lease_ended(self, backend: Backend) -> None:
        """See whether a backend that is being removed has nothing to do any more."""
        if backend.active == 0 and backend in self._removals:
            self._remove(backend)

    # ------------------------------------------------------------------ backends

    def add_backend(self, url: BackendUrl, required: bool) -> tuple[Backend, bool]:
        """Add a backend and probe it at once; the same URL again only changes `required` (and calls a removal off).

        Returns the backend and whether it is new. Raises ValueError when its host and port have another scheme here.
        """
        backend = self.fleet.get(url.authority)
        if backend is not None:
            if backend.url.scheme != url.scheme:
                raise ValueError(f"{url.authority} is a backend already, as {backend.url.url}")
            if backend in self._removals:
                self.resume_backend(backend)
            backend.required = required
            return backend, False
        backend = self.fleet.add(url, required=required)
        self.log.event(Event.BACKEND_ADDED, backend=backend.id, required=required)
        if self.probes is not None:
            self.probes.start(backend)
        return backend, True

    def drain_backend(self, backend: Backend) -> None:
        """Take a backend out of selection; its active responses go on, its idle connections are closed."""
        self.fleet.set_draining(backend, True)
        for connection in self.pool.drop_backend(backend):
            self._evict(connection, Eviction.DRAIN)

    def resume_backend(self, backend: Backend) -> None:
        """Let a backend re-enter selection; a removal that is under way is called off."""
        timer = self._removals.pop(backend, None)
        if timer is not None:
            timer.cancel()
        self.fleet.set_draining(backend, False)

    def remove_backend(self, backend: Backend, timeout_s: float) -> None:
        """Drain a backend and remove it when its last response has ended, after `timeout_s` at the latest.

        Returns at once. Responses that are still active then are cut, visibly; requests whose response has not begun
        are tried elsewhere.
        """
        self.drain_backend(backend)
        timer = self._removals.pop(backend, None)
        if timer is not None:
            timer.cancel()
        self._removals[backend] = self.loop.call_later(timeout_s, self._removal_due, backend)
        if backend.active == 0:
            self.loop.call_soon(self.lease_ended, backend)

    def _removal_due(self, backend: Backend) -> None:
        for exchange in list(self.exchanges):
            attempt = exchange.attempt
            if attempt is not None and attempt.backend is backend:
                attempt.fail_locally()
        if backend in self._removals:
            self._remove(backend)

    def _remove(self, backend: Backend) -> None:
        self._removals.pop(backend).cancel()
        if self.probes is not None:
            self.probes.stop(backend)
        self.fleet.remove(backend)
        self.removed_attempts += backend.attempts
        self.log.event(Event.BACKEND_REMOVED, backend=backend.id)

    def probe_now(self, backend: Backend) -> None:
        """Have a backend probed now: an attempt on it was refused or reset."""
        if self.probes is not None and not backend.removed:
            self.probes.probe_now(backend)

    def reads_of(self, backend: Backend) -> int:
        """Give a number that grows with each read of response bytes from a backend.

        It is READS_AGE_S old at most, and no more than an eighth of the time that a probe may take.
        """
        now = self.loop.time()
        if now - self._reads_at >= min(READS_AGE_S, self.config.health_timeout_s / 8):
            self._reads_at = now
            self._reads = defaultdict(int, {one: one.reads for one in self.fleet})
            for exchange in self.exchanges:
                if exchange.attempt is not None:
                    self._reads[exchange.attempt.backend] += exchange.attempt.reads()
        return self._reads[backend]

    def health_changed(self, backend: Backend) -> None:
        """Log a new health verdict."""
        name = Event.BACKEND_HEALTHY if backend.health.healthy else Event.BACKEND_UNHEALTHY
        self.log.event(name, backend=backend.id)

    def _breaker_changed(self, backend: Backend, state: BreakerState) -> None:
        self.log.event(f"breaker_{state.value}", backend=backend.id)

    # ------------------------------------------------------------------ client connections

    def downstream_made(self, downstream: Downstream) -> None:
        """Take a new client connection into the books."""
        self.downstreams.add(downstream)
        self._quiet.clear()
        if self.draining:
            downstream.drain()
        else:
            self.limits.waits(downstream)

    def downstream_lost(self, downstream: Downstream) -> None:
        """Take a client connection that is closed out of the books."""
        self.downstreams.discard(downstream)
        self.limits.forget(downstream)
        self.departures.forget_owner(downstream)
        if not self.downstreams:
            self._quiet.set()

    # ------------------------------------------------------------------ time

    @property
    def sweep_interval_s(self) -> float:
        """How late a limit may be noticed: an eighth of the shortest, within 20 ms and half a second."""
        c = self.config
        limits = (c.connect_timeout_s, c.read_timeout_s, c.write_timeout_s, c.response_timeout_s, c.client_timeout_s)
        return min(max(min(*limits, c.idle_timeout_s) / 8, 0.02), 0.5)

    def start_sweeping(self) -> None:
        """Begin to look after every limit in time."""
        self._sweeper = self.loop.call_later(self.sweep_interval_s, self._sweep)

    def stop_sweeping(self) -> None:
        """End it."""
        if self._sweeper is not None:
            self._sweeper.cancel()

    def _sweep(self) -> None:
        self.start_sweeping()
        now = time.monotonic()
        for exchange in list(self.exchanges):
            if not exchange.ended:
                try:
                    exchange.check(now)
                except Exception as e:  # noqa: BLE001 - or no later limit of any request would be kept
                    self.loop.call_exception_handler({"message": "Exception in a check of limits", "exception": e})
        self.limits.sweep(now)
        for connection in self.pool.drop_expired(now):
            self._evict(connection, Eviction.IDLE_TIMEOUT)
        if now - self._memo_forgotten_at >= MAX_AGE_S - self.sweep_interval_s:
            self._memo_forgotten_at = now
            self.memo_requests.forget()
            self.memo_responses.forget()

    # ------------------------------------------------------------------ the end

    def begin_drain(self) -> None:
        """Serve no new request; idle client connections close, active responses go on. Idempotent."""
        if self.draining:
            return
        self.draining = True
        self.log.event(Event.DRAINING, active=self.counters.active_requests)
        for downstream in list(self.downstreams):
            downstream.drain()

    async def quiet(self) -> None:
        """Wait until no client connection is open."""
        await self._quiet.wait()

    def cut_all(self) -> None:
        """Close every connection now: what is not complete breaks off visibly, what has not begun becomes a 503."""
        answered: set[Downstream] = set()
        for exchange in list(self.exchanges):
            if exchange.begun:
                exchange.cut(None)
            else:  # the client hears that it may ask again, rather than nothing
                exchange.reply(503, Rejection.DRAINING, MESSAGES[Rejection.DRAINING], close=True)
                exchange.downstream.close_answered()
                answered.add(exchange.downstream)
        for downstream in self.downstreams - answered:
            downstream.give_up()
        for backend in list(self.fleet):
            for connection in self.pool.drop_backend(backend):
                self._evict(connection, Eviction.DRAIN)


def _field_pattern(name: bytes) -> re.Pattern[bytes]:
    return re.compile(rb"(?i)\r\n" + re.escape(name) + rb":[ \t]*([^\r\n]*?)[ \t]*\r\n")
