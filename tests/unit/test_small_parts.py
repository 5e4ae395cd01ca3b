"""Health verdicts, counters, the proxy's own answers, final counts, and the end that signals ask for."""

from __future__ import annotations

import itertools
import json
import socket
from pathlib import Path

import pytest

from proxy import replies
from proxy.balancer import Fleet
from proxy.counters import Counters, Histogram
from proxy.outcome import Rejection
from proxy.server import PortTaken, Stop, address_of, listen
from proxy.stats import final_stats, peak_rss_bytes, write_stats
from proxy.upstream import Health
from tests.unit.kit import complete_responses, make_config

# -------------------------------------------------------------------------------------------------------------- health


@pytest.mark.parametrize("good", [True, False])
def test_the_first_probe_decides_alone(good: bool) -> None:
    health = Health(3, 3)
    assert health.record(good)
    assert health.healthy is good


@pytest.mark.parametrize(("fall", "rise"), [(1, 1), (2, 1), (3, 2)])
def test_only_probes_in_a_row_change_the_verdict(fall: int, rise: int) -> None:
    for probes in itertools.product([True, False], repeat=7):
        check_verdicts(fall, rise, probes)


def check_verdicts(fall: int, rise: int, probes: tuple[bool, ...]) -> None:
    health, verdict, streak = Health(fall, rise), None, 0
    for good in probes:
        streak = streak + 1 if good is not verdict else 0
        changes = verdict is None or streak >= (rise if good else fall) > 0
        changes = changes and good is not verdict
        assert health.record(good) is changes
        if changes:
            verdict, streak = good, 0
        assert health.healthy is verdict


# ------------------------------------------------------------------------------------------------------------ counters


def test_a_histogram_counts_each_observation_once_in_its_bucket() -> None:
    histogram = Histogram((0.1, 1.0))
    for seconds in (0.0, 0.1, 0.100001, 1.0, 2.0, 100.0):
        histogram.observe(seconds)
    assert histogram.counts == [2, 2, 2]
    assert histogram.total == pytest.approx(103.200001)


def test_every_rejection_stands_in_the_counters_from_the_start() -> None:
    assert set(Counters().rejected) == set(Rejection)
    assert set(Counters().rejected.values()) == {0}


# ------------------------------------------------------------------------------------------------------------- replies


@pytest.mark.parametrize("status", [400, 408, 413, 414, 429, 431, 501, 505, 502, 503, 504])
@pytest.mark.parametrize("close", [False, True])
def test_an_error_has_the_openai_shape(status: int, close: bool) -> None:
    raw = replies.error(status, "what went wrong", close=close, retry_after_s=7)
    [(code, body)] = complete_responses(raw, ended=False)
    error = json.loads(body)["error"]
    assert (code, error["code"], error["message"]) == (status, status, "what went wrong")
    assert isinstance(error["type"], str)
    assert b"\r\nContent-Type: application/json\r\n" in raw
    assert b"\r\nRetry-After: 7\r\n" in raw
    assert (b"\r\nConnection: close\r\n" in raw) is close


def test_the_error_to_a_head_request_has_the_length_but_no_body() -> None:
    whole, head = (replies.error(502, "no", close=False, bodyless=bodyless) for bodyless in (False, True))
    assert head == whole[: whole.index(b"\r\n\r\n") + 4]


def test_no_message_speaks_as_of_a_permanent_refusal() -> None:
    """Data Designer takes a 429 for permanent when its body speaks of an exceeded or insufficient quota."""
    assert set(replies.MESSAGES) >= set(Rejection) - {Rejection.BAD_REQUEST, Rejection.UNSUPPORTED}
    for message in [*replies.MESSAGES.values(), replies.NO_RESPONSE, replies.TIMED_OUT]:
        assert not {"quota", "exceeded", "insufficient"} & set(message.lower().split())


@pytest.mark.parametrize(("ok", "status"), [(True, 200), (False, 503)])
def test_the_health_answer(ok: bool, status: int) -> None:
    raw = replies.health(ok, 3, 8, close=False, bodyless=False)
    [(code, body)] = complete_responses(raw, ended=False)
    assert code == status
    expected = {"status": "ok" if ok else "unavailable", "backends_ready": 3, "backends": 8}
    assert json.loads(body) == expected
    assert replies.health(ok, 3, 8, close=False, bodyless=True) == raw[: raw.index(b"\r\n\r\n") + 4]


# --------------------------------------------------------------------------------------------------------------- stats


def test_the_final_counts_leave_zeros_out_and_keep_removed_backends() -> None:
    counters, fleet = Counters(), Fleet(make_config(2))
    counters.requests, counters.failovers = 7, 2
    counters.responses[200] += 5
    counters.responses[404] += 0
    counters.retries["http_503"] += 1
    counters.timeouts["read"] += 1
    for backend in fleet:
        fleet.lease(backend, 0.0)
    stats = final_stats(counters, fleet, 10)
    assert (stats["requests"], stats["attempts"], stats["failovers"]) == (7, 12, 2)
    assert stats["responses"] == {"200": 5}
    assert (stats["retries"], stats["timeouts"], stats["incomplete"]) == ({"http_503": 1}, {"read": 1}, {})
    assert stats["cpu_s"] > 0
    assert stats["peak_rss_bytes"] == pytest.approx(peak_rss_bytes(), rel=0.2)


def test_the_stats_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "stats.json"
    write_stats(str(path), {"requests": 1})
    assert json.loads(path.read_text()) == {"requests": 1}
    with pytest.raises(OSError):
        write_stats(str(tmp_path / "none" / "stats.json"), {})
    assert [p.name for p in tmp_path.iterdir()] == ["stats.json"]


# -------------------------------------------------------------------------------------------------------------- server


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_a_port_is_picked_and_a_taken_one_is_named(host: str) -> None:
    try:
        first = listen(host, 0)
    except PortTaken as e:
        pytest.skip(f"this machine has no such address: {e}")
    with first:
        assert first.getsockname()[1] > 0
        with pytest.raises(PortTaken, match=r"cannot listen on .*: the port is taken: choose another, or 0"):
            listen(host, first.getsockname()[1])


def test_an_address_that_is_not_of_this_machine_is_named() -> None:
    with pytest.raises(PortTaken, match=r"cannot listen on 203\.0\.113\.1:0: "):
        listen("203.0.113.1", 0)


def test_an_ipv6_address_is_told_in_brackets() -> None:
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    try:
        sock = listen("::1", 0)
    except PortTaken as e:
        pytest.skip(f"this machine has no IPv6 loopback: {e}")
    with sock:
        assert address_of(sock) == f"[::1]:{sock.getsockname()[1]}"


@pytest.mark.parametrize(
    ("signals", "drains", "at_once", "code"),
    [
        (["terminate"], True, False, 0),
        (["terminate", "terminate"], True, False, 0),
        (["interrupt"], True, False, 130),
        (["interrupt", "interrupt"], True, True, 130),
        (["terminate", "interrupt"], True, True, 130),
        (["interrupt", "terminate"], True, False, 130),
        (["quit"], True, True, 131),
        (["terminate", "quit"], True, True, 131),
        (["interrupt", "quit"], True, True, 131),
        (["quit", "interrupt"], True, True, 131),
    ],
)
async def test_what_the_signals_ask_for(signals: list[str], drains: bool, at_once: bool, code: int) -> None:
    stop = Stop()
    for name in signals:
        getattr(stop, name)()
    assert (stop.drain.is_set(), stop.now.is_set(), stop.code) == (drains, at_once, code)
