"""The bytes of OpenAI-shaped answers, as vLLM shapes them.

Pure: takes what was asked for and returns JSON and server-sent events. Knows nothing of sockets or time but `created`.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from typing import Any

from tools.fake.http import Request

MODEL = "fake-model"
TOKEN = " word"
CHAT_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"
DONE = b"data: [DONE]\n\n"

_STREAM = re.compile(rb'"stream"\s*:\s*true')
_MAX_TOKENS = re.compile(rb'"max_(?:completion_)?tokens"\s*:\s*(\d+)')


class BadBody(Exception):
    """The body is no request that the API knows."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What one client asked for."""

    id: str
    chat: bool
    stream: bool
    usage_wanted: bool
    tokens: int
    prompt_tokens: int
    model: str


def read_ask(request: Request, default_tokens: int, number: int) -> Ask:
    """Return what a request asks for; an `X-Request-Id` becomes part of the answer's id, as in vLLM. Raises BadBody."""
    fields = _body_fields(request)
    chat = request.path == CHAT_PATH
    tag = request.headers.get(b"x-request-id", b"").decode("latin-1") or f"{number:08x}"
    wanted = fields.get("max_completion_tokens") or fields.get("max_tokens")
    options = fields.get("stream_options")
    return Ask(
        id=("chatcmpl-" if chat else "cmpl-") + tag,
        chat=chat,
        stream=fields.get("stream") is True,
        usage_wanted=isinstance(options, dict) and options.get("include_usage") is True,
        tokens=wanted if isinstance(wanted, int) and 0 < wanted <= 1_000_000 else default_tokens,
        prompt_tokens=max(1, request.body_bytes // 4),
        model=str(fields.get("model") or MODEL),
    )


def _body_fields(request: Request) -> dict[str, Any]:
    if not request.whole:  # only the beginning of a long body was kept: look for the two fields that matter
        limit = _MAX_TOKENS.search(request.body)
        return {"stream": bool(_STREAM.search(request.body)), "max_tokens": int(limit[1]) if limit else None}
    try:
        fields = json.loads(request.body)
    except ValueError:
        raise BadBody("the body is not JSON") from None
    if not isinstance(fields, dict):
        raise BadBody("the body is not a JSON object")
    return fields


def unary_body(ask: Ask) -> bytes:
    """Return the whole answer."""
    text = TOKEN * ask.tokens
    choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": "length"}
    choice |= {"message": {"role": "assistant", "content": text}} if ask.chat else {"text": text}
    kind = "chat.completion" if ask.chat else "text_completion"
    return dump({**_common(ask, kind), "choices": [choice], "usage": _usage(ask)})


def stream_events(ask: Ask) -> tuple[bytes, bytes, bytes]:
    """Return (what opens the stream, the event of one token, what closes it)."""
    kind = "chat.completion.chunk" if ask.chat else "text_completion"
    common = _common(ask, kind)

    def event(choice: dict[str, Any] | None, **more: Any) -> bytes:
        choices = [] if choice is None else [{"index": 0, "logprobs": None, **choice}]
        return b"data: " + dump({**common, "choices": choices, **more}) + b"\n\n"

    if ask.chat:
        opening = event({"delta": {"role": "assistant", "content": ""}, "finish_reason": None})
        token = event({"delta": {"content": TOKEN}, "finish_reason": None})
        closing = event({"delta": {}, "finish_reason": "length"})
    else:
        opening = b""
        token = event({"text": TOKEN, "finish_reason": None})
        closing = event({"text": "", "finish_reason": "length"})
    if ask.usage_wanted:
        closing += event(None, usage=_usage(ask))
    return opening, token, closing + DONE


def models_body() -> bytes:
    """Return the answer of /v1/models."""
    model = {"id": MODEL, "object": "model", "created": int(time.time()), "owned_by": "fake", "max_model_len": 32768}
    return dump({"object": "list", "data": [model]})


def error_body(status: int, message: str, kind: str) -> bytes:
    """Return an error in the OpenAI shape."""
    return dump({"error": {"message": message, "type": kind, "param": None, "code": status}})


def dump(value: object) -> bytes:
    """Return compact JSON."""
    return json.dumps(value, separators=(",", ":")).encode()


def _common(ask: Ask, kind: str) -> dict[str, Any]:
    return {"id": ask.id, "object": kind, "created": int(time.time()), "model": ask.model}


def _usage(ask: Ask) -> dict[str, int]:
    total = ask.prompt_tokens + ask.tokens
    return {"prompt_tokens": ask.prompt_tokens, "completion_tokens": ask.tokens, "total_tokens": total}
