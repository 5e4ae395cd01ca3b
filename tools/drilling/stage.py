"""The stage of a drill: fake replicas and dd-proxy as real processes, and what the drill does to them.

Owns the processes; leaving the context ends them all, whatever happened. Blocking calls throughout: whoever runs a loop
calls it from a thread. Judges nothing.
"""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tools.drilling.evidence import ProxyFacts, ReplicaFacts
from tools.drilling.spec import Drill, Event
from tools.launch import DdProxy, Fake, Metrics, ask, wait_until

SETTLE_S = 15.0
_SUMMED = ("requests", "completed", "errors", "cancelled", "broken", "reused", "connections")


class StandIn:
    """One replica: a process that may be ended and started again on its port, and the sum of its counts."""

    def __init__(self, log: Path, arguments: Sequence[str], port: int = 0) -> None:
        self.log = log
        self.arguments = list(arguments)
        self.process: Fake | None = None
        self.earlier: dict[str, int] = dict.fromkeys(_SUMMED, 0)
        self.counts_lost = False
        self.port = port
        self.start()

    @property
    def backend(self) -> str:
        """Return the replica's name at the proxy."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the process on its port, if it does not run."""
        if self.process is None:
            self.process = Fake(self.log, "--port", str(self.port), *self.arguments)
            self.port = self.process.port

    def stop(self) -> None:
        """End the process in order and keep its counts."""
        if self.process is not None:
            self._remember(self.process.routing())
            self.process.stop()
            self.process.kill()
            self.process = None

    def kill(self) -> None:
        """End the process at once; what it had counted is lost."""
        if self.process is not None:
            self.process.kill()
            self.process = None
            self.counts_lost = True

    def facts(self) -> ReplicaFacts:
        """Return what the replica counted over all its lives."""
        if self.process is not None:
            last = self.process.routing()
            counts = {name: self.earlier[name] + int(last[name]) for name in _SUMMED}
            return ReplicaFacts(self.backend, counts, int(last["active"]), not self.counts_lost)
        return ReplicaFacts(self.backend, dict(self.earlier), 0, not self.counts_lost)

    def _remember(self, routing: Mapping[str, Any]) -> None:
        for name in _SUMMED:
            self.earlier[name] += int(routing[name])


class Stage:
    """Replicas and proxy of one drill, started when entered."""

    def __init__(self, drill: Drill, directory: Path, command: Sequence[str] = ()) -> None:
        self.drill = drill
        self.directory = directory
        self.command = command
        self.replicas: list[StandIn] = []
        self._stack = contextlib.ExitStack()
        self._proxy: DdProxy | None = None

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._start_replicas(stack)
            urls = [f"http://{replica.backend}" for replica in self.replicas]
            log = self.directory / "proxy.log"
            options = self.drill.proxy_arguments()
            self._proxy = stack.enter_context(DdProxy(log, urls, *options, command=self.command))
            self._proxy.wait_ready()
            self._stack = stack.pop_all()
        return self

    def _start_replicas(self, stack: contextlib.ExitStack) -> None:
        """Start all of them side by side; the stack ends those that came up, even if another one did not."""
        arguments = self.drill.replicas.arguments()

        def start(index: int) -> StandIn:
            return StandIn(self.directory / f"replica-{index}.log", arguments)

        with ThreadPoolExecutor(self.drill.replicas.count) as pool:
            starting = [pool.submit(start, index) for index in range(self.drill.replicas.count)]
        for future in starting:
            if future.exception() is None:
                stack.callback(future.result().kill)
        self.replicas = [future.result() for future in starting]

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.close()

    @property
    def proxy(self) -> DdProxy:
        """Return the running proxy. Raises RuntimeError before the stage is entered."""
        if self._proxy is None:
            raise RuntimeError("the stage has not been entered")
        return self._proxy

    def act(self, event: Event) -> None:
        """Do to the replicas what the event says. Raises OSError or RuntimeError when that is impossible."""
        chosen = self.replicas if event.replica is None else [self.replicas[event.replica]]
        for replica in chosen:
            self._act_on(replica, event)

    def _act_on(self, replica: StandIn, event: Event) -> None:
        process = replica.process
        match event.action:
            case "kill":
                replica.kill()
            case "start":
                replica.start()
            case "roll":
                self._roll(replica)
            case "pause" if process is not None:
                process.pause()
            case "resume" if process is not None:
                process.process.send_signal(signal.SIGCONT)
            case "fault" if process is not None:
                process.fault(**event.fields)
            case "clear" if process is not None:
                process.fault("clear", **event.fields)

    def _roll(self, replica: StandIn) -> None:
        proxy, name = self.proxy, replica.backend
        proxy.admin("POST", f"/backends/{name}/drain")
        wait_until(lambda: proxy.backends()[name]["active"] == 0, SETTLE_S, f"the end of what {name} runs")
        replica.stop()
        replica.start()
        wait_until(lambda: ask(replica.port, "GET", "/health")[0] == 200, SETTLE_S, f"the health of {name}")
        proxy.admin("POST", f"/backends/{name}/resume")
        wait_until(lambda: proxy.backends()[name]["healthy"] is True, SETTLE_S, f"the proxy to find {name} healthy")

    def mend(self) -> None:
        """Undo every fault that the drill left behind, so that what is counted can be asked for."""
        for replica in self.replicas:
            if replica.process is not None:
                replica.process.process.send_signal(signal.SIGCONT)
            replica.start()
            if replica.process is not None:
                replica.process.clear()

    def settle(self) -> None:
        """Wait until nothing runs at proxy and replicas; what still does then will show in the evidence."""

        def quiet() -> bool:
            active = self.proxy.metrics().total("active_requests")
            return active == 0 and all(replica.facts().active == 0 for replica in self.replicas)

        with contextlib.suppress(TimeoutError):
            wait_until(quiet, SETTLE_S)

    def proxy_facts(self) -> ProxyFacts:
        """Stop the proxy and return all that it said about itself."""
        proxy = self.proxy
        metrics = proxy.metrics()
        peak = proxy.peak_rss_bytes()
        code = proxy.stop()
        strangers: list[str] = []
        requests: list[dict[str, Any]] = []
        for line in proxy.log.read_text(errors="replace").splitlines():
            event = _json(line)
            if event is None or event.get("event") == "error":
                strangers.append(line)
            elif event.get("event") == "request":
                requests.append(event)
        return ProxyFacts(metrics, Metrics(""), requests, strangers, peak, code)


def _json(line: str) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None
