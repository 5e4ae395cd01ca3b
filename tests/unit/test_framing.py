"""The ends of bodies: found exactly, however the bytes are cut, and never where h11 would not see them."""

from __future__ import annotations

import itertools

import h11
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from proxy.backend_url import parse_backend_url
from proxy.breaker import Breaker
from proxy.connector import UpstreamConnection
from proxy.framing import (
    MAX_CHUNK_LINE,
    MAX_TRAILERS,
    MORE,
    SIZE_LINES,
    SIZES_AT,
    WHOLE_CHUNK_BYTES,
    ChunkScanner,
    CloseScanner,
    FramingError,
    LengthScanner,
)
from proxy.socket_writer import SocketWriter
from proxy.upstream import Backend, Health
from tests.unit.kit import chunked

Read = tuple[int, bytes, bool]  # bytes of the message (-1: it goes on), its content, whether content has begun


def read(data: bytes, sizes: list[int]) -> Read | None:
    """Feed a chunked body in pieces of the given sizes, again and again; None when it is refused."""
    pieces: list[bytes] = []
    scanner = ChunkScanner(pieces)
    at, turn = 0, 0
    while at < len(data):
        piece = data[at : at + sizes[turn % len(sizes)]]
        turn += 1
        try:
            end = scanner.feed(piece)
        except FramingError:
            return None
        if end >= 0:
            return at + end, b"".join(pieces), scanner.started
        at += len(piece)
    return -1, b"".join(pieces), scanner.started


def read_by_h11(data: bytes) -> tuple[int, bytes] | None:
    """Read the same body as h11 does: how many bytes it took, and the content; None when it refuses."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=200_000)
    connection.receive_data(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    connection.next_event()
    connection.receive_data(data)
    content = b""
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError:
            return None
        if isinstance(event, h11.Data):
            content += event.data
        elif isinstance(event, h11.EndOfMessage):
            return len(data) - len(connection.trailing_data[0]), content
        else:
            return -1, content


WHOLE = [
    (chunked(), b""),
    (chunked(b"hello"), b"hello"),
    (chunked(b"a", b"b" * 300, b"\r\n0\r\n\r\n"), b"a" + b"b" * 300 + b"\r\n0\r\n\r\n"),
    (b"5\r\nhello\r\n000\r\n\r\n", b"hello"),
    (b"0005\r\nhello\r\n0\r\n\r\n", b"hello"),
    (b"A\r\n0123456789\r\na\r\n0123456789\r\n0\r\n\r\n", b"0123456789" * 2),
    (b'5;name=value;q="a;b"\r\nhello\r\n0;last\r\n\r\n', b"hello"),
    (b"5 \t\r\nhello\r\n0\r\n\r\n", b"hello"),
    (b"5\r\nhello\r\n0\r\nX-Sum: abc\r\nX-Other:\r\n\r\n", b"hello"),
]
BAD = [
    *(b"\r\n", b"g\r\n", b"-1\r\nx\r\n", b"+5\r\nhello\r\n", b"0x5\r\nhello\r\n", b" 5\r\nhello\r\n", b"5\nhello\r\n"),
    *(b"5\r\nhelloX\r\n", b"5\r\nhello\n", b"5\r\nhello\rX", b"5\r\nhello!\n0\r\n\r\n", b"5\r\nhell\r\n0\r\n\r\n"),
    *(b"1234567890abcdef1\r\n", b"5;\x00\r\nhello\r\n", b"5;a\nb\r\nhello\r\n", b"5 5\r\nhello\r\n", b"\xb2\r\nhi\r\n"),
    *(b"0\r\nno colon\r\n\r\n", b"0\r\n: none\r\n\r\n", b"0\r\nX: \x00\r\n\r\n", b"0\r\nX: a\nY: b\r\n\r\n"),
    *(b"0\r\n folded: x\r\n\r\n", b"0\r\nX : y\r\n\r\n"),
]


@pytest.mark.parametrize(("data", "content"), WHOLE)
@pytest.mark.parametrize("rest", [b"", b"\r\n", b"GET / HTTP/1.1\r\n"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 10_000])
def test_the_end_is_found_exactly(data: bytes, content: bytes, rest: bytes, size: int) -> None:
    assert read(data + rest, [size]) == (len(data), content, bool(content))


@pytest.mark.parametrize(("data", "content"), WHOLE)
def test_no_part_of_a_body_looks_complete(data: bytes, content: bytes) -> None:
    for cut in range(len(data)):
        found = read(data[:cut], [10_000])
        assert found is not None
        assert found[0] == -1
        assert content.startswith(found[1])


@pytest.mark.parametrize("data", BAD)
@pytest.mark.parametrize("size", [1, 2, 3, 10_000])
def test_a_bad_body_is_refused_however_it_is_cut(data: bytes, size: int) -> None:
    assert read(data, [size]) is None


@pytest.mark.parametrize("size", [1, 100, 5000, 100_000])
def test_lines_and_trailers_are_bounded_however_they_are_cut(size: int) -> None:
    longest = b"5;" + b"x" * (MAX_CHUNK_LINE - 2)
    assert read(longest + b"\r\nhello\r\n0\r\n\r\n", [size]) is not None
    assert read(longest + b"x\r\nhello\r\n0\r\n\r\n", [size]) is None
    assert read(b"0\r\nX: " + b"y" * MAX_CHUNK_LINE + b"\r\n\r\n", [size]) is None
    many = b"X: " + b"y" * 997 + b"\r\n"
    assert read(b"0\r\n" + many * (MAX_TRAILERS // 1000) + b"\r\n", [size]) is not None
    assert read(b"0\r\n" + many * (MAX_TRAILERS // 1000 + 1) + b"\r\n", [size]) is None


@pytest.mark.parametrize(
    ("before", "whole", "content"),
    [
        (b"1", b"15\r\nhello\r\n" + b"x" * 14 + b"\r\n0\r\n\r\n", b"hello\r\n" + b"x" * 14),  # the rest of a size line
        (b"a\r\n", b"a\r\n5\r\nhello\r\n\r\n0\r\n\r\n", b"5\r\nhello\r\n"),  # the inside of a chunk
        (b"0\r\n", b"0\r\n5\r\nhello\r\n\r\n", None),  # a trailer, and a bad one
        (b"0\r\nX: ", b"0\r\nX: 5\r\nhello\r\n\r\n", None),  # the rest of a trailer
        (b"5;a=", b"5;a=5\r\nhello\r\n0\r\n\r\n", b"hello"),  # the rest of an extension
    ],
)
def test_a_piece_that_looks_like_a_whole_chunk_is_none_where_none_begins(
    before: bytes, whole: bytes, content: bytes | None
) -> None:
    piece = b"5\r\nhello\r\n"
    assert read(piece + b"0\r\n\r\n", [len(piece)]) == (len(piece) + 5, b"hello", True)  # it is one elsewhere
    assert whole.startswith(before + piece)
    expected = None if content is None else (len(whole), content, True)
    assert read(whole, [len(before), len(piece), 100]) == expected


body_parts = st.one_of(
    st.builds(lambda b: b"%x\r\n%b\r\n" % (len(b), b), st.binary(min_size=1, max_size=40)),
    st.builds(lambda b: b"%X;e=%d\r\n%b\r\n" % (len(b), len(b), b), st.binary(min_size=1, max_size=300)),
)
endings = st.sampled_from([b"0\r\n\r\n", b"0\r\nT: v\r\n\r\n", b"00;x\r\nA: b\r\nC:\r\n\r\n", b"0\r\n", b""])
bodies = st.builds(
    lambda parts, end, rest: b"".join(parts) + end + rest,
    st.lists(body_parts, max_size=6),
    endings,
    st.binary(max_size=9),
)
cuts = st.lists(st.integers(1, 40), min_size=1, max_size=12)
noise = st.sampled_from([b"\r", b"\n", b"\r\n", b"0", b"f", b";", b" ", b"\t", b"\x00", b"\xff", b":", b"-", b"x"])


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A body with a few bytes changed, lost or added."""
    data = draw(bodies)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(noise) + data[at + draw(st.integers(0, 1)) :]
    return bytes(data)


@settings(max_examples=400, deadline=None)
@given(damaged(), cuts)
@example(b"0\r\n\r", [1])
@example(b"1\r\na\r", [6, 1])
def test_cuts_change_nothing(data: bytes, sizes: list[int]) -> None:
    whole, cut = read(data, [len(data) or 1]), read(data, sizes)
    if whole is None or whole[0] < 0:
        assert cut is None or cut == whole  # a fault may show earlier or later, but no end is seen
    else:
        assert cut == whole


@settings(max_examples=600, deadline=None)
@given(damaged())
def test_h11_sees_the_same_end_and_content_of_everything_that_is_accepted(data: bytes) -> None:
    """Where the two differ, one of them refuses.

    h11 is more lenient with sizes of 16 to 20 digits, any byte in an extension, folded trailers and trailers that end
    in a bare line feed. This scanner is more lenient with blanks before an extension, which RFC 9112 (section 7.1.1)
    lets a recipient accept.
    """
    ours, theirs = read(data, [len(data) or 1]), read_by_h11(data)
    if ours is not None and ours[0] >= 0 and theirs is not None:
        assert ours[:2] == theirs
    if ours is not None and theirs is None:
        assert ours[0] < 0 or b" ;" in data or b"\t;" in data
    if theirs is not None and theirs[0] >= 0 and ours is not None:
        assert ours[0] == theirs[0]


@pytest.mark.parametrize("data", [b"5 ;x\r\nhello\r\n0\r\n\r\n"])
def test_where_h11_is_stricter(data: bytes) -> None:
    assert read(data, [99]) is not None
    assert read_by_h11(data) is None


@pytest.mark.parametrize(
    "data",
    [
        b"5;\x01\r\nhello\r\n0\r\n\r\n",
        b"00000000000000005\r\nhello\r\n0\r\n\r\n",
        b"0\r\nX: y\r\n folded\r\n\r\n",
        b"0\r\nX: y\nZ: y\r\n\r\n",
    ],
)
def test_where_h11_is_more_lenient(data: bytes) -> None:
    assert read(data, [99]) is None
    assert read_by_h11(data) is not None


# --------------------------------------------------------------------------------------------------- the other framings


@given(st.integers(1, 200), st.lists(st.integers(0, 60), max_size=20))
def test_a_length_ends_exactly_there(length: int, sizes: list[int]) -> None:
    scanner, left = LengthScanner(length), length
    for size in sizes:
        end = scanner.feed(bytes(size))
        if size < left:
            assert end < 0
            left -= size
            assert scanner.started == (left < length)
        else:
            assert end == left
            assert scanner.started
            break


def test_a_body_to_the_end_of_file_has_no_other_end() -> None:
    scanner = CloseScanner()
    assert (scanner.feed(b""), scanner.started) == (-1, False)
    assert (scanner.feed(b"0\r\n\r\n"), scanner.started) == (-1, True)


def test_the_table_of_size_lines_knows_every_whole_chunk_and_nothing_else() -> None:
    known = {}
    for size in range(1, WHOLE_CHUNK_BYTES):
        chunk = b"%x\r\n%b\r\n" % (size, b"x" * size)
        known[len(chunk)] = chunk
    for n in range(WHOLE_CHUNK_BYTES):
        expected = known.get(n)
        for piece in [b"1" * n, b"0" * n, bytes(n), *([expected] if expected else [])]:
            assert (piece[SIZES_AT[n]] == SIZE_LINES[n]) == (piece is expected), (n, piece[:8])


class Lessee:
    """What a splice hands over: the first piece at which it had to stop, and why."""

    def __init__(self) -> None:
        self.stopped: tuple[bytes, int | str] | None = None

    def upstream_spliced(self, data: bytes, end: int | FramingError) -> None:
        self.stopped = data, end if isinstance(end, int) else str(end)

    def upstream_data(self, data: bytes) -> None:
        raise AssertionError("a splice asks for nothing")

    upstream_ended = upstream_paused = upstream_data


class Sink(SocketWriter):
    """What was sent."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def send(self, data: bytes) -> None:
        self.pieces.append(data)


def spliced(pieces: list[bytes]) -> tuple[list[bytes], tuple[bytes, int | str] | None, int]:
    """Let pieces through a splice until it stops."""
    backend = Backend(parse_backend_url("http://a:1"), required=True, breaker=Breaker(0, 1.0, 1.0), health=Health(1, 1))
    connection, lessee, sink = UpstreamConnection(backend, lambda _: None), Lessee(), Sink()
    connection.lessee = lessee  # type: ignore[assignment]
    connection.splice(ChunkScanner(), sink)
    for piece in pieces:
        connection.data_received(piece)
        if lessee.stopped:
            break
    return sink.pieces, lessee.stopped, connection.spliced


def scanned(pieces: list[bytes]) -> tuple[list[bytes], tuple[bytes, int | str] | None, int]:
    """Say what a splice has to do: ask the scanner about every piece."""
    scanner, passed = ChunkScanner(), list[bytes]()
    for piece in pieces:
        try:
            end = scanner.feed(piece)
        except FramingError as e:
            return passed, (piece, str(e)), sum(map(len, passed))
        if end != MORE:
            return passed, (piece, end), sum(map(len, passed))
        passed.append(piece)
    return passed, None, sum(map(len, passed))


CHUNKS = st.builds(
    lambda size, form, ending: form.encode() % size + b"x" * size + ending,
    st.one_of(st.integers(1, 300), st.sampled_from([4080, 4088, 4089, 4090, 5000])),
    st.sampled_from(["%x\r\n", "%x\r\n", "%X\r\n", "0%x\r\n", "%x;a=b\r\n", "%x \r\n", "%x\n"]),
    st.sampled_from([b"\r\n"] * 6 + [b"\n\r", b"\r", b"xx", b""]),
)


@settings(max_examples=500)
@given(st.lists(st.one_of(CHUNKS, st.just(b"0\r\n\r\n"), st.binary(max_size=12)), max_size=8), st.data())
def test_a_splice_passes_on_what_the_scanner_would_and_stops_where_it_would(
    parts: list[bytes], data: st.DataObject
) -> None:
    whole = b"".join(parts)
    ends = [sum(map(len, parts[: n + 1])) for n in range(len(parts))]
    cuts = data.draw(st.lists(st.one_of(st.sampled_from(ends or [0]), st.integers(0, len(whole))), max_size=10))
    places = sorted({0, len(whole), *cuts})
    pieces = [whole[a:b] for a, b in itertools.pairwise(places)]
    assert spliced(pieces) == scanned(pieces)
