"""What a drill is: a TOML file read into frozen records, every mistake named with file and key.

Pure but for reading the file. Knows which actions and promises exist, not how they are carried out. Times of events are
shares of the drill's length, so that a drill can be run shorter than it is written.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from tools.drilling.day import Day
from tools.fake.faults import KINDS

ACTIONS = {
    "fault": "switch a fault of the replica on (kind and its fields)",
    "clear": "end all faults of the replica",
    "kill": "end its process at once",
    "start": "start its process again on the same port",
    "pause": "stop its process where it is: sockets stay open and silent",
    "resume": "let a paused process go on",
    "roll": "drain it at the proxy, restart its process, let it back in; all: one after the other",
}
_DEEDS = {
    "clear": "is well again",
    "kill": "is killed",
    "start": "is started again",
    "pause": "is stopped where it is",
    "resume": "goes on",
    "roll": "is drained, restarted and let back in",
}
_TROUBLES = {
    "status": "answers {status}",
    "reset": "resets connections",
    "hang": "reads requests and says nothing",
    "cut": "breaks answers off after {after} events",
    "slow": "waits {delay_s} s before it answers",
    "refuse": "refuses connections",
    "idle_close": "closes connections that were idle for {seconds} s",
    "unhealthy": "says that it is unhealthy",
    "waiting": "reports {value} waiting requests",
    "metrics": "spoils its metrics page ({how})",
}
_Record = TypeVar("_Record", "Replicas", "Holds", Day)
_EVENT_KEYS = {"at", "for", "do", "replica", "kind"}


class BadDrill(Exception):
    """A drill file cannot be used; the text names file, key and reason."""


@dataclass(frozen=True)
class Event:
    """Something that happens to a replica: `at` is a share of the drill, `replica` None means all of them."""

    at: float
    action: str
    replica: int | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """Return the event as a sentence."""
        who = "Every replica" if self.replica is None else f"Replica {self.replica}"
        if self.action != "fault":
            return f"{who} {_DEEDS[self.action]}"
        defaults = {"status": 503, "after": 1, "how": "missing", "delay_s": 1.0, "seconds": 5.0, "value": 1000}
        share = f", {self.fields['share']:.0%} of the time" if "share" in self.fields else ""
        return f"{who} {_TROUBLES[self.fields['kind']].format(**{**defaults, **self.fields})}{share}"


@dataclass(frozen=True)
class Replicas:
    """The fake replicas of a drill; times in seconds."""

    count: int = 4
    tokens: int = 16
    token_interval: float = 0.004
    max_concurrency: int = 64
    startup_delay_s: float = 0.0
    keep_alive_s: float = 5.0
    engine: str = "vllm"

    def arguments(self) -> list[str]:
        """Return the options of the fake replica."""
        words = [(f"--{one.name.replace('_', '-')}", getattr(self, one.name)) for one in fields(self)]
        return [part for name, value in words if name != "--count" for part in (name, str(value))]


@dataclass(frozen=True)
class Holds:
    """What must be true afterwards. `seen` names counters that must have moved, or the drill has proved nothing.

    `lost`: requests that failed for good; `statuses`: what a client's try may be answered with; `admission`: the AIMD
    client was slowed down and recovered; `max_retries`: at most so many retries inside the proxy (None: any number).
    """

    lost: int = 0
    max_attempts: int = 3
    max_rss_mib: int = 96
    statuses: tuple[int, ...] = (200,)
    admission: bool = False
    max_retries: int | None = None
    seen: tuple[str, ...] = ()


@dataclass(frozen=True)
class Drill:
    """One drill. `loads` are options of the load generator; `proxy` are options of `dd-proxy serve`."""

    name: str
    title: str
    about: str
    seconds: float
    replicas: Replicas
    proxy: Mapping[str, Any]
    loads: tuple[Mapping[str, Any], ...]
    events: tuple[Event, ...]
    holds: Holds

    @property
    def needs_replicas(self) -> bool:
        """Whether the drill does something to replicas, so that it must start them itself."""
        return bool(self.events)

    def proxy_arguments(self) -> list[str]:
        """Return the options of `dd-proxy serve`."""
        return _words(self.proxy)

    def load_arguments(self, index: int, seconds: float) -> list[str]:
        """Return the options of one load; a list of rates shares the drill's length evenly."""
        options = dict(self.loads[index])
        rates = options.get("rate")
        if isinstance(rates, list):
            options["rate"] = "steps:" + ",".join(f"{rate}x{seconds / len(rates):.4f}" for rate in rates)
        return _words(options)


def _words(options: Mapping[str, Any]) -> list[str]:
    words: list[str] = []
    for key, value in options.items():
        name = f"--{key.replace('_', '-')}"
        if value is True:
            words.append(name)
        elif value is not False:
            words += [name, str(value)]
    return words


def read_drill(path: Path) -> Drill:
    """Read one drill file. Raises BadDrill."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadDrill(f"{path}: {error}") from None
    try:
        return parse_drill(path.stem, data)
    except (ValueError, TypeError) as error:
        raise BadDrill(f"{path}: {error}") from None


def parse_drill(name: str, data: Mapping[str, Any]) -> Drill:
    """Turn the contents of a file into a drill. Raises ValueError with key and reason."""
    known = {"title", "about", "seconds", "replicas", "proxy", "load", "event", "holds", "day"}
    _refuse_unknown("", data, known)
    for key in ("title", "about", "seconds"):
        if key not in data:
            raise ValueError(f"{key}: missing")
    if not 0 < float(data["seconds"]) < 36000:
        raise ValueError("seconds: must be above zero and below ten hours")
    replicas = _record(Replicas, "replicas", data.get("replicas", {}))
    loads = tuple(data.get("load", ()))
    if not loads:
        raise ValueError("load: at least one [[load]] is needed")
    events = [event for entry in data.get("event", ()) for event in _events(entry, replicas.count)]
    if "day" in data:
        day = _record(Day, "day", data["day"])
        events += [Event(*moment) for moment in day.events(replicas.count)]
        loads = tuple({**load, "rate": day.rates(float(load["rate"]))} if "rate" in load else load for load in loads)
    holds = dict(data.get("holds", {}))
    for key in ("statuses", "seen"):
        if key in holds:
            holds[key] = tuple(holds[key])
    return Drill(
        name, data["title"], " ".join(data["about"].split()), float(data["seconds"]), replicas, data.get("proxy", {}),
        loads, tuple(sorted(events, key=lambda event: event.at)), _record(Holds, "holds", holds),
    )  # fmt: skip


def _refuse_unknown(where: str, data: Mapping[str, Any], known: set[str]) -> None:
    for key in data:
        if key not in known:
            raise ValueError(f"{where}{key}: unknown; one of {', '.join(sorted(known))}")


def _record(kind: type[_Record], where: str, data: Mapping[str, Any]) -> _Record:
    _refuse_unknown(f"{where}.", data, {one.name for one in fields(kind)})
    return kind(**data)


def _events(entry: Mapping[str, Any], count: int) -> list[Event]:
    """Return an entry as one event, or as two when it says how long it lasts."""
    action, at, replica = entry.get("do", "fault"), entry.get("at"), entry.get("replica")
    if action not in ACTIONS:
        raise ValueError(f"event.do: {action!r} is unknown; one of {', '.join(ACTIONS)}")
    if not isinstance(at, int | float) or not 0 <= at <= 1:
        raise ValueError("event.at: must be a share of the drill from 0 to 1")
    if replica == "all":
        replica = None
    elif not isinstance(replica, int) or not 0 <= replica < count:
        raise ValueError(f"event.replica: must be 0 to {count - 1}, or 'all'")
    settings = {key: value for key, value in entry.items() if key not in _EVENT_KEYS - {"kind"}}
    if action == "fault" and settings.get("kind") not in KINDS:
        raise ValueError(f"event.kind: {settings.get('kind')!r} is unknown; one of {', '.join(KINDS)}")
    events = [Event(float(at), action, replica, settings)]
    if "for" in entry:
        after = {"fault": "clear", "kill": "start", "pause": "resume"}.get(action)
        if after is None:
            raise ValueError(f"event.for: {action} does not last")
        only = {"only": settings["kind"]} if action == "fault" else {}
        events.append(Event(min(float(at) + float(entry["for"]), 1.0), after, replica, only))
    return events
