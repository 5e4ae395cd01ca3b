"""What log events hold."""

from __future__ import annotations

import orjson

from proxy.events import LEVELS, Event, RequestEntry, clipped, level_of, listening, second_text


def entry(path: str | None = "/v1", method: str | None = "GET") -> RequestEntry:
    return {
        "request_id": "r1",
        "method": method,
        "path": path,
        "final_status": 200,
        "attempts": 0,
        "failover": False,
        "complete": True,
        "bytes_in": 0,
        "bytes_out": 2,
        "total_s": 0.5,
        "upstreams": [],
    }


def test_the_listening_line_is_the_contract_s() -> None:
    line = orjson.dumps(listening("127.0.0.1:8000", "127.0.0.1:9000", 123, 8)).decode()
    assert line == '{"event":"listening","listen":"127.0.0.1:8000","metrics":"127.0.0.1:9000","pid":123,"backends":8}'


def test_a_timestamp_is_utc() -> None:
    assert second_text(0) == "1970-01-01T00:00:00"
    assert second_text(1795947300) == "2026-11-29T10:15:00"


def test_trouble_ranks_above_news() -> None:
    assert level_of(Event.REQUEST) == level_of("never heard of") == LEVELS["info"]
    assert level_of(Event.BACKEND_UNHEALTHY) == level_of(Event.BREAKER_OPEN) == LEVELS["warning"]
    assert level_of(Event.ERROR) == LEVELS["error"]


def test_what_the_client_chose_is_cut_to_the_logged_length() -> None:
    short = entry()
    assert clipped(short) is short
    assert clipped(entry(None, None)) == entry(None, None)
    assert clipped(entry("/" + "p" * 5000, "M" * 5000)) == entry("/" + "p" * 1023, "M" * 1024)
    assert clipped(entry("/" + "p" * 1023)) == entry("/" + "p" * 1023)
