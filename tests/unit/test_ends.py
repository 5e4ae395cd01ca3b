"""Whatever ends a request, and wherever it is then: everything it held is given back, and it is recorded once."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from proxy.outcome import Verdict
from tests.unit.kit import Rig, chunked, complete_responses, request, response, rig
from tests.unit.memory import Client, Dial, Replica

LONG = b"x" * 600_000  # more than one read brings
HEAD_200 = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n"
KEPT_429 = b"HTTP/1.1 429 Busy\r\nContent-Length: 10\r\n\r\nhalf"


@dataclass
class Scene:
    """A request at some point of its life; `begun`: its client has bytes of a final response."""

    rig: Rig
    client: Client
    replica: Replica | None = None
    dial: Dial | None = None
    begun: bool = False


def open_client(rig: Rig) -> Scene:
    return Scene(rig, rig.client())


def in_a_head(rig: Rig) -> Scene:
    scene = open_client(rig)
    scene.client.send(b"POST /v1 HTTP/1.1\r\nHos")
    return scene


def in_a_body(rig: Rig) -> Scene:
    scene = open_client(rig)
    scene.client.send(request(b"y" * 2000)[:-100])
    return scene


def in_a_spooled_body(rig: Rig) -> Scene:
    scene = open_client(rig)
    scene.client.send(request(LONG)[:-100])
    return scene


def in_a_chunked_body(rig: Rig) -> Scene:
    scene = open_client(rig)
    head = b"POST /v1 HTTP/1.1\r\nHost: dd\r\nTransfer-Encoding: chunked\r\n\r\n"
    scene.client.send(head, chunked(LONG)[:-3])
    return scene


def refused(rig: Rig) -> Scene:
    scene = open_client(rig)
    scene.client.send(b"POST /v1 HTTP/1.1\r\nHost: dd\r\nContent-Length: 99999999999\r\n\r\n", b"some of it")
    scene.begun = True
    return scene


def connecting(rig: Rig) -> Scene:
    scene = open_client(rig)
    scene.client.send(request(b"{}"))
    scene.dial = rig.dial()
    return scene


def connecting_with_a_spooled_body(rig: Rig) -> Scene:
    scene = open_client(rig)
    scene.client.send(request(LONG))
    scene.dial = rig.dial()
    return scene


def waiting(rig: Rig) -> Scene:
    scene = open_client(rig)
    scene.client.send(request(b"{}"))
    scene.replica = rig.accept()
    return scene


def waiting_on_a_pooled_connection(rig: Rig) -> Scene:
    """Both backends have an idle connection, so that whichever is chosen is reused."""
    first = [rig.client(), rig.client()]
    for client in first:
        client.send(request(b"{}"))
    for replica in [rig.accept(), rig.accept()]:
        replica.send(response())
        replica.received()
    scene = open_client(rig)
    scene.client.send(request(b"{}"))
    scene.replica = next(r for r in rig.replicas if r.received())
    return scene


def sending_a_spooled_body(rig: Rig) -> Scene:
    scene = connecting_with_a_spooled_body(rig)
    assert scene.dial is not None
    scene.replica = rig.keep(scene.dial.accept(blocked=True))
    scene.dial = None
    return scene


def in_a_response_head(rig: Rig) -> Scene:
    scene = waiting(rig)
    assert scene.replica is not None
    scene.replica.send(b"HTTP/1.1 200 OK\r\nConte")
    return scene


def before_the_first_body_byte(rig: Rig) -> Scene:
    scene = waiting(rig)
    assert scene.replica is not None
    scene.replica.send(HEAD_200)
    return scene


def keeping_an_answer(rig: Rig) -> Scene:
    scene = waiting(rig)
    assert scene.replica is not None
    scene.replica.send(KEPT_429)
    return scene


def connecting_again(rig: Rig) -> Scene:
    scene = keeping_an_answer(rig)
    assert scene.replica is not None
    scene.replica.send(b" whole")
    scene.replica = None
    scene.dial = rig.dial()
    return scene


def waiting_again(rig: Rig) -> Scene:
    scene = connecting_again(rig)
    assert scene.dial is not None
    scene.replica = rig.keep(scene.dial.accept())
    scene.dial = None
    return scene


def streaming(rig: Rig, head: bytes = HEAD_200, piece: bytes = b"hello") -> Scene:
    scene = waiting(rig)
    assert scene.replica is not None
    scene.replica.send(head, piece)
    scene.begun = True
    return scene


def streaming_chunks(rig: Rig) -> Scene:
    return streaming(rig, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"5\r\nhello\r\n5\r\nw")


def streaming_to_the_end_of_file(rig: Rig) -> Scene:
    return streaming(rig, b"HTTP/1.1 200 OK\r\nX-Stream: yes\r\n\r\n")


def streaming_to_a_slow_client(rig: Rig) -> Scene:
    scene = waiting(rig)
    assert scene.replica is not None
    scene.client.stop_taking()
    scene.replica.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\n", LONG)
    assert not scene.replica.is_read()
    scene.begun = True
    return scene


def with_a_pipelined_request(rig: Rig) -> Scene:
    scene = waiting(rig)
    scene.client.send(request(b"second")[:-2])
    return scene


def half_closed(rig: Rig) -> Scene:
    scene = waiting(rig)
    scene.client.eof()
    return scene


PHASES: list[Callable[[Rig], Scene]] = [
    *(open_client, in_a_head, in_a_body, in_a_spooled_body, in_a_chunked_body, refused),
    *(connecting, connecting_with_a_spooled_body, waiting, waiting_on_a_pooled_connection, sending_a_spooled_body),
    *(in_a_response_head, before_the_first_body_byte, keeping_an_answer, connecting_again, waiting_again),
    *(streaming, streaming_chunks, streaming_to_the_end_of_file, streaming_to_a_slow_client),
    *(with_a_pipelined_request, half_closed),
]


# ---------------------------------------------------------------------------------------------------------- the ends


def client_eof(scene: Scene) -> None:
    scene.client.eof()


def client_reset(scene: Scene) -> None:
    scene.client.reset()


def client_closed_and_answers_with_a_reset(scene: Scene) -> None:
    scene.client.eof()
    gone = scene.rig.departures.watched.get(scene.client.downstream)
    if gone is not None:
        gone()


def upstream_eof(scene: Scene) -> None:
    if scene.replica is not None and not scene.replica.is_gone():
        scene.replica.eof()


def upstream_reset(scene: Scene) -> None:
    if scene.replica is not None and not scene.replica.is_gone():
        scene.replica.reset()


def upstream_sends_garbage(scene: Scene) -> None:
    if scene.replica is not None:
        scene.replica.send(b"\x00garbage\r\n\r\n")


def upstream_goes_on_with_an_answer(scene: Scene) -> None:
    if scene.replica is not None:
        scene.replica.send(b"01234567890123456789")


def upstream_answers(scene: Scene) -> None:
    if scene.dial is not None:
        scene.replica = scene.rig.keep(scene.dial.accept())
    if scene.replica is not None:
        scene.replica.go_on_taking()
        scene.replica.send(response())


def upstream_refuses(scene: Scene) -> None:
    if scene.dial is not None:
        scene.dial.refuse()


def no_descriptor_is_left(scene: Scene) -> None:
    if scene.dial is not None:
        scene.dial.refuse(OSError(24, "Too many open files"))


def everybody_is_silent(scene: Scene) -> None:
    scene.rig.loop.advance(200.0)


def backends_are_removed(scene: Scene) -> None:
    for backend in scene.rig.backends:
        scene.rig.endpoint.remove_backend(backend, 0.0)
    scene.rig.loop.advance(1.0)
    assert scene.rig.backends == []


def everything_is_cut(scene: Scene) -> None:
    scene.rig.endpoint.begin_drain()
    scene.rig.loop.run()
    scene.rig.endpoint.cut_all()
    scene.rig.loop.run()
    assert scene.client.transport.lost


ENDS: list[Callable[[Scene], None]] = [
    *(client_eof, client_reset, client_closed_and_answers_with_a_reset),
    *(upstream_eof, upstream_reset, upstream_sends_garbage, upstream_goes_on_with_an_answer, upstream_answers),
    *(upstream_refuses, no_descriptor_is_left, everybody_is_silent, backends_are_removed, everything_is_cut),
]


def options(spool: Path) -> dict[str, object]:
    limits = {"connect_timeout": 5, "response_timeout": 10, "read_timeout": 20, "write_timeout": 15}
    return limits | {"client_timeout": 30, "body_memory": "64KiB", "spool_dir": str(spool), "max_request_body": "1MiB"}


@pytest.mark.parametrize("end", ENDS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("phase", PHASES, ids=lambda f: f.__name__)
def test_nothing_is_left_whenever_and_however_a_request_ends(
    phase: Callable[[Rig], Scene], end: Callable[[Scene], None], tmp_path: Path
) -> None:
    with rig(2, **options(tmp_path)) as r:
        scene = phase(r)
        end(scene)
        answer_what_is_tried_next(scene)
        check_what_the_client_saw(scene)


@pytest.mark.parametrize("end", ENDS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("phase", PHASES, ids=lambda f: f.__name__)
def test_a_probe_gives_its_slot_back_whenever_and_however_it_ends(
    phase: Callable[[Rig], Scene], end: Callable[[Scene], None], tmp_path: Path
) -> None:
    with rig(2, **options(tmp_path), breaker_failure_threshold=1, breaker_cooldown_s=1) as r:
        for backend in r.backends:
            r.endpoint.fleet.record_verdict(backend, Verdict.FAILURE, False, r.loop.now)
        r.loop.advance(1.5)
        scene = phase(r)
        end(scene)
        answer_what_is_tried_next(scene)


def answer_what_is_tried_next(scene: Scene) -> None:
    """Let later attempts succeed, so that the exchange comes to its end."""
    r = scene.rig
    for _ in range(4):
        r.loop.run()
        while r.loop.dials:
            dial = r.loop.dials.popleft()
            if dial.open:
                r.keep(dial.accept()).send(response())
    r.loop.run()


def check_what_the_client_saw(scene: Scene) -> None:
    """A response looks complete to the client exactly when the record says so, however the connection ended."""
    client = scene.client
    client.go_on_taking()
    reset = client.transport.aborted or bool(client.transport.socket.options)
    ended = (client.is_gone() or client.transport.half_closed) and not reset
    complete = [r for r in scene.rig.records if r["complete"] and r["final_status"] != 499]
    others = len(scene.rig.clients) - 1
    seen = complete_responses(client.received(), ended=ended, methods=(b"POST", b"POST"))
    if client.transport.aborted:
        assert len(seen) <= len(complete) - others
    else:
        assert len(seen) == len(complete) - others, (seen, scene.rig.records)


@pytest.mark.parametrize("end", [client_reset, everybody_is_silent, backends_are_removed, everything_is_cut])
def test_a_connection_that_is_made_in_the_moment_its_request_ends_is_closed(
    end: Callable[[Scene], None], tmp_path: Path
) -> None:
    with rig(1, **options(tmp_path)) as r:
        scene = connecting(r)
        assert scene.dial is not None
        r.keep(scene.dial.accept(unseen=True))
        scene.dial = None
        end(scene)


def test_a_broken_answer_does_not_take_those_before_it_along() -> None:
    """What is pipelined behind it stays unread: closed so, the socket would reset what the client has not got yet."""
    with rig(1) as r:
        client = r.client()
        client.stop_taking()
        client.send(request(b"1") + request(b"2") + b"POST /half HTTP/1.1\r\n")
        replica = r.accept()
        replica.send(response(b"whole"))
        replica.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n", b"part")
        replica.reset()
        assert client.transport.half_closed
        assert not client.is_gone()
        client.go_on_taking()
        assert complete_responses(client.received(), ended=True, methods=(b"POST", b"POST")) == [(200, b"whole")]
        client.eof()
        assert client.is_gone()


def test_a_client_that_has_gone_unseen_does_not_stop_the_drain_of_the_others() -> None:
    with rig(1) as r:
        clients = [r.client() for _ in range(3)]
        for client in clients:
            client.send(b"POST / HTTP/1.1\r\n")

        def gone() -> None:
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

        clients[0].transport.write_eof = gone  # type: ignore[method-assign]
        r.endpoint.begin_drain()
        r.loop.run()
        assert [client.transport.half_closed for client in clients[1:]] == [True, True]
