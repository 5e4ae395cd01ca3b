"""Kinds of option values: what a value must be, in the words that a person is told. Pure; knows no option by name.

A value is what TOML holds: a number, a string, a bool or a list. A kind turns it into what the configuration keeps, or
raises ValueError with the reason. On the command line everything is text: `from_text` makes of it what the file would
hold, and never fails, so that both ways meet the same checks and the same words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from proxy.backend_url import BackendUrl, parse_backend_url, parse_host
from proxy.units import parse_size

MAX_WHOLE = 2**31 - 1
MAX_SECONDS = 1e9  # 31 years; a deadline beyond it overflows the clocks of event loops
MAX_SIZE = 2**50

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110 section 5.6.2
_FRAMING_FIELDS = re.compile(
    r"connection|content-length|host|keep-alive|proxy-(authenticate|authorization|connection)|te|trailer|"
    r"transfer-encoding|upgrade",
    re.IGNORECASE,
)


class Kind(Protocol):
    """What the values of an option must be."""

    def from_text(self, text: str) -> object:
        """Return what a TOML file would hold for this command line text."""

    def convert(self, value: object) -> object:
        """Return what the configuration keeps; raises ValueError with the reason."""


class _Text:
    """A kind whose values a TOML file holds as strings, just as the command line does."""

    __slots__ = ()

    def from_text(self, text: str) -> object:
        """Return the text as it is."""
        return text


def show(value: object) -> str:
    """Return a value as an error shows it: on one line and at most 80 characters."""
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
    return text if len(text) <= 80 else text[:79] + "…"


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number from `minimum` to `maximum`; the string `none_word`, when given, stands for None."""

    minimum: int = 0
    maximum: int = MAX_WHOLE
    none_word: str | None = None

    def from_text(self, text: str) -> object:
        return int(text) if re.fullmatch(r"[+-]?\d{1,18}", text, re.ASCII) else text

    def convert(self, value: object) -> int | None:
        if self.none_word is not None and value == self.none_word:
            return None
        top = "" if self.maximum == MAX_WHOLE else f" to {self.maximum}"
        wanted = f"a whole number from {self.minimum}{top}" if top else f"a whole number, {self.minimum} or more"
        if self.none_word is not None:
            wanted += f', or "{self.none_word}"'
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"{show(value)} is not {wanted}{_quotes(self, value)}")
        if not self.minimum <= value <= self.maximum:
            raise ValueError(f"{show(value)} is out of range: it must be {wanted}")
        return value


@dataclass(frozen=True, slots=True)
class Seconds:
    """A time in seconds, as a float; zero only where `zero` allows it."""

    zero: bool = False

    def from_text(self, text: str) -> object:
        try:
            return float(text)
        except ValueError:
            return text

    def convert(self, value: object) -> float:
        wanted = "a number of seconds, " + ("0 or more" if self.zero else "more than 0")
        if not isinstance(value, (int, float)) or isinstance(value, bool) or value != value:
            raise ValueError(f"{show(value)} is not {wanted}{_quotes(self, value)}")
        if value < 0 or (value == 0 and not self.zero):
            raise ValueError(f"{value:g} is out of range: it must be {wanted}")
        if value > MAX_SECONDS:
            raise ValueError(f"{show(value)} is out of range: at most {MAX_SECONDS:.0f} seconds")
        return float(value)


@dataclass(frozen=True, slots=True)
class Size(_Text):
    """A size in bytes, from a number or a string with a unit."""

    minimum: int = 0
    maximum: int = MAX_SIZE

    def convert(self, value: object) -> int:
        if isinstance(value, str):
            try:
                size = parse_size(value)
            except ValueError as error:
                raise ValueError(f"{show(value)} {error}") from None
        elif isinstance(value, int) and not isinstance(value, bool):
            size = value
        else:
            raise ValueError(f'{show(value)} is not a size such as 65536, "64KiB" or "100MiB"')
        if not self.minimum <= size <= self.maximum:
            raise ValueError(f"{show(value)} is out of range: it must be from {self.minimum} to {self.maximum} bytes")
        return size


@dataclass(frozen=True, slots=True)
class Flag(_Text):
    """A switch that is off unless given; `inverted` where the configuration keeps the opposite (no_retry_post)."""

    inverted: bool = False

    def convert(self, value: object) -> bool:
        if not isinstance(value, bool):
            raise ValueError(f"{show(value)} is not true or false")
        return value is not self.inverted


@dataclass(frozen=True, slots=True)
class Choice(_Text):
    """One of a few words."""

    words: tuple[str, ...]

    def convert(self, value: object) -> str:
        if not isinstance(value, str) or value not in self.words:
            raise ValueError(f"{show(value)} is not one of {', '.join(self.words)}")
        return value


@dataclass(frozen=True, slots=True)
class FilePath(_Text):
    """The name of a file or folder; whether it is there is for others to see."""

    def convert(self, value: object) -> str:
        if not isinstance(value, str) or not value or "\0" in value:
            raise ValueError(f"{show(value)} is not the name of a file or folder")
        return value


@dataclass(frozen=True, slots=True)
class HttpPath(_Text):
    """A path to request, with an optional query; the word `off`, where allowed, stands for None."""

    off: bool = False

    def convert(self, value: object) -> str | None:
        if self.off and value == "off":
            return None
        if not isinstance(value, str) or not re.fullmatch(r"/[!-\"$-~]*", value):
            off = ', or "off"' if self.off else ""
            raise ValueError(f"{show(value)} is not a path: start it with /, use ASCII, no blanks and no #{off}")
        return value


@dataclass(frozen=True, slots=True)
class FieldName(_Text):
    """The name of a header field that the proxy may add; the word `none` stands for None."""

    def convert(self, value: object) -> str | None:
        if value == "none":
            return None
        if not isinstance(value, str) or not _TOKEN.fullmatch(value):
            raise ValueError(f'{show(value)} is not a header field name, or "none"')
        if _FRAMING_FIELDS.fullmatch(value):
            raise ValueError(f"{show(value)} belongs to the message framing; choose another field")
        return value


@dataclass(frozen=True, slots=True)
class Host(_Text):
    """A host name or an IP address to bind."""

    def convert(self, value: object) -> str:
        return _host(value)


@dataclass(frozen=True, slots=True)
class HostList(_Text):
    """Host names or IP addresses, none or more."""

    def convert(self, value: object) -> frozenset[str]:
        return frozenset(_host(item) for item in _items(value, '["node1", "node2"]'))


@dataclass(frozen=True, slots=True)
class BackendList(_Text):
    """Backend URLs, one or more, no host and port twice."""

    def convert(self, value: object) -> tuple[BackendUrl, ...]:
        example = '["http://node1:8001", "http://node2:8001"]'
        found: dict[str, BackendUrl] = {}
        for item in _items(value, example):
            if not isinstance(item, str):
                raise ValueError(f"{show(item)} is not a URL in quotes")
            backend = parse_backend_url(item)
            if backend.authority in found:
                raise ValueError(f"{backend.authority} is given twice")
            found[backend.authority] = backend
        if not found:
            raise ValueError("at least one is needed, for example http://node1:8001")
        return tuple(found.values())


def _quotes(kind: Whole | Seconds, value: object) -> str:
    """Return the hint for a number that a file holds in quotes."""
    in_quotes = isinstance(value, str) and not isinstance(kind.from_text(value), str)
    return " (write it without quotes)" if in_quotes else ""


def _items(value: object, example: str) -> list[object]:
    if not isinstance(value, list):
        raise ValueError(f"{show(value)} is not a list; write {example}")
    return value


def _host(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{show(value)} is not a host name or address in quotes")
    try:
        return parse_host(value)
    except ValueError as error:
        raise ValueError(f"{show(value)}: {error}") from None
