"""The shortcuts for message heads give what h11 gives, byte for byte; what they remember is bounded and forgotten.

`DD_LONG=1` makes millions of heads instead of thousands.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable

import h11
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy import head_memo
from proxy.head_memo import HeadMemo, request_memo, response_memo
from proxy.headers import HOP_BY_HOP, UNNOMINABLE, HeadError, RequestHead, ResponseHead, retry_after_s, split_tokens
from proxy.wire import parse_request, parse_response

LONG = os.environ.get("DD_LONG") == "1"
many = settings(
    max_examples=200_000 if LONG else 400,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

NAMES = [
    *(b"Accept", b"user-agent", b"X-Request-Id", b"Content-Type", b"authorization", b"a", b"X!#$%&'*+.^_`|~1"),
    *(b"Retry-After", b"Keep-Alive", b"Proxy-Connection", b"Proxy-Authorization", b"TE", b"Trailer", b"Upgrade"),
]
GOOD_FRAMING = [[], [], [b"Content-Length: 5"], [b"content-length: 007"], [b"Transfer-Encoding: chunked"]]
GOOD_CONNECTION = [[], [], [b"Connection: close"], [b"Connection: keep-alive"], [b"CONNECTION: Close"]]
ODD_FIELDS = [
    *(b"Host: dd", b"Host: a/b", b"Host:", b"host: [::1]:80", b"Host: a_b", b"Host: dd ", b"Content-Length: 5"),
    *(
        b"Content-Length: 5, 5",
        b"Content-Length: 5,6",
        b"Content-Length: +5",
        b"Content-Length: 1e3",
        b"Content-Length:",
    ),
    *(b"Content-Length: 999999999999999", b"Content-Length: 9999999999999999", b"Content-Length: 1234567890123456789"),
    *(b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip", b"Transfer-Encoding: gzip, chunked"),
    *(
        b"Transfer-Encoding: chunked,",
        b"Transfer-Encoding: Identity",
        b"Transfer-Encoding:",
        b"TRANSFER-ENCODING: CHUNKED",
    ),
    *(b"Connection: close, x-request-id", b"Connection: content-length", b"Connection: transfer-encoding, a"),
    *(b"Connection: ,", b"connection: ExPect", b"Connection:", b"Expect: 100-continue", b"Expect: 100-Continue "),
    *(
        b"expect: x",
        b"Expect: 100-continue, x",
        b"Retry-After: 1.5",
        b"Retry-After:",
        b"retry-after: 3",
        b"Upgrade: h2c",
    ),
    *(
        b"X : y",
        b"X y",
        b": y",
        b"X\x80: y",
        b"X: a\rb",
        b"X: y\n",
        b" folded",
        b"\tfolded",
        b"",
        b"X: \x00",
        b"X:\x7f",
    ),
]
plain_text = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=20).map(str.encode)
odd_text = st.one_of(st.binary(max_size=8), plain_text.map(lambda t: b" " + t + b"\t"))
names = st.builds(
    lambda n, change: change(n), st.sampled_from(NAMES), st.sampled_from([bytes, bytes.lower, bytes.upper])
)
good_fields = st.builds(lambda n, v: n + b": " + v.strip(), names, plain_text)
separators = st.sampled_from([b":", b":  ", b":\t", b" : ", b": \t", b""])
odd_fields = st.one_of(
    st.sampled_from(ODD_FIELDS),
    st.sampled_from(ODD_FIELDS),
    st.builds(lambda n, s, v: n + s + v, names, separators, plain_text),
    st.builds(lambda n, v: n + b": " + v, names, odd_text),
    st.builds(lambda n, x, v: n + x + b": " + v, names, st.binary(max_size=2), plain_text),
)
ODD_METHODS = [b"CONNECT", b"OPTIONS", b"get", b"M-SEARCH", b"G@T", b""]
ODD_TARGETS = [
    *(b"/health", b"/health?x", b"/health#x", b"//a?b?c", b"/a#b?c", b"*", b"http://dd/x?y", b"http://dd", b"/a%20b"),
    *(b"/a\x80", b"x", b"/" + b"a" * 1100, b"/?", b"/?" + b"q" * 1100, b""),
]
ODD_VERSIONS = [b"HTTP/1.0", b"HTTP/1.2", b"HTTP/2.0", b"http/1.1", b""]
ODD_STATUSES = [b"204", b"304", b"100", b"101", b"199", b"600", b"999", b"099", b"20", b"2000", b"", b"x00"]
ODD_REASONS = [b"", b" ", b"  ", b" OK ", b" Two  words", b" \xc3\xa4", b" \t", b" a\x00"]
ODD_ENDS = [b"\n\r\n", b"\r\n\r\n\r\n", b"\r\n \r\n\r\n"]


@st.composite
def heads(draw: st.DrawFn, start: list[bytes], odd_parts: list[st.SearchStrategy[bytes]], host: list[bytes]) -> bytes:
    """Make a good head and then damage it in none, one or two places."""
    parts = [*start, b"\r\n\r\n"]
    fields = [*host, *draw(st.sampled_from(GOOD_FRAMING)), *draw(st.sampled_from(GOOD_CONNECTION))]
    fields = draw(st.permutations(fields + draw(st.lists(good_fields, max_size=4))))
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 1, 2]))):
        place = draw(st.integers(-6, len(parts) - 1))
        if place >= 0:
            parts[place] = draw(odd_parts[place])
        else:
            fields.insert(draw(st.integers(0, len(fields))), draw(odd_fields))
    return bytes(b"".join(parts[:-1]) + b"".join(b"\r\n" + field for field in fields) + parts[-1])


odd_spaces = st.sampled_from([b"  ", b"\t", b""])
odd_versions = st.sampled_from(ODD_VERSIONS)
odd_ends = st.sampled_from(ODD_ENDS)
request_heads = st.one_of(
    [
        heads(
            [method, b" ", target, b" ", b"HTTP/1.1"],
            [
                st.sampled_from(ODD_METHODS),
                odd_spaces,
                st.one_of(st.sampled_from(ODD_TARGETS), plain_text.map(lambda t: b"/" + t)),
                odd_spaces,
                odd_versions,
                odd_ends,
            ],
            [b"Host: dd"],
        )
        for method, target in [(b"POST", b"/v1/chat/completions"), (b"GET", b"/a?b=c"), (b"HEAD", b"/")]
    ]
)
response_heads = st.one_of(
    [
        heads(
            [b"HTTP/1.1", b" ", status, b" OK"],
            [
                odd_versions,
                odd_spaces,
                st.sampled_from(ODD_STATUSES),
                st.one_of(st.sampled_from(ODD_REASONS), odd_text),
                odd_ends,
            ],
            [],
        )
        for status in (b"200", b"429", b"503")
    ]
)


def thinned(raw: bytes) -> list[bytes]:
    """Give a head, and the same without each of its lines: most faults stand in one line, and hide the others."""
    parts = raw.split(b"\r\n")
    return [raw, *(b"\r\n".join(parts[:n] + parts[n + 1 :]) for n in range(1, len(parts) - 2))]


Understood = tuple[object, ...]


def understood(read: Callable[[bytes], RequestHead | ResponseHead | None], raw: bytes) -> Understood:
    try:
        return (read(raw),)
    except HeadError as e:
        return (e.status, e.method, e.path)


def whole(raw: bytes) -> bool:
    """True for what the data path hands over: a head up to and with its first empty line."""
    return raw.find(b"\r\n\r\n") == len(raw) - 4


@many
@given(request_heads)
def test_the_shortcut_for_requests_gives_what_h11_gives(raw: bytes) -> None:
    memo = request_memo()
    for head in filter(whole, thinned(raw)):
        expected = understood(parse_request, head)
        assert understood(memo.understand, head) == expected
        assert understood(memo.understand, head) == expected  # remembered by now, where it is at all


@many
@given(response_heads)
def test_the_shortcut_for_responses_gives_what_h11_gives(raw: bytes) -> None:
    memo = response_memo()
    for head in filter(whole, thinned(raw)):
        expected = understood(parse_response, head)
        assert understood(memo.understand, head) == expected
        assert understood(memo.understand, head) == expected


PAIRED = [*ODD_FIELDS, *(field for fields in [*GOOD_FRAMING, *GOOD_CONNECTION] for field in fields), b"A: b", b"TE: x"]
PAIRED = list(dict.fromkeys(PAIRED))


def test_every_pair_of_lines_is_understood_as_h11_does() -> None:
    requests, responses = request_memo(), response_memo()
    for first, second in itertools.product(PAIRED, repeat=2):
        for raw in (
            _head(b"POST /v1 HTTP/1.1", b"Host: dd", first, second),
            _head(b"POST /v1 HTTP/1.1", first, second),
            _head(b"POST /v1 HTTP/1.0", first, second),
        ):
            assert understood(requests.understand, raw) == understood(parse_request, raw)
        for raw in (_head(b"HTTP/1.1 200 OK", first, second), _head(b"HTTP/1.1 304 X", first, second)):
            assert understood(responses.understand, raw) == understood(parse_response, raw)


def _head(*parts: bytes) -> bytes:
    return b"\r\n".join([*parts, b"", b""])


def by_h11(raw: bytes) -> h11.Request | None:
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(raw)
    try:
        event = connection.next_event()
    except h11.RemoteProtocolError:
        return None
    return event if isinstance(event, h11.Request) else None


@many
@given(request_heads)
def test_what_a_backend_gets_is_what_h11_read_less_what_must_stay_here(raw: bytes) -> None:
    """A check of wire.py and headers.py by h11 alone; what h11 refuses is never forwarded."""
    for head in filter(whole, thinned(raw)):
        try:
            ours = parse_request(head)
        except HeadError:
            continue
        theirs = by_h11(head)
        assert theirs is not None
        fields = [(n, v) for n, v in theirs.headers.raw_items() if n.lower() != b"host"]
        nominated = set(split_tokens([v for n, v in fields if n.lower() == b"connection"])) - UNNOMINABLE
        stay = HOP_BY_HOP | nominated | ({b"expect"} if ours.expects_continue else set())
        expected = [(n, v) for n, v in fields if n.lower() not in stay]
        if ours.chunked:
            expected.append((b"Content-Length", b"9"))
        forwarded = by_h11(ours.upstream_bytes(b"u:1", 9))
        assert forwarded is not None
        assert (forwarded.method, forwarded.http_version) == (theirs.method, b"1.1")
        assert [(n, v) for n, v in forwarded.headers.raw_items() if n.lower() != b"host"] == expected
        assert [v for n, v in forwarded.headers if n == b"host"] == [b"u:1"]


@given(
    st.one_of(st.binary(max_size=40), st.sampled_from([b"Sun, 06 Nov 1994 08:49:37 GMT", b"1.5"])), st.floats(0, 4e9)
)
def test_no_retry_after_breaks_anything(value: bytes, now: float) -> None:
    seconds = retry_after_s(value, now)
    assert seconds is None or seconds >= 0


# ------------------------------------------------------------------------------------------------------------- memory


def plain(n: int, size: int = 0) -> bytes:
    return b"GET / HTTP/1.1\r\nHost: dd\r\nX-Id: %d%b\r\n\r\n" % (n, b"x" * size)


def test_a_head_that_was_seen_is_a_hit() -> None:
    memo = request_memo()
    first, second, other = memo.understand(plain(1)), memo.understand(plain(1)), memo.understand(plain(2))
    assert first == second != other
    assert (memo.hits, memo.misses, memo.size) == (1, 2, 2)


def test_forgetting_leaves_nothing() -> None:
    memo = request_memo()
    memo.understand(plain(1))
    memo.forget()
    assert memo.size == 0
    memo.understand(plain(1))
    assert (memo.hits, memo.misses) == (0, 2)


def test_no_credential_outlives_forgetting() -> None:
    memo = request_memo()
    memo.understand(b"GET / HTTP/1.1\r\nHost: dd\r\nAuthorization: Bearer sesame\r\n\r\n")
    memo.forget()
    assert b"sesame" not in remembered(memo)


def remembered(memo: HeadMemo[RequestHead]) -> bytes:
    """Give everything that a memo holds, whatever it is."""
    return repr([getattr(memo, name) for name in type(memo).__slots__]).encode()


def test_what_is_remembered_is_bounded() -> None:
    memo = request_memo()
    for n in range(5 * head_memo.MAX_HEADS):
        memo.understand(plain(n, 400))
    assert memo.size <= head_memo.MAX_HEADS
    assert len(remembered(memo)) < 4 * 2**20
    memo.understand(plain(1, head_memo.MAX_HEAD_BYTES))
    assert b"x" * head_memo.MAX_HEAD_BYTES not in remembered(memo)


@pytest.mark.parametrize("raw", [b"GET /health HTTP/1.1\r\nHost: dd\r\n\r\n", b"HEAD /health?a HTTP/1.0\r\n\r\n"])
def test_what_the_proxy_answers_itself_counts_as_no_head(raw: bytes) -> None:
    memo = request_memo()
    for _ in range(3):
        assert memo.understand(raw) is not None
    assert (memo.hits, memo.misses) == (0, 0)


def test_a_refused_head_is_not_remembered() -> None:
    memo = request_memo()
    for _ in range(2):
        with pytest.raises(HeadError):
            memo.understand(b"GET / HTTP/1.1\r\nX : y\r\n\r\n")
    assert (memo.size, memo.hits) == (0, 0)


def test_an_interim_response_is_not_remembered() -> None:
    memo = response_memo()
    for _ in range(2):
        assert memo.understand(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n") is None
    assert (memo.size, memo.hits) == (0, 0)
