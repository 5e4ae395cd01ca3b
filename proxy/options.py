"""The table of `serve` options: one entry drives the command line, the config file, `check`, --help and the README.

Pure data: what an option means is decided where its value is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from proxy import kinds
from proxy.kinds import Choice, FilePath, Flag, HttpPath, Kind, Seconds, Size, Whole


@dataclass(frozen=True, slots=True)
class Option:
    """One option; `shown` is its default in words, where the value does not say it."""

    name: str
    metavar: str
    kind: Kind
    default: object
    help: str
    shown: str = ""
    unit: str = ""

    @property
    def key(self) -> str:
        """Return the option's key in a config file."""
        return self.name.replace("-", "_")

    @property
    def field(self) -> str:
        """Return the name under which Config keeps the value."""
        return _FIELDS.get(self.name, self.key + self.unit)

    @property
    def repeatable(self) -> bool:
        """Say whether the option may be given more than once; its values make one list."""
        return isinstance(self.kind, (kinds.BackendList, kinds.HostList))

    @property
    def default_text(self) -> str:
        """Return the default in words."""
        return self.shown or (f"{self.default:g}" if isinstance(self.default, float) else str(self.default))


# Config's names where they are not the key and the unit.
_FIELDS: Final = {
    "backend": "backends",
    "allowed-host": "allowed_hosts",
    "retry-after-seconds": "retry_after_s",
    "queue-metrics": "queue_metrics_path",
    "no-retry-post": "retry_post",
}

REQUIRED: Final = object()  # the default of an option that has none

_PORT: Final = Whole(0, 65535)
_COUNT: Final = Whole(0)
_POSITIVE: Final = Whole(1)
_ENGINES: Final = Choice(("auto", "vllm", "sglang"))
_LEVELS: Final = Choice(("debug", "info", "warning", "error"))


def _span(name: str, default: float | None, help: str, shown: str = "") -> Option:
    return Option(name, "S", Seconds(), default, help, shown, "" if name.endswith("-s") else "_s")


def _size(name: str, kind: Size, default: str, help: str) -> Option:
    return Option(name, "SIZE", kind, default, help, unit="_bytes")


SECTIONS: Final[tuple[tuple[str, tuple[Option, ...]], ...]] = (
    ("Where to listen", (
        Option("listen-port", "N", _PORT, REQUIRED, "client port; 0 picks a free one", "required"),
        Option("listen-host", "H", kinds.Host(), "127.0.0.1", "client address (IPv4 or IPv6)"),
        Option("metrics-port", "N", _PORT, 0, "side port: metrics, readiness, admin, status page; 0 picks one"),
        Option("metrics-host", "H", kinds.Host(), "127.0.0.1", "side address"),
    )),
    ("Backends", (
        Option("backend", "URL", kinds.BackendList(), REQUIRED, "http(s)://host:port; repeatable", "required"),
        Option("allowed-host", "H", kinds.HostList(), [], "refuse backends on any other host; repeatable", "any"),
        Option("upstream-ca-file", "F", FilePath(), None, "PEM file of CAs that vouch for https backends", "system"),
        Option("upstream-insecure", "", Flag(), False, "do not verify https backends", "off"),
    )),
    ("Attempts and time limits (seconds)", (
        Option("max-attempts", "N", _POSITIVE, 3, "upstream attempts for one request, each on another backend"),
        Option("no-retry-post", "", Flag(inverted=True), False, "retry idempotent methods only", "off"),
        Option("flush-head", "", Flag(), False, "send a response head at once, not with its first body byte", "off"),
        _span("connect-timeout", 5.0, "per upstream connection"),
        _span("read-timeout", 3600.0, "longest silence while reading from an upstream"),
        _span("write-timeout", 3600.0, "longest silence while writing to an upstream"),
        _span("response-timeout", None, "longest wait for the response head of one attempt", "read timeout"),
        _span("client-timeout", 65.0, "clients: idle keep-alive, a whole head, 1 KiB of a body"),
        Option("drain-timeout", "S", Seconds(zero=True), 10.0, "on SIGTERM, for active responses to finish", unit="_s"),
    )),
    ("Memory and connections", (
        _size("max-request-body", Size(), "100MiB", "a larger request body gets 413"),
        _size("body-memory", Size(), "1MiB", "a request body above this waits in a temporary file"),
        Option("spool-dir", "D", FilePath(), "/tmp", "folder of those temporary files", "$TMPDIR"),
        _size("max-head", Size(256, 2**24), "64KiB", "request or response head; larger: 431, or a failed attempt"),
        Option("max-connections-per-backend", "N", _POSITIVE, 1024, "requests at once on one backend"),
        Option("max-idle", "N", _COUNT, 256, "idle upstream connections in the whole process"),
        _span("idle-timeout", 65.0, "an upstream connection that is idle for longer is closed"),
    )),
    ("Queue admission", (
        Option("max-waiting-requests", "N", _COUNT, 128, "a backend with a deeper queue is overloaded"),
        _span("queue-interval", 0.1, "how often each backend's queue depth is read"),
        _span("queue-stale-after", 1.0, "age from which a depth no longer counts"),
        Option("queue-metrics", "PATH", HttpPath(off=True), "/metrics", "where the depth is read; off: nowhere"),
        Option("engine", "E", _ENGINES, "auto", "metric names: auto, vllm or sglang"),
        Option("retry-after-seconds", "N", Whole(none_word="none"), 1, "Retry-After of a 429 without one, or none"),
    )),
    ("Health and breaker", (
        Option("health-path", "P", HttpPath(), "/health", "probed on each backend"),
        _span("health-interval", 1.0, "probe period"),
        _span("health-timeout", 5.0, "limit of one probe"),
        Option("health-fall", "N", _POSITIVE, 2, "failed probes in a row that make a backend unhealthy"),
        Option("health-rise", "N", _POSITIVE, 1, "good probes in a row that make it healthy again"),
        Option("breaker-failure-threshold", "N", _COUNT, 3, "faults in a row that open a backend's breaker; 0: off"),
        _span("breaker-cooldown-s", 5.0, "first cooldown, doubled by each failed trial request"),
        _span("breaker-max-cooldown-s", 60.0, "longest cooldown"),
    )),
    ("Operation", (
        Option("admin-token-file", "F", FilePath(), None, "bearer token for changes through the admin API", "none"),
        Option("stats-file", "F", FilePath(), None, "on exit: counts, CPU seconds and peak memory as JSON", "none"),
        Option("request-id-header", "NAME", kinds.FieldName(), "none", "response header that carries the request id"),
        Option("log-level", "L", _LEVELS, "info", "debug, info, warning or error"),
    )),
)  # fmt: skip

OPTIONS: Final[tuple[Option, ...]] = tuple(option for _, options in SECTIONS for option in options)
OPTION_OF_KEY: Final[dict[str, Option]] = {option.key: option for option in OPTIONS}
