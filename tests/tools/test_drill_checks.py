"""Each promise of a drill is broken by the evidence against it, and by nothing else."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tools.drilling.checks import PROMISES, State, judge
from tools.drilling.evidence import ClientFacts, Evidence, ProxyFacts, ReplicaFacts
from tools.drilling.spec import Holds
from tools.launch import Metrics

NONE = Metrics("")
HOLDS = Holds(statuses=(200, 429), admission=True, seen=("failovers_total", "replicas/requests"))


def attempt(backend: str, outcome: object) -> dict[str, Any]:
    return {"backend": backend, "outcome": outcome}


def logged(number: int, *attempts: dict[str, Any], status: int = 200, complete: bool = True) -> dict[str, Any]:
    return {
        "request_id": f"r{number}", "final_status": status, "complete": complete, "attempts": len(attempts),
        "failover": len(attempts) > 1, "upstreams": list(attempts),
    }  # fmt: skip


class Case:
    """Ten requests on two replicas: seven plain, one failed over from a 503, one refused and brought again by the
    client.
    """

    def __init__(self) -> None:
        self.client: dict[str, Any] = {
            "requests": 9, "lost": 0, "tries": {("ok", 200): 9, ("http_error", 429): 1}, "bare_refusals": 0,
            "looked_whole": 0, "resent": 0, "reasons": {}, "limits": (16, 12, 14),
        }  # fmt: skip
        self.log = [logged(number, attempt("a:1", 200)) for number in range(4)]
        self.log += [logged(number, attempt("b:2", 200)) for number in range(4, 8)]
        self.log += [logged(8, attempt("a:1", 503), attempt("b:2", 200)), logged(9, status=429)]
        self.metrics: dict[str, float] = {
            "requests_total": 10,
            'responses_total{code="200"}': 9,
            'responses_total{code="429"}': 1,
            'upstream_attempts_total{backend="a:1"}': 5,
            'upstream_attempts_total{backend="b:2"}': 5,
            'retries_total{reason="http_503"}': 1,
            "failovers_total": 1,
            "active_requests": 0,
            'upstream_connections{backend="a:1",state="active"}': 0,
            "log_events_dropped_total": 0,
        }
        self.received = {"a:1": 5, "b:2": 5}
        self.working = 0
        self.counted_whole = True
        self.peak: int | None = 40 * 2**20
        self.exit_code: int | None = 0
        self.strangers: list[str] = []
        self.with_log = True
        self.with_proxy = True

    def evidence(self) -> Evidence:
        after = Metrics("".join(f"dd_proxy_{name} {value}\n" for name, value in self.metrics.items()))
        log = self.log if self.with_log else None
        proxy = ProxyFacts(after, NONE, log, self.strangers, self.peak, self.exit_code) if self.with_proxy else None
        replicas = [
            ReplicaFacts(name, {"requests": count}, self.working, self.counted_whole)
            for name, count in self.received.items()
        ]
        return Evidence(ClientFacts(**self.client), proxy, replicas)

    def verdicts(self, holds: Holds = HOLDS) -> dict[str, State]:
        return {verdict.promise: verdict.state for verdict in judge(holds, self.evidence())}

    def broken(self, holds: Holds = HOLDS) -> set[str]:
        return {promise for promise, state in self.verdicts(holds).items() if state is State.BROKEN}


def test_consistent_evidence_holds_every_promise() -> None:
    assert Case().verdicts() == dict.fromkeys(PROMISES, State.HELD)


def no_requests(case: Case) -> None:
    case.client["requests"] = 0


def one_lost(case: Case) -> None:
    case.client["lost"] = 1


def short_answer(case: Case) -> None:
    case.client["tries"] = {("ok", 200): 8, ("short", 200): 1, ("http_error", 429): 1}
    case.client["looked_whole"] = 1


def cut_that_was_hidden(case: Case) -> None:
    case.client["tries"] = {("ok", 200): 8, ("truncated", 200): 1, ("http_error", 429): 1}
    case.client["looked_whole"] = 1
    case.log[0]["complete"] = False


def proxy_calls_it_cut(case: Case) -> None:
    case.log[0]["complete"] = False


def four_attempts(case: Case) -> None:
    case.log[8]["attempts"] = 4


def same_backend_twice(case: Case) -> None:
    case.log[8]["upstreams"] = [attempt("b:2", 503), attempt("b:2", 200)]
    case.metrics['upstream_attempts_total{backend="a:1"}'] = 4
    case.metrics['upstream_attempts_total{backend="b:2"}'] = 6
    case.received = {"a:1": 4, "b:2": 6}


def strange_status(case: Case) -> None:
    case.client["tries"] = {("ok", 200): 9, ("http_error", 502): 1}
    case.metrics['responses_total{code="502"}'] = case.metrics.pop('responses_total{code="429"}')


def bare_refusal(case: Case) -> None:
    case.client["bare_refusals"] = 1


def never_reduced(case: Case) -> None:
    case.client["limits"] = (16, 16, 20)


def never_recovered(case: Case) -> None:
    case.client["limits"] = (16, 12, 12)


def no_aimd(case: Case) -> None:
    case.client["limits"] = None


def large(case: Case) -> None:
    case.peak = 97 * 2**20


def request_uncounted(case: Case) -> None:
    case.metrics["requests_total"] = 9
    case.log.pop()


def request_unlogged(case: Case) -> None:
    case.log.pop()


def status_differs(case: Case) -> None:
    case.metrics['responses_total{code="429"}'] = 0
    case.metrics['responses_total{code="503"}'] = 1


def departure_that_was_none(case: Case) -> None:
    case.metrics['responses_total{code="429"}'] = 0
    case.metrics['responses_total{code="499"}'] = 1


def attempt_uncounted(case: Case) -> None:
    case.metrics['upstream_attempts_total{backend="a:1"}'] = 4


def replica_got_more(case: Case) -> None:
    case.received["a:1"] = 6


def replica_got_less(case: Case) -> None:
    case.received["b:2"] = 4


def retry_uncounted(case: Case) -> None:
    case.metrics['retries_total{reason="http_503"}'] = 0


def failover_uncounted(case: Case) -> None:
    case.metrics["failovers_total"] = 2


def request_left(case: Case) -> None:
    case.metrics["active_requests"] = 1


def lease_left(case: Case) -> None:
    case.metrics['upstream_connections{backend="a:1",state="active"}'] = 1


def generation_left(case: Case) -> None:
    case.working = 1


def bad_exit(case: Case) -> None:
    case.exit_code = 1


def traceback(case: Case) -> None:
    case.strangers = ["Traceback (most recent call last):"]


def never_met(case: Case) -> None:
    case.metrics.pop("failovers_total")
    case.log[8]["failover"] = False


@pytest.mark.parametrize(
    ("spoil", "promise"),
    [
        (no_requests, "nothing lost"),
        (one_lost, "nothing lost"),
        (cut_that_was_hidden, "no cut answer taken for whole"),
        (short_answer, "no cut answer taken for whole"),
        (proxy_calls_it_cut, "no cut answer taken for whole"),
        (four_attempts, "no attempt beyond the limit"),
        (same_backend_twice, "no attempt beyond the limit"),
        (strange_status, "only the expected statuses"),
        (bare_refusal, "refusals say when to come back"),
        (never_reduced, "admission reduced and recovered"),
        (never_recovered, "admission reduced and recovered"),
        (no_aimd, "admission reduced and recovered"),
        (large, "memory bounded"),
        (request_uncounted, "requests counted alike"),
        (request_unlogged, "requests counted alike"),
        (status_differs, "requests counted alike"),
        (departure_that_was_none, "requests counted alike"),
        (attempt_uncounted, "attempts counted alike"),
        (replica_got_more, "attempts counted alike"),
        (replica_got_less, "attempts counted alike"),
        (retry_uncounted, "retries counted alike"),
        (failover_uncounted, "retries counted alike"),
        (request_left, "nothing left behind"),
        (lease_left, "nothing left behind"),
        (generation_left, "nothing left behind"),
        (bad_exit, "the proxy ended cleanly"),
        (traceback, "the proxy ended cleanly"),
        (never_met, "the drill met what it is about"),
    ],
)
def test_evidence_against_a_promise_breaks_it_and_no_other(spoil: Callable[[Case], None], promise: str) -> None:
    case = Case()
    spoil(case)
    assert case.broken() == {promise}


def test_far_more_requests_at_replicas_than_the_limit_allows_are_found_without_a_log() -> None:
    case = Case()
    case.received = {"a:1": 31, "b:2": 0}
    assert "no attempt beyond the limit" in case.broken()


def test_retries_beyond_what_the_drill_allows_break_it() -> None:
    assert Case().broken(Holds(statuses=(200, 429), max_retries=0)) == {"retries counted alike"}
    assert not Case().broken(Holds(statuses=(200, 429), max_retries=1))


def test_a_client_that_left_may_count_as_200_or_499() -> None:
    case = Case()
    case.client["tries"] = {("ok", 200): 8, ("left", 0): 1, ("left", 200): 1}
    for seen, unseen in ((8, 2), (9, 1), (10, 0)):
        case.metrics['responses_total{code="200"}'] = seen
        case.metrics['responses_total{code="499"}'] = unseen
        case.metrics['responses_total{code="429"}'] = 0
        case.log[9]["final_status"] = 499
        assert "requests counted alike" not in case.broken()


def test_an_attempt_that_never_reached_its_replica_is_not_expected_there() -> None:
    case = Case()
    case.log[8]["upstreams"][0]["outcome"] = "connect_error"
    case.metrics['retries_total{reason="connect_error"}'] = case.metrics.pop('retries_total{reason="http_503"}')
    case.received["a:1"] = 4
    assert not case.broken()
    case.log[8]["upstreams"][0]["outcome"] = "closed"
    case.metrics['retries_total{reason="closed"}'] = case.metrics.pop('retries_total{reason="connect_error"}')
    for received in (4, 5):
        case.received["a:1"] = received
        assert not case.broken()
    case.received["a:1"] = 3
    assert case.broken() == {"attempts counted alike"}


def test_the_counts_of_a_killed_replica_are_not_compared_and_that_is_said() -> None:
    case = Case()
    case.counted_whole = False
    case.received["a:1"] = 0
    assert not case.broken()
    said = {verdict.promise: verdict.said for verdict in judge(HOLDS, case.evidence())}
    assert "2 killed" in said["attempts counted alike"]


def test_missing_evidence_skips_a_promise_and_says_so_but_never_passes_it() -> None:
    case = Case()
    case.with_log, case.peak, case.exit_code = False, None, None
    verdicts = case.verdicts()
    assert verdicts["no attempt beyond the limit"] is State.SKIPPED
    assert verdicts["memory bounded"] is State.SKIPPED
    assert verdicts["the proxy ended cleanly"] is State.SKIPPED
    assert verdicts["requests counted alike"] is State.HELD
    case.with_proxy = False
    verdicts = case.verdicts()
    assert verdicts["requests counted alike"] is State.SKIPPED
    assert verdicts["nothing lost"] is State.HELD


def test_a_log_with_dropped_events_is_no_evidence() -> None:
    case = Case()
    case.metrics["log_events_dropped_total"] = 3
    assert case.verdicts()["no attempt beyond the limit"] is State.SKIPPED


def test_counts_from_before_the_drill_do_not_matter() -> None:
    case = Case()
    before = copy.deepcopy(case)
    text = "".join(f"dd_proxy_{name} {value}\n" for name, value in before.metrics.items())
    grown = Case()
    grown.metrics = {name: value * 2 for name, value in grown.metrics.items()}
    evidence = grown.evidence()
    assert evidence.proxy is not None
    proxy = ProxyFacts(evidence.proxy.after, Metrics(text), case.log, (), 2**20, 0)
    verdicts = judge(HOLDS, Evidence(evidence.client, proxy, evidence.replicas))
    assert [verdict.promise for verdict in verdicts if verdict.state is State.BROKEN] == []
