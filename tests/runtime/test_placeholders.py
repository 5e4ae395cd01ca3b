"""Only `{identifier}` and `{endpoint.NAME}` are placeholders; every other brace stays as it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.placeholders import placeholders, substitute

VALUES = {"host": "10.0.0.2", "port": "18003", "endpoint.my-llama": "http://127.0.0.1:8000"}


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("--port={port}", "--port=18003"),
        ("{host}:{port}", "10.0.0.2:18003"),
        ("{endpoint.my-llama}/v1", "http://127.0.0.1:8000/v1"),
        ("{{port}}", "{port}"),
        ("{{endpoint.my-llama}}", "{endpoint.my-llama}"),
        ("{{port}} {port}", "{port} 18003"),
        ('{"port": {port}}', '{"port": 18003}'),
        ('{"a":{"b":{port}}}', '{"a":{"b":18003}}'),
        ('{"a": [1, {"b": "c"}]}', '{"a": [1, {"b": "c"}]}'),
        ("{}", "{}"),
        ("{0} {1.5} {a b} {a-b} { port } {a:b}", "{0} {1.5} {a b} {a-b} { port } {a:b}"),
        ("{other.thing} {endpoint.}", "{other.thing} {endpoint.}"),
        ("{{}} {{ {} }}", "{{}} {{ {} }}"),
        ("{{port}", "{18003"),
        ("{{{port}}}", "{{port}}"),
        ("${HOME} $port", "$10.0.0.2 $port"),
    ],
)
def test_substitution(text: str, result: str) -> None:
    assert substitute([text], {**VALUES, "HOME": "10.0.0.2"}) == [result]


def test_a_value_is_put_in_as_it_is() -> None:
    assert substitute(["{a}{b}"], {"a": "{b}", "b": "{{a}}"}) == ["{b}{{a}}"]


def test_names_are_listed_once_and_in_order() -> None:
    assert placeholders(["{b}", "x{a}{b}", "{{c}}", "{endpoint.x}"]) == ["b", "a", "endpoint.x"]


def test_a_name_without_a_value_raises() -> None:
    with pytest.raises(KeyError, match="nope"):
        substitute(["{nope}"], VALUES)


@given(st.lists(st.text(alphabet='{}ab."-_ 1:', max_size=20), max_size=3))
def test_what_is_listed_is_all_that_substitution_asks_for(command: list[str]) -> None:
    names = placeholders(command)
    assert len(substitute(command, dict.fromkeys(names, "x"))) == len(command)
    if not names and not any("{{" in argument for argument in command):
        assert substitute(command, {}) == command
