"""The judgement on a drill: each promise held or broken, with the figures that show it.

Pure: evidence in, verdicts out. A promise that cannot be judged for want of evidence is skipped and says why; it never
passes silently.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tools.drilling.evidence import ClientFacts, Evidence, ProxyFacts, ReplicaFacts
from tools.drilling.spec import Holds

GONE = ("left", "timeout", "unfinished")  # the client ended these, so the other side may count them differently
UNREACHED = ("connect_error", "connect_timeout")  # the replica never read these
UNCERTAIN = ("closed", "protocol_error", "stale_connection")  # the replica may have read these before it broke off


class State(enum.Enum):
    """How a promise fared."""

    HELD = "held"
    BROKEN = "broken"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Verdict:
    """One promise and how it fared, in words."""

    promise: str
    state: State
    said: str


class Unjudged(Exception):
    """There is no evidence for this promise; the text says what is missing."""


def judge(holds: Holds, evidence: Evidence) -> list[Verdict]:
    """Return a verdict on each promise."""
    verdicts = []
    for promise, check in PROMISES.items():
        try:
            faults, said = check(holds, evidence)
        except Unjudged as missing:
            verdicts.append(Verdict(promise, State.SKIPPED, str(missing)))
            continue
        if said or faults:
            verdicts.append(Verdict(promise, State.BROKEN if faults else State.HELD, "; ".join(faults) or said))
    return verdicts


Finding = tuple[list[str], str]
Check = Callable[[Holds, Evidence], Finding]


def _proxy(evidence: Evidence) -> ProxyFacts:
    if evidence.proxy is None:
        raise Unjudged("no side port to ask")
    return evidence.proxy


def _log(evidence: Evidence) -> list[Mapping[str, Any]]:
    proxy = _proxy(evidence)
    if proxy.requests is None:
        raise Unjudged("the log of the endpoint is not at hand")
    dropped = proxy.total("log_events_dropped_total")
    if dropped:
        raise Unjudged(f"the log is not whole: {dropped} events were dropped")
    return list(proxy.requests)


def _listed(counts: Mapping[Any, int]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in sorted(counts.items(), key=str)) or "none"


def nothing_lost(holds: Holds, evidence: Evidence) -> Finding:
    """Every request ended well for its client, client retries included."""
    client = evidence.client
    said = f"{client.requests} requests, {client.lost} lost"
    if client.requests == 0:
        return ["no request was sent"], said
    if client.lost > holds.lost:
        worst = ", ".join(f"{reason} ({count})" for reason, count in list(client.reasons.items())[:3])
        return [f"{client.lost} of {client.requests} requests were lost: {worst or 'see the outcomes'}"], said
    return [], said


def nothing_cut_taken_for_whole(holds: Holds, evidence: Evidence) -> Finding:
    """What a client took for whole had every token, and the proxy knew it as complete; and the other way round."""
    client = evidence.client
    short, whole = client.by_outcome("short"), client.by_outcome("ok")
    hidden = client.looked_whole
    faults = [f"{hidden} answers looked whole and lacked tokens or their end"] if hidden else []
    if evidence.proxy is None or evidence.proxy.requests is None:
        return faults, f"{whole} whole answers, each with every token"
    complete = sum(bool(entry["complete"]) and entry["final_status"] == 200 for entry in _log(evidence))
    gone = client.by_outcome(*GONE)
    if not whole <= complete + short <= whole + short + gone:
        faults.append(f"clients had {whole} whole answers, the proxy calls {complete} complete")
    return faults, f"{whole} whole answers, each with every token; the proxy calls {complete} complete"


def no_attempt_beyond(holds: Holds, evidence: Evidence) -> Finding:
    """No request cost more attempts than allowed, and none tried a backend twice but after a stale connection."""
    faults: list[str] = []
    most = 0
    for entry in _log(evidence):
        attempts = entry["upstreams"]
        most = max(most, len(attempts), int(entry["attempts"]))
        fresh = [attempt["backend"] for attempt in attempts if attempt["outcome"] != "stale_connection"]
        if len(set(fresh)) < len(fresh) and len(faults) < 3:
            faults.append(f"request {entry['request_id']} tried a backend twice: {', '.join(fresh)}")
    if most > holds.max_attempts:
        faults.append(f"a request cost {most} attempts, {holds.max_attempts} are allowed")
    received = sum(replica.counts["requests"] for replica in evidence.replicas)
    tried = evidence.client.tried + evidence.client.resent
    if received > holds.max_attempts * tried:
        faults.append(f"replicas received {received} requests for {tried} of the clients")
    return (
        faults,
        f"most attempts for one request: {most}; {received} requests reached replicas for {tried} of the clients",
    )


def statuses_allowed(holds: Holds, evidence: Evidence) -> Finding:
    """Clients saw no status but those that the drill expects."""
    seen = {status: count for status, count in evidence.client.statuses().items() if status}
    strange = {status: count for status, count in seen.items() if status not in holds.statuses}
    return ([f"unexpected answers: {_listed(strange)}"] if strange else []), f"answers by status: {_listed(seen)}"


def refusals_say_when(holds: Holds, evidence: Evidence) -> Finding:
    """Every 429 carried Retry-After."""
    refused = evidence.client.statuses().get(429, 0)
    if not refused:
        return [], ""
    bare = evidence.client.bare_refusals
    return (
        [f"{bare} of {refused} refusals had no Retry-After"] if bare else []
    ), f"{refused} refusals, each with Retry-After"


def admission_recovered(holds: Holds, evidence: Evidence) -> Finding:
    """The AIMD client was slowed down by refusals and came back afterwards."""
    if not holds.admission:
        return [], ""
    if evidence.client.limits is None:
        return ["no AIMD client took part"], ""
    first, lowest, last = evidence.client.limits
    faults = []
    if lowest >= first:
        faults.append(f"the limit was never reduced: it began at {first} and was never below {lowest}")
    if last <= lowest:
        faults.append(f"the limit did not recover: lowest {lowest}, at the end {last}")
    return faults, f"limit {first}, down to {lowest}, back to {last}"


def memory_bounded(holds: Holds, evidence: Evidence) -> Finding:
    """The proxy's resident memory stayed below the limit."""
    peak = _proxy(evidence).peak_rss_bytes
    if peak is None:
        raise Unjudged("the process of the endpoint is not at hand")
    mib = peak / 2**20
    said = f"peak RSS {mib:.1f} MiB, limit {holds.max_rss_mib} MiB"
    return ([said] if mib > holds.max_rss_mib else []), said


def requests_agree(holds: Holds, evidence: Evidence) -> Finding:
    """Clients, proxy and log count the same requests, and the same answers by status."""
    proxy, client = _proxy(evidence), evidence.client
    faults = []
    counted = proxy.total("requests_total")
    if counted != client.tried:
        faults.append(f"clients sent {client.tried} requests, the proxy counts {counted}")
    answered = proxy.by("responses_total", "code")
    faults += _statuses_differ(client, answered)
    if proxy.requests is not None:
        logged = len(_log(evidence))
        if logged != counted:
            faults.append(f"the log holds {logged} requests, the counter says {counted}")
    return faults, f"{counted} requests, {_listed(answered)}, the same for clients, counters and log"


def _statuses_differ(client: ClientFacts, answered: Mapping[str, int]) -> Iterable[str]:
    """A client that leaves may or may not have seen the status that was sent: only sums are comparable there."""
    seen = client.statuses()
    gone = client.by_outcome(*GONE)
    none = seen.pop(0, 0)
    theirs = {int(code): count for code, count in answered.items()}
    unseen = theirs.pop(499, 0)
    if gone:
        mine = seen.pop(200, 0) + none
        whole = theirs.pop(200, 0) + unseen
        if mine != whole:
            yield f"clients had {mine} answers that were 200 or none, the proxy counts {whole} (200 and 499)"
    elif unseen:
        yield f"the proxy counts {unseen} clients that left, and none did"
    if seen != theirs:
        yield f"clients saw {_listed(seen)}; the proxy counts {_listed(theirs)}"


def attempts_agree(holds: Holds, evidence: Evidence) -> Finding:
    """The proxy's attempts at each replica are those in its log, and the requests that the replica received."""
    proxy = _proxy(evidence)
    logged = proxy.outcomes()
    _log(evidence)
    attempts = proxy.by("upstream_attempts_total", "backend")
    in_log = {backend: sum(outcomes.values()) for backend, outcomes in logged.items()}
    faults = []
    if attempts != in_log:
        faults.append(f"attempts by counter {_listed(attempts)}; by log {_listed(in_log)}")
    unknown = 0
    for replica in evidence.replicas:
        if not replica.complete:
            unknown += 1
            continue
        faults += _received_differ(replica, attempts.get(replica.backend, 0), logged.get(replica.backend, Counter()))
    killed = f"; {unknown} killed, its counts gone with it" if unknown else ""
    total = sum(attempts.values())
    return (
        faults,
        f"{total} attempts by counter and log, matched by {len(evidence.replicas) - unknown} replicas{killed}",
    )


def _received_differ(replica: ReplicaFacts, attempts: int, outcomes: Mapping[str, int]) -> Iterable[str]:
    most = attempts - sum(outcomes.get(name, 0) for name in UNREACHED)
    doubtful = sum(count for name, count in outcomes.items() if name in UNCERTAIN or not _is_answer(name))
    least = max(most - doubtful, 0)
    received = replica.counts["requests"]
    if not least <= received <= most:
        expected = str(most) if least == most else f"{least} to {most}"
        yield f"{replica.backend} received {received}, the proxy's attempts say {expected} ({_listed(outcomes)})"


def _is_answer(outcome: str) -> bool:
    return outcome.isdigit() or outcome.startswith("http_")


def retries_agree(holds: Holds, evidence: Evidence) -> Finding:
    """Retries by reason are those in the log, and no more than the drill allows."""
    proxy = _proxy(evidence)
    counted = proxy.by("retries_total", "reason")
    faults = []
    total = sum(counted.values())
    if holds.max_retries is not None and total > holds.max_retries:
        faults.append(f"{total} retries, {holds.max_retries} are allowed: {_listed(counted)}")
    if proxy.requests is not None:
        logged: Counter[str] = Counter()
        for entry in _log(evidence):
            logged.update(_reason(attempt["outcome"]) for attempt in entry["upstreams"][:-1])
        if dict(logged) != counted:
            faults.append(f"retries by counter {_listed(counted)}; by log {_listed(logged)}")
        failovers = sum(bool(entry["failover"]) for entry in _log(evidence))
        if failovers != proxy.total("failovers_total"):
            faults.append(f"failovers by counter {proxy.total('failovers_total')}, by log {failovers}")
    return faults, f"retries: {_listed(counted)}"


def _reason(outcome: object) -> str:
    return f"http_{outcome}" if str(outcome).isdigit() else str(outcome)


def nothing_left_behind(holds: Holds, evidence: Evidence) -> Finding:
    """When the clients are gone, no request, no lease and no generation is left."""
    proxy = _proxy(evidence)
    faults = []
    active = round(proxy.after.total("active_requests"))
    leased = round(proxy.after.total("upstream_connections", state="active"))
    if active:
        faults.append(f"the proxy still counts {active} active requests")
    if leased:
        faults.append(f"{leased} upstream connections are still leased")
    faults += [f"{replica.backend} still works on {replica.active}" for replica in evidence.replicas if replica.active]
    return faults, "no active request, no lease, no generation"


def clean_end(holds: Holds, evidence: Evidence) -> Finding:
    """The proxy ended with code 0 and wrote nothing but its log events."""
    proxy = _proxy(evidence)
    if proxy.exit_code is None:
        raise Unjudged("the endpoint goes on running")
    faults = [f"exit code {proxy.exit_code}"] if proxy.exit_code else []
    if proxy.strangers:
        faults.append(f"{len(proxy.strangers)} error lines on stderr, the first: {proxy.strangers[0][:200]}")
    return faults, "exit code 0, no error on stderr"


def drill_bit(holds: Holds, evidence: Evidence) -> Finding:
    """What the drill is about did happen; a drill that met nothing proves nothing."""
    if not holds.seen:
        return [], ""
    proxy = _proxy(evidence)
    counts = {name: _seen(name, proxy, evidence) for name in holds.seen}
    missing = [name for name, count in counts.items() if not count]
    return ([f"never seen: {', '.join(missing)}"] if missing else []), f"seen {_listed(counts)}"


def _seen(name: str, proxy: ProxyFacts, evidence: Evidence) -> int:
    """Read `NAME_total`, `NAME_total/label=value` of the proxy, or `replicas/COUNT`."""
    counter, _, label = name.partition("/")
    if counter == "replicas":
        return sum(replica.counts[label] for replica in evidence.replicas)
    key, _, value = label.partition("=")
    return proxy.total(counter, **({key: value} if key else {}))


PROMISES: dict[str, Check] = {
    "nothing lost": nothing_lost,
    "no cut answer taken for whole": nothing_cut_taken_for_whole,
    "no attempt beyond the limit": no_attempt_beyond,
    "only the expected statuses": statuses_allowed,
    "refusals say when to come back": refusals_say_when,
    "admission reduced and recovered": admission_recovered,
    "memory bounded": memory_bounded,
    "requests counted alike": requests_agree,
    "attempts counted alike": attempts_agree,
    "retries counted alike": retries_agree,
    "nothing left behind": nothing_left_behind,
    "the proxy ended cleanly": clean_end,
    "the drill met what it is about": drill_bit,
}
