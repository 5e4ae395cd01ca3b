"""Sizes, hosts, backend URLs and the kinds of option values."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy import kinds
from proxy.backend_url import BackendUrl, parse_backend_url, parse_host, redact_url
from proxy.units import parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("65536", 65536),
        ("1B", 1),
        ("64KiB", 64 * 1024),
        ("64kib", 64 * 1024),
        ("100 MiB", 100 * 2**20),
        ("2GiB", 2 * 2**30),
        ("1TiB", 2**40),
        ("1kB", 1000),
        ("1MB", 10**6),
        ("1.5MiB", 3 * 2**19),
        ("0.1KiB", 102),
    ],
)
def test_a_size_is_a_number_with_a_unit(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        "lots",
        "-1",
        "+1",
        "1e3",
        "1 elephant",
        "1K",
        "1M",
        "1.MiB",
        ".5MiB",
        "1  MiB",
        " 1",
        "1 ",
        "١",
        "nan",
        "1MiB\n",
    ],
)
def test_what_is_not_a_size_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a size|unknown unit"):
        parse_size(text)


@given(
    st.integers(0, 10**12), st.sampled_from([("KiB", 2**10), ("MiB", 2**20), ("GiB", 2**30), ("MB", 10**6), ("", 1)])
)
def test_every_whole_number_of_units_is_exact(number: int, unit: tuple[str, int]) -> None:
    assert parse_size(f"{number}{unit[0]}") == number * unit[1]


@given(st.text())
def test_a_size_parses_or_raises_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert parse_size(text) >= 0


@pytest.mark.parametrize(
    ("text", "backend", "authority"),
    [
        ("http://127.0.0.1:9", BackendUrl("http", "127.0.0.1", 9), "127.0.0.1:9"),
        ("https://Node-1.Example:08001", BackendUrl("https", "node-1.example", 8001), "node-1.example:8001"),
        ("HTTP://gpu_3:65535", BackendUrl("http", "gpu_3", 65535), "gpu_3:65535"),
        ("http://[::1]:9", BackendUrl("http", "::1", 9), "[::1]:9"),
        ("http://[2001:DB8:0:0::1]:80", BackendUrl("http", "2001:db8::1", 80), "[2001:db8::1]:80"),
    ],
)
def test_a_backend_url_has_one_normal_form(text: str, backend: BackendUrl, authority: str) -> None:
    parsed = parse_backend_url(text)
    assert parsed == backend
    assert parsed.authority == authority
    assert parsed.url == f"{backend.scheme}://{authority}"
    assert parse_backend_url(parsed.url) == parsed


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("127.0.0.1:9", "scheme is missing"),
        ("ftp://h:9", "scheme must be"),
        ("http://h:9/", "path"),
        ("http://h:9/v1", "path"),
        ("http://h:9\\v1", "path"),
        ("http://h:9?x=1", "query"),
        ("http://h:9?", "query"),
        ("http://h:9#f", "fragment"),
        ("http://u:p@h:9", "user"),
        ("http://u@h:9", "user"),
        ("http://h", "port is missing"),
        ("http://h:", "port is missing"),
        ("http://h:x", "port must be"),
        ("http://h:0", "port must be"),
        ("http://h:65536", "port must be"),
        ("http://h:-1", "port must be"),
        ("http://h:+80", "port must be"),
        ("http://h:٨٠", "port must be"),
        ("http://:9", "host is missing"),
        ("http://", "host is missing"),
        ("http://h :9", "blanks"),
        (" http://h:9", "blanks"),
        ("http://h:9\n", "blanks"),
        ("http://h\x00:9", "control"),
        ("http://::1:9", "brackets"),
        ("http://[::1:9", "brackets"),
        ("http://a[::1]:9", "brackets"),
        ("http://[::1]x:9", "brackets"),
        ("http://[zz::]:9", "IPv6"),
        ("http://[fe80::1%25eth0]:9", "IPv6"),
        ("http://1.2.3:9", "IPv4"),
        ("http://1.2.3.256:9", "IPv4"),
        ("http://01.2.3.4:9", "IPv4"),
        ("http://-h:9", "neither"),
        ("http://a..b:9", "neither"),
        ("http://h,i:9", "neither"),
        ("http://bücher:9", "ASCII"),
    ],
)
def test_anything_but_scheme_host_and_port_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_backend_url(text)


def test_a_refused_url_shows_neither_password_nor_query() -> None:
    for text in (
        "http://user:SECRET@h:9",
        "http://h:9?key=SECRET",
        "http://h:9#SECRET",
        "user:SECRET@h",
        "http://u:SECRET@u:SECRET@h",
    ):
        with pytest.raises(ValueError) as caught:
            parse_backend_url(text)
        assert "SECRET" not in str(caught.value)
    assert redact_url("http://u:p@h:9/x?k=v") == "http://***@h:9/x?…"


@given(st.text(max_size=60) | st.from_regex(r"https?://[\[\]a-z0-9.:@/?#%-]{0,30}", fullmatch=True))
def test_a_url_parses_to_something_that_parses_again_or_raises_value_error(text: str) -> None:
    try:
        backend = parse_backend_url(text)
    except ValueError as error:
        assert "\n" not in str(error)
    else:
        assert parse_backend_url(backend.url) == backend
        assert 1 <= backend.port <= 65535


@given(st.ip_addresses())
def test_every_ip_address_is_a_host_in_its_compressed_form(address: object) -> None:
    assert parse_host(str(address).upper()) == str(address)


def test_only_finite_numbers_of_seconds_in_range_pass() -> None:
    kind = kinds.Seconds()
    assert kind.convert(2) == 2.0
    assert kind.convert(0.1) == 0.1
    assert kinds.Seconds(zero=True).convert(0) == 0.0
    for value in (0, -1, -0.5, math.nan, math.inf, -math.inf, 1e10, True, "5", None, [1], {"s": 1}):
        with pytest.raises(ValueError, match=r"seconds"):
            kind.convert(value)


def test_only_whole_numbers_in_range_pass() -> None:
    kind = kinds.Whole(1, 10)
    assert kind.convert(10) == 10
    refused: tuple[object, ...] = (0, 11, -3, 3.0, math.nan, True, "3", None, [])
    for value in refused:
        with pytest.raises(ValueError, match="a whole number from 1 to 10"):
            kind.convert(value)
    assert kinds.Whole(none_word="none").convert("none") is None
    with pytest.raises(ValueError, match="none"):
        kinds.Whole(none_word="none").convert("never")


def test_a_number_in_quotes_is_told_to_stand_without_them() -> None:
    with pytest.raises(ValueError, match="without quotes"):
        kinds.Whole().convert("3")
    with pytest.raises(ValueError) as caught:
        kinds.Whole().convert("many")
    assert "quotes" not in str(caught.value)


@given(st.text(max_size=20))
def test_text_of_the_command_line_never_raises_before_it_is_checked(text: str) -> None:
    for kind in (kinds.Whole(), kinds.Seconds(), kinds.Size()):
        value = kind.from_text(text)
        try:
            kind.convert(value)
        except ValueError as error:
            assert str(error)


@given(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.lists(st.text(), max_size=2)
    | st.dictionaries(st.text(), st.none())
)
def test_every_kind_takes_any_toml_value_or_says_in_one_line_why_not(value: object) -> None:
    every: list[kinds.Kind] = [
        kinds.Whole(),
        kinds.Seconds(),
        kinds.Size(),
        kinds.Flag(),
        kinds.Choice(("a", "b")),
        kinds.FilePath(),
        kinds.HttpPath(off=True),
        kinds.FieldName(),
        kinds.Host(),
        kinds.HostList(),
        kinds.BackendList(),
    ]
    for kind in every:
        try:
            kind.convert(value)
        except ValueError as error:
            assert str(error).isprintable()
            assert len(str(error)) < 300


def test_a_path_to_request_is_plain_ascii_from_the_root() -> None:
    assert kinds.HttpPath().convert("/health?deep=1") == "/health?deep=1"
    assert kinds.HttpPath(off=True).convert("off") is None
    for value in ("health", "", "/a b", "/a#b", "/ä", "/a\r\nX: y", "off", 3):
        with pytest.raises(ValueError, match="not a path"):
            kinds.HttpPath().convert(value)


def test_the_request_id_field_cannot_break_the_framing() -> None:
    assert kinds.FieldName().convert("X-Request-Id") == "X-Request-Id"
    assert kinds.FieldName().convert("none") is None
    for value in ("", "a b", "a:b", "a\r\nb", "Content-Length", "transfer-encoding", "CONNECTION", "te", 3):
        with pytest.raises(ValueError):
            kinds.FieldName().convert(value)
