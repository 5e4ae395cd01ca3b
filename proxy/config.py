"""The configuration of `serve` as one frozen record, and the check that makes it from plain values.

Pure: reads no file, no environment and no command line. Where the values came from is only a word in an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from proxy.backend_url import BackendUrl, parse_backend_url
from proxy.options import OPTION_OF_KEY, OPTIONS, REQUIRED, Option

__all__ = ["BackendUrl", "Config", "ConfigError", "parse_backend_url", "parse_options"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything that `serve` was told; units stand in the names, None means off or none."""

    listen_port: int
    listen_host: str
    backends: tuple[BackendUrl, ...]
    allowed_hosts: frozenset[str]
    metrics_port: int
    metrics_host: str
    max_attempts: int
    connect_timeout_s: float
    read_timeout_s: float
    write_timeout_s: float
    response_timeout_s: float
    client_timeout_s: float
    max_request_body_bytes: int
    body_memory_bytes: int
    spool_dir: str
    max_head_bytes: int
    max_connections_per_backend: int
    max_idle: int
    idle_timeout_s: float
    max_waiting_requests: int
    queue_interval_s: float
    queue_stale_after_s: float
    queue_metrics_path: str | None
    engine: Literal["auto", "vllm", "sglang"]
    retry_after_s: int | None
    health_path: str
    health_interval_s: float
    health_timeout_s: float
    health_fall: int
    health_rise: int
    breaker_failure_threshold: int
    breaker_cooldown_s: float
    breaker_max_cooldown_s: float
    flush_head: bool
    retry_post: bool
    drain_timeout_s: float
    upstream_ca_file: str | None
    upstream_insecure: bool
    stats_file: str | None
    log_level: Literal["debug", "info", "warning", "error"]
    request_id_header: str | None
    admin_token_file: str | None = None
    admin_token: str | None = field(default=None, repr=False)

    def allows(self, backend: BackendUrl) -> bool:
        """Say whether a backend's host may be used: any, unless hosts were listed."""
        return not self.allowed_hosts or backend.host in self.allowed_hosts


@dataclass(frozen=True, slots=True)
class ConfigError:
    """One thing that is wrong: where it was said, under which key (empty: the source as a whole), and why."""

    source: str
    key: str
    reason: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.source, self.key, self.reason) if part)


def parse_options(values: Mapping[str, object], source: str) -> tuple[Config | None, list[ConfigError]]:
    """Return the configuration that TOML values give, or None, with every error found.

    `values` maps keys as a config file has them (`max_attempts`) to TOML values; `source` names them in errors. Files
    that values name are not looked at, so `admin_token` is None and `spool_dir` defaults to /tmp.
    """
    errors = [ConfigError(source, key, _unknown(key)) for key in values if key not in OPTION_OF_KEY]
    fields: dict[str, Any] = {}
    for option in OPTIONS:
        try:
            converted = _converted(option, values)
        except ValueError as error:
            errors.append(ConfigError(source, option.key, str(error)))
            continue
        fields[option.field] = converted
    if fields.get("response_timeout_s") is None:
        fields["response_timeout_s"] = fields.get("read_timeout_s")
    errors += [ConfigError(source, key, reason) for key, reason in _conflicts(fields, values)]
    return (None, errors) if errors else (Config(**fields), errors)


def nearest(word: str, words: list[str]) -> str:
    """Return the one of `words` (not empty) that is most like `word`."""
    # Imported here: only errors need it, and every module costs idle memory.
    from difflib import get_close_matches

    return get_close_matches(word, words, n=1, cutoff=0.0)[0]


def _converted(option: Option, values: Mapping[str, object]) -> object:
    if option.key in values:
        return option.kind.convert(values[option.key])
    if option.default is REQUIRED:
        raise ValueError(f"is required ({option.help})")
    if option.default is None:
        return None
    return option.kind.convert(option.default)


def _unknown(key: str) -> str:
    return f"unknown key, the nearest known one is {nearest(key.replace('-', '_'), list(OPTION_OF_KEY))}"


def _conflicts(fields: Mapping[str, Any], values: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return key and reason of each value that another value forbids."""
    found = []
    allowed = fields.get("allowed_hosts")
    if allowed:
        for backend in fields.get("backends", ()):
            if backend.host not in allowed:
                found.append(("backend", f"{backend.url!r}: the host {backend.host} is not among the allowed hosts"))
    cooldown, longest = fields.get("breaker_cooldown_s"), fields.get("breaker_max_cooldown_s")
    if cooldown is not None and longest is not None and cooldown > longest:
        key = "breaker_max_cooldown_s" if "breaker_max_cooldown_s" in values else "breaker_cooldown_s"
        found.append((key, f"the first cooldown ({cooldown:g} s) is longer than the longest ({longest:g} s)"))
    return found
