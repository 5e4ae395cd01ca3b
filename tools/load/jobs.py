"""What each request carries: sizes from distributions or a trace, and the finished bytes of the request.

Everything random comes from one seeded generator, so a seed means the same load again. Knows no clock and no socket;
reading the trace file is its only I/O.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from tools.load.client import PLAIN, Manners

MAX_TOKENS = 1_000_000
_TEXT = (
    "the a replica answers every request with tokens from its queue while other work waits for memory on one card and "
    "many users read what was written before they ask again about weather music history plants numbers maps or trains"
)


@dataclass(frozen=True)
class Sizes:
    """A distribution of token counts: `kind` and its parameters, as `parse_sizes` reads them."""

    kind: str
    parameters: tuple[float, ...]

    def draw(self, rng: random.Random) -> int:
        """Return one count, at least 1."""
        a, *rest = self.parameters
        match self.kind:
            case "uniform":
                value = rng.uniform(a, rest[0])
            case "normal":
                value = rng.gauss(a, rest[0])
            case "lognormal":
                value = a * math.exp(rng.gauss(0.0, rest[0]))
            case "exponential":
                value = rng.expovariate(1.0 / a)
            case _:
                value = a
        return min(max(round(value), 1), MAX_TOKENS)


_PARAMETERS = {"fixed": 1, "uniform": 2, "normal": 2, "lognormal": 2, "exponential": 1}


def parse_sizes(text: str) -> Sizes:
    """Read `128`, `uniform:64:512`, `normal:256:64`, `lognormal:200:0.8` (median, sigma) or `exponential:200` (mean).

    Raises ValueError with a reason.
    """
    kind, *parts = text.split(":") if ":" in text else ("fixed", text)
    if kind not in _PARAMETERS:
        raise ValueError(f"unknown distribution {kind!r}: one of {', '.join(_PARAMETERS)}")
    if len(parts) != _PARAMETERS[kind]:
        raise ValueError(f"{kind} takes {_PARAMETERS[kind]} number(s), not {len(parts)}")
    try:
        values = tuple(float(part) for part in parts)
    except ValueError:
        raise ValueError(f"{text!r} holds something that is not a number") from None
    if not all(math.isfinite(value) and value >= 0 for value in values) or values[0] <= 0:
        raise ValueError(f"{text!r} needs finite numbers above zero")
    return Sizes(kind, values)


@dataclass(frozen=True)
class Line:
    """One request of a trace. `at` is its offset in seconds, when the trace has time stamps."""

    body: dict[str, Any]
    tokens_in: int
    tokens_out: int
    stream: bool | None
    at: float | None


_INPUT_KEYS = ("input_tokens", "prompt_tokens", "input_length", "prompt_len")
_OUTPUT_KEYS = ("output_tokens", "max_tokens", "output_length", "completion_tokens", "output_len")


def read_trace(path: Path) -> list[Line]:
    """Read a JSONL trace: `prompt` or `messages` or an input length, an output length, and optionally `stream` and a
    time.

    `timestamp_s` counts seconds; `timestamp` milliseconds, as published serving traces have it. Raises ValueError
    naming file and line, OSError when it cannot be read.
    """
    lines = []
    for number, text in enumerate(path.read_bytes().splitlines(), 1):
        if not text.strip():
            continue
        try:
            entry = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise ValueError(f"{path}:{number}: not JSON: {error}") from None
        if not isinstance(entry, dict):
            raise ValueError(f"{path}:{number}: a line must be a JSON object")
        try:
            lines.append(_line(entry))
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}") from None
    if not lines:
        raise ValueError(f"{path}: no requests in it")
    return lines


def _number(entry: dict[str, Any], keys: tuple[str, ...]) -> int | None:
    for key in keys:
        if key in entry:
            value = entry[key]
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= MAX_TOKENS:
                raise ValueError(f"{key} must be a number of tokens")
            return int(value)
    return None


def _line(entry: dict[str, Any]) -> Line:
    body: dict[str, Any] = {key: entry[key] for key in ("prompt", "messages") if key in entry}
    tokens_in = _number(entry, _INPUT_KEYS)
    if tokens_in is None:
        if not body:
            raise ValueError("needs prompt, messages or an input length")
        tokens_in = sum(len(text.split()) for text in _texts(body))
    at: float | None = None
    for key, scale in (("timestamp_s", 1.0), ("timestamp", 0.001)):
        if key in entry:
            if not isinstance(entry[key], int | float):
                raise ValueError(f"{key} must be a number")
            at = float(entry[key]) * scale
            break
    stream = entry.get("stream")
    return Line(body, tokens_in, _number(entry, _OUTPUT_KEYS) or 128, None if stream is None else bool(stream), at)


def _texts(body: dict[str, Any]) -> list[str]:
    messages = body.get("messages")
    turns = messages if isinstance(messages, list) else []
    texts = [body.get("prompt"), *(turn.get("content") for turn in turns if isinstance(turn, dict))]
    return [text for text in texts if isinstance(text, str)]


@dataclass(frozen=True)
class Job:
    """One request, ready to be sent."""

    request: bytes
    tokens_in: int
    tokens_out: int
    stream: bool
    manners: Manners
    at: float | None = None


@dataclass(frozen=True)
class Template:
    """What all requests of a run have in common."""

    authority: str
    path: str
    model: str = "model"
    method: str = "POST"
    headers: tuple[str, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)
    inputs: Sizes = Sizes("fixed", (128.0,))
    outputs: Sizes = Sizes("fixed", (64.0,))
    stream_share: float = 0.0
    timeout: float = 600.0
    leave: tuple[float, float, float] | None = None
    slow: tuple[float, float] | None = None

    @property
    def expects_done(self) -> bool:
        """Whether a stream of this path must end with `data: [DONE]`."""
        return self.path.partition("?")[0].endswith("/completions")


class Jobs:
    """Make the requests of a run, one after the other, for ever (a trace starts again at its end)."""

    def __init__(self, template: Template, trace: list[Line] | None = None, seed: int = 0) -> None:
        self.template = template
        self.trace = trace
        self.rng = random.Random(seed)
        self.made = 0
        self._text = " ".join(self.rng.choices(_TEXT.split(), k=20_000))
        self._starts = [0] + [place + 1 for place, sign in enumerate(self._text) if sign == " "]
        lines = [f"{template.method} {template.path} HTTP/1.1", f"Host: {template.authority}", "Accept: */*"]
        lines += ["Content-Type: application/json"] if template.method == "POST" else []
        self._head = ("\r\n".join([*lines, *template.headers]) + "\r\n").encode("latin-1")
        self._chat = template.path.partition("?")[0].endswith("/chat/completions")

    def __iter__(self) -> Iterator[Job]:
        return self

    def __next__(self) -> Job:
        template, rng = self.template, self.rng
        line = self.trace[self.made % len(self.trace)] if self.trace else None
        self.made += 1
        tokens_in = line.tokens_in if line else template.inputs.draw(rng)
        tokens_out = line.tokens_out if line else template.outputs.draw(rng)
        stream = line.stream if line and line.stream is not None else rng.random() < template.stream_share
        request = self._head + b"\r\n"
        if template.method == "POST":
            body = self._body(line, tokens_in, tokens_out, stream)
            request = b"%sContent-Length: %d\r\n\r\n%s" % (self._head, len(body), body)
        return Job(request, tokens_in, tokens_out, stream, self._manners(), line.at if line else None)

    def _body(self, line: Line | None, tokens_in: int, tokens_out: int, stream: bool) -> bytes:
        fields: dict[str, Any] = {"model": self.template.model, "max_tokens": tokens_out, "stream": stream}
        if stream:
            fields["stream_options"] = {"include_usage": True}
        fields.update(self.template.extra)
        if line and line.body:
            fields.update(line.body)
        elif self._chat:
            fields["messages"] = [{"role": "user", "content": self._prompt(tokens_in)}]
        else:
            fields["prompt"] = self._prompt(tokens_in)
        return orjson.dumps(fields)

    def _prompt(self, words: int) -> str:
        """Return text of so many words, about one token each, starting anywhere, so that no prefix cache helps."""
        starts = self._starts
        begin = int(self.rng.random() * len(starts))
        pieces = []
        while words > 0:
            end = min(begin + words, len(starts))
            stop = starts[end] - 1 if end < len(starts) else len(self._text)
            pieces.append(self._text[starts[begin] : stop])
            words -= end - begin
            begin = 0
        return " ".join(pieces)

    def _manners(self) -> Manners:
        template = self.template
        if template.leave is None and template.slow is None:
            return PLAIN if template.timeout == PLAIN.timeout else Manners(template.timeout)
        leave = None
        if template.leave and self.rng.random() < template.leave[0]:
            leave = self.rng.uniform(template.leave[1], template.leave[2])
        slow = template.slow[1] if template.slow and self.rng.random() < template.slow[0] else 0.0
        return Manners(template.timeout, leave, slow)
