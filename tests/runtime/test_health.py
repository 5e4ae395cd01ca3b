"""The monitor's judgement: what counts as a failed probe, and when something is lost."""

from __future__ import annotations

from runtime.health import HealthBook, Target
from runtime.probe import Answer
from runtime.services import Node, Replica, Services

NODE = Node("node1", "10.0.0.1")
SERVICES = Services(
    (NODE,),
    tuple(Replica(f"llama-replica-{index}", "llama", "node1", "10.0.0.1", 18000 + index) for index in range(2)),
)
FIRST, SECOND = (Target("llama", f"10.0.0.1:{18000 + index}", "/health", 5, replica=True) for index in range(2))
ENDPOINT = Target("llama", "127.0.0.1:9000", "/healthz", 2, replica=False)
GOOD = Answer(200, "status 200")
BAD = Answer(503, "status 503")
REFUSED = Answer(None, "connection refused")
SILENT = Answer(None, "no answer within 5 s", timed_out=True)


def test_three_failures_in_a_row_are_a_loss_and_two_are_not() -> None:
    book = HealthBook(SERVICES, 3)
    for answer in (BAD, REFUSED, GOOD, BAD, SILENT):
        book.note(FIRST, answer, False, "t")
        assert book.failure is None
    book.note(FIRST, REFUSED, False, "t3")
    assert book.failure is not None
    assert (book.failure.backend, book.failure.source, book.failure.observed_at) == ("10.0.0.1:18000", "monitor", "t3")
    assert book.failure.reason == "probe failed (connection refused) 3 times"


def test_failures_of_different_replicas_do_not_add_up() -> None:
    book = HealthBook(SERVICES, 2)
    book.note(FIRST, BAD, False, "t")
    book.note(SECOND, BAD, False, "t")
    assert book.failure is None


def test_silence_of_a_busy_replica_is_no_failure_but_a_refusal_is() -> None:
    book = HealthBook(SERVICES, 2)
    for _ in range(5):
        book.note(FIRST, SILENT, True, "t")
    assert book.failure is None
    book.note(FIRST, REFUSED, True, "t")
    book.note(FIRST, BAD, True, "t")
    assert book.failure is not None


def test_silence_of_an_idle_replica_is_told_as_such() -> None:
    book = HealthBook(SERVICES, 3)
    for _ in range(3):
        book.note(FIRST, SILENT, False, "t")
    assert book.failure is not None
    assert book.failure.reason == "probe timed out 3 times"


def test_nobody_vouches_for_an_endpoint() -> None:
    book = HealthBook(SERVICES, 1)
    book.note(ENDPOINT, SILENT, True, "t")
    assert book.failure is not None
    assert book.failure.reason == "endpoint's side port: probe timed out 1 times"


def test_the_first_loss_stays_in_every_later_snapshot() -> None:
    book = HealthBook(SERVICES, 1)
    book.note(FIRST, BAD, False, "t1")
    book.note(SECOND, BAD, False, "t2")
    book.note(FIRST, GOOD, False, "t3")
    for number in (1, 2):
        snapshot = book.snapshot("t", final=number == 2)
        assert snapshot.sequence == number
        assert snapshot.failure is not None and snapshot.failure.observed_at == "t1"
        assert not snapshot.good
    assert snapshot.final


def test_a_snapshot_is_good_only_when_every_replica_has_answered() -> None:
    book = HealthBook(SERVICES, 3)
    book.note(FIRST, GOOD, False, "t")
    assert (book.snapshot("t").deployments[0].healthy, book.snapshot("t").good) == (1, False)
    book.note(SECOND, GOOD, False, "t")
    assert book.snapshot("t").good
    book.note(SECOND, BAD, False, "t")
    assert (book.snapshot("t").deployments[0].healthy, book.snapshot("t").good) == (1, False)
