"""Say in words what happened to a request, from its log event and who was left out of each choice.

Pure text, for people: the status page, `dd-proxy top` and `dd-proxy why` show the same words. Refuses to know where the
event came from; unknown fields and words are passed over or shown as they are, so that an older event still reads well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from proxy.events import Choice

Event = Mapping[str, Any]

LISTED = 8

_FAILED = {
    "connect_error": "{backend} could not be reached",
    "connect_timeout": "{backend} accepted no connection within {time}",
    "response_timeout": "{backend} gave no answer within {time}",
    "read_timeout": "{backend} began an answer and fell silent, given up after {time}",
    "stale_connection": "the idle connection to {backend} proved to be closed",
    "protocol_error": "{backend} sent what is not proper HTTP after {time}",
    "closed": "{backend} closed the connection without an answer after {time}",
    "cancelled": "the client left while {backend} worked, after {time}",
}

# Of an attempt whose answer the client had begun to get.
_BROKEN_OFF = {
    "closed": "{backend} began an answer and broke it off after {time}",
    "protocol_error": "{backend} began an answer and sent what is not proper HTTP after {time}",
}

_OWN_ANSWERS = {
    400: "the request was malformed",
    408: "the request did not arrive in time",
    413: "the body was larger than allowed",
    414: "the request line was longer than allowed",
    429: "every backend that could serve was overloaded or at its connection limit",
    431: "the head was larger than allowed",
    501: "the method or transfer coding is not supported",
    502: "no backend gave a usable answer",
    503: "there was no backend to choose, the body could not be stored, or the proxy was draining",
    504: "the last backend gave no answer in time",
    505: "the HTTP version is not supported",
}

# The words of balancer.Fleet.excluded, in the order in which a choice rules backends out.
LEFT_OUT = {
    "draining": "draining",
    "tried": "tried already for this request",
    "connection_limit": "at the connection limit",
    "unhealthy": "failing its health probes",
    "breaker": "behind an open breaker",
    "queue_depth": "with too deep a queue",
    "retry_after": "resting after a 429",
}


def duration(seconds: object) -> str:
    """Write a time in seconds for people: `0.4 ms`, `12 ms`, `3.2 s`, `2 min 5 s`."""
    if not isinstance(seconds, int | float):
        return "an unknown time"
    if seconds < 0.001:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 99.5:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"


def sentence(event: Event) -> str:
    """Tell one request in one sentence, for example `u3:1 answered 429 after 12 ms, u5:1 served it`."""
    attempts: Sequence[Event] = event.get("upstreams") or ()
    if not attempts and event.get("final_status") == 499:
        return "the client left before a backend was chosen"
    if not attempts:
        return f"the proxy itself answered {event.get('final_status')}: {_own_answer(event)}"
    parts = [_failed_attempt(attempt) for attempt in attempts[:-1]]
    return ", ".join([*parts, _last_attempt(attempts[-1], event)])


def explain(event: Event, choices: Sequence[Choice | None] | None, backends: Sequence[str]) -> list[str]:
    """Tell one request line by line: what it was, each choice with who was left out and why, and how it ended.

    `backends` are the ids known now, which is how many there were to choose from unless the fleet has changed since.
    """
    attempts: Sequence[Event] = event.get("upstreams") or ()
    what = " ".join(str(event[key]) for key in ("method", "path") if event.get(key)) or "an unreadable request"
    lines = [
        f"Request {event.get('request_id')}: {what}",
        f"Ended {event.get('ts')} with status {event.get('final_status')} after {duration(event.get('total_s'))}, "
        f"{'complete' if event.get('complete') else 'not complete'}; "
        f"{event.get('bytes_in')} bytes came in and {event.get('bytes_out')} went out, heads included.",
        f"Backends now: {_some(backends) or 'none'}",
    ]
    rounds = max(len(attempts), len(choices or ()))
    for index in range(rounds):
        choice = choices[index] if choices is not None and index < len(choices) else None
        chosen = attempts[index].get("backend") if index < len(attempts) else None
        lines.append(f"{_ordinal(index)} choice: {_repeated(attempts, index) or _left_out(choice, chosen)}")
        if index < len(attempts):
            lines.append(f"  attempt {index + 1}: {_attempt_details(attempts[index])}")
        else:
            lines.append("  nobody was left to try")
    lines.append(f"In short: {sentence(event)}.")
    return lines


def _status_of(attempt: Event) -> int | None:
    word = str(attempt.get("outcome")).removeprefix("http_")
    return int(word) if word.isdecimal() else None


def _failed_attempt(attempt: Event, *, begun: bool = False) -> str:
    backend, status, outcome = attempt.get("backend"), _status_of(attempt), str(attempt.get("outcome"))
    if status is not None:
        return f"{backend} answered {status} after {_answer_time(attempt)}"
    pattern = _FAILED.get(outcome, "{backend} failed (" + outcome + ")")
    if begun:
        pattern = _BROKEN_OFF.get(outcome, pattern)
    return pattern.format(backend=backend, time=duration(attempt.get("total_s")))


def _last_attempt(attempt: Event, event: Event) -> str:
    backend, status, final = attempt.get("backend"), _status_of(attempt), event.get("final_status")
    begun = event.get("complete") is False and final != 499
    if status is None:
        told = _failed_attempt(attempt, begun=begun)
        return told if begun or final == 499 else f"{told}, and the client got {final}"
    if event.get("complete") is False:
        seconds = duration(attempt.get("total_s"))
        return f"{backend} answered {status}, and the client left, or was cut off by the proxy, after {seconds}"
    if status != final:
        return f"{_failed_attempt(attempt)}, and the client got {final}"
    return f"{backend} served it" if status < 400 else f"{_failed_attempt(attempt)}, which was passed on"


def _answer_time(attempt: Event) -> str:
    header_s = attempt.get("header_s")
    return duration(attempt.get("total_s") if header_s is None else header_s)


def _own_answer(event: Event) -> str:
    return _OWN_ANSWERS.get(event.get("final_status") or 0, "no backend was asked")


def _ordinal(index: int) -> str:
    return ("First", "Second", "Third")[index] if index < 3 else f"{index + 1}th"


def _some(ids: Sequence[str]) -> str:
    """List backends, and only count those beyond the first few."""
    rest = len(ids) - LISTED
    return ", ".join(ids) if rest <= 1 else f"{', '.join(ids[:LISTED])} and {rest} more"


def _repeated(attempts: Sequence[Event], index: int) -> str:
    """Say how an attempt came about that needed no choice: after a dead idle connection (section 3, rule 5)."""
    if not 0 < index < len(attempts) or attempts[index - 1].get("outcome") != "stale_connection":
        return ""
    same = attempts[index].get("backend") == attempts[index - 1].get("backend")
    return "the same backend again, on a new connection" if same else ""


def _left_out(choice: Choice | None, chosen: object) -> str:
    """Name who was left out, each backend once; the one that was chosen all the same (fail open) is told apart."""
    parts, named = [], {chosen}
    for reason, ids in (choice or {}).items():
        fresh = [backend for backend in ids if backend not in named]
        named.update(fresh)
        if fresh:
            parts.append(f"{_some(fresh)} {LEFT_OUT.get(reason, reason)}")
    told = f"left out: {'; '.join(parts)}" if parts else "nobody else was left out" if choice else ""
    against = [LEFT_OUT.get(reason, reason) for reason, ids in (choice or {}).items() if chosen in ids]
    if against:
        told += f"; {chosen} was chosen although {' and '.join(against)}, since nobody better was left"
    return told or "every backend could be chosen"


def _attempt_details(attempt: Event) -> str:
    connection = "idle connection reused" if attempt.get("reused") else "new connection"
    if not attempt.get("reused") and attempt.get("connect_s") is not None:
        connection += f" in {duration(attempt['connect_s'])}"
    times = [connection]
    if attempt.get("header_s") is not None:
        times.append(f"head after {duration(attempt['header_s'])}")
    times.append(f"{duration(attempt.get('total_s'))} in all")
    status = _status_of(attempt)
    outcome = f"status {status}" if status is not None else str(attempt.get("outcome"))
    return f"{attempt.get('backend')}: {outcome} ({', '.join(times)})"
