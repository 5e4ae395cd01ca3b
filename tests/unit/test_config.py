"""The configuration record: defaults, errors, and what values forbid each other."""

from __future__ import annotations

import ast
import dataclasses
import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

import proxy
from proxy.config import BackendUrl, Config, ConfigError, parse_backend_url, parse_options
from proxy.options import OPTION_OF_KEY, OPTIONS

MINIMAL: dict[str, object] = {"listen_port": 0, "backend": ["http://127.0.0.1:9"]}


def config_of(**values: object) -> Config:
    config, errors = parse_options({**MINIMAL, **values}, "test")
    assert config is not None, [str(error) for error in errors]
    assert errors == []
    return config


def errors_of(**values: object) -> dict[str, str]:
    config, errors = parse_options({**MINIMAL, **values}, "x.toml")
    assert config is None
    assert all(error.source == "x.toml" for error in errors)
    return {error.key: error.reason for error in errors}


def test_the_defaults_are_those_of_the_contract() -> None:
    assert config_of() == Config(
        listen_port=0,
        listen_host="127.0.0.1",
        backends=(BackendUrl("http", "127.0.0.1", 9),),
        allowed_hosts=frozenset(),
        metrics_port=0,
        metrics_host="127.0.0.1",
        max_attempts=3,
        connect_timeout_s=5.0,
        read_timeout_s=3600.0,
        write_timeout_s=3600.0,
        response_timeout_s=3600.0,
        client_timeout_s=65.0,
        max_request_body_bytes=100 * 2**20,
        body_memory_bytes=2**20,
        spool_dir="/tmp",
        max_head_bytes=64 * 2**10,
        max_connections_per_backend=1024,
        max_idle=256,
        idle_timeout_s=65.0,
        max_waiting_requests=128,
        queue_interval_s=0.1,
        queue_stale_after_s=1.0,
        queue_metrics_path="/metrics",
        engine="auto",
        retry_after_s=1,
        health_path="/health",
        health_interval_s=1.0,
        health_timeout_s=5.0,
        health_fall=2,
        health_rise=1,
        breaker_failure_threshold=3,
        breaker_cooldown_s=5.0,
        breaker_max_cooldown_s=60.0,
        flush_head=False,
        retry_post=True,
        drain_timeout_s=10.0,
        upstream_ca_file=None,
        upstream_insecure=False,
        stats_file=None,
        log_level="info",
        request_id_header=None,
    )


def test_every_option_is_a_field_and_every_field_an_option() -> None:
    fields = {field.name for field in dataclasses.fields(Config)}
    assert {option.field for option in OPTIONS} | {"admin_token"} == fields
    assert len(OPTION_OF_KEY) == len(OPTIONS)


def test_values_arrive_in_their_units() -> None:
    config = config_of(
        connect_timeout=2.5,
        max_request_body="1KiB",
        max_head=1024,
        queue_metrics="off",
        retry_after_seconds="none",
        no_retry_post=True,
        flush_head=True,
        breaker_cooldown_s=1,
        allowed_host=["[::1]", "127.0.0.1", "Node1"],
        listen_host="[::]",
        request_id_header="X-Request-Id",
    )
    assert (config.connect_timeout_s, config.max_request_body_bytes, config.max_head_bytes) == (2.5, 1024, 1024)
    assert config.queue_metrics_path is None
    assert config.retry_after_s is None
    assert (config.retry_post, config.flush_head) == (False, True)
    assert config.breaker_cooldown_s == 1.0
    assert config.allowed_hosts == {"::1", "127.0.0.1", "node1"}
    assert config.listen_host == "::"
    assert config.request_id_header == "X-Request-Id"


def test_the_response_timeout_follows_the_read_timeout_unless_given() -> None:
    assert config_of(read_timeout=7).response_timeout_s == 7.0
    assert config_of(read_timeout=7, response_timeout=3).response_timeout_s == 3.0


def test_all_errors_are_told_at_once() -> None:
    errors = errors_of(
        max_attempts="two",
        idle_timeot=3,
        max_idle=-4,
        connect_timeout=float("nan"),
        max_head="1",
        flush_head=1,
        log_level="loud",
    )
    assert set(errors) == {
        "max_attempts",
        "idle_timeot",
        "max_idle",
        "connect_timeout",
        "max_head",
        "flush_head",
        "log_level",
    }
    assert "idle_timeout" in errors["idle_timeot"]


def test_what_is_required_is_asked_for() -> None:
    config, errors = parse_options({}, "x.toml")
    assert config is None
    assert [error.key for error in errors] == ["listen_port", "backend"]
    assert "at least one" in errors_of(backend=[])["backend"]


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("max_atempts", "max_attempts"),
        ("idle_timeot", "idle_timeout"),
        ("helth_path", "health_path"),
        ("max-attempts", "max_attempts"),
        ("backends", "backend"),
    ],
)
def test_an_unknown_key_names_the_nearest_one(key: str, nearest: str) -> None:
    assert errors_of(**{key: 3})[key].endswith(f" {nearest}")


def test_an_unlike_key_still_names_some_key() -> None:
    assert errors_of(zzz=1)["zzz"].rsplit(" ", 1)[1] in OPTION_OF_KEY


def test_a_backend_twice_is_an_error_even_under_another_scheme_or_spelling() -> None:
    for second in ("http://127.0.0.1:9", "https://127.0.0.1:9"):
        assert "127.0.0.1:9 is given twice" in errors_of(backend=["http://127.0.0.1:9", second])["backend"]
    assert "twice" in errors_of(backend=["http://[::1]:9", "http://[0:0::1]:9"])["backend"]
    assert "twice" in errors_of(backend=["http://A:9", "http://a:9"])["backend"]


def test_a_backend_on_a_host_that_is_not_allowed_is_refused() -> None:
    assert "127.0.0.1" in errors_of(allowed_host=["node1"])["backend"]
    config = config_of(allowed_host=["127.0.0.1", "node1"])
    assert config.allows(parse_backend_url("https://NODE1:1"))
    assert not config.allows(parse_backend_url("http://node2:9"))
    assert config_of().allows(parse_backend_url("http://node2:9"))


def test_the_longest_cooldown_is_not_shorter_than_the_first() -> None:
    assert config_of(breaker_cooldown_s=60).breaker_max_cooldown_s == 60.0
    assert set(errors_of(breaker_cooldown_s=61)) == {"breaker_cooldown_s"}
    assert set(errors_of(breaker_max_cooldown_s=4)) == {"breaker_max_cooldown_s"}


def test_an_error_is_one_line_with_source_key_and_reason() -> None:
    assert str(ConfigError("x.toml", "max_idle", "-4 is too low")) == "x.toml: max_idle: -4 is too low"
    assert str(ConfigError("x.toml", "", "cannot be read")) == "x.toml: cannot be read"


def test_the_token_is_not_shown() -> None:
    assert "s3cret" not in repr(dataclasses.replace(config_of(), admin_token="s3cret"))


TOML = st.recursive(
    st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from([option.key for option in OPTIONS]) | st.text(max_size=12), TOML, max_size=8))
def test_any_file_gives_a_configuration_or_errors_and_never_both(values: dict[str, object]) -> None:
    config, errors = parse_options(values, "f")
    assert (config is None) == bool(errors)
    assert all(error.reason for error in errors)


def test_the_pure_modules_of_the_configuration_import_no_shell() -> None:
    forbidden = {"asyncio", "h11", "prometheus_client", "socket", "ssl", "os", "sys", "orjson", "threading"}
    folder = pathlib.Path(proxy.__file__).parent
    for name in ("config", "options", "kinds", "backend_url", "units", "events", "help"):
        for node in ast.walk(ast.parse((folder / f"{name}.py").read_text())):
            if isinstance(node, ast.Import):
                assert not forbidden & {alias.name.partition(".")[0] for alias in node.names}, name
            elif isinstance(node, ast.ImportFrom):
                assert (node.module or "").partition(".")[0] not in forbidden, name
