"""Message heads: which are refused and how, and what becomes of the fields of those that are not."""

from __future__ import annotations

import pytest

from proxy.headers import ClientSide, Framing, HeadError, RequestHead, ResponseHead, client_head, retry_after_s
from proxy.wire import parse_request, parse_response


def request(*lines: bytes, start: bytes = b"POST /v1 HTTP/1.1", host: bool = True) -> bytes:
    """Make a request head of a start line and field lines."""
    return b"\r\n".join([start, *([b"Host: dd"] if host else []), *lines, b"", b""])


def answer(*lines: bytes, start: bytes = b"HTTP/1.1 200 OK") -> bytes:
    return b"\r\n".join([start, *lines, b"", b""])


def parsed(raw: bytes) -> ResponseHead:
    head = parse_response(raw)
    assert head is not None
    return head


# --------------------------------------------------------------------------------------------------- refused requests


REFUSED = [
    (400, request(b"Content-Length: 5", b"Transfer-Encoding: chunked")),
    (400, request(b"Transfer-Encoding: chunked", b"Content-Length: 5")),
    (400, request(b"Content-Length: 5", b"Content-Length: 6")),
    (400, request(b"Content-Length: 5, 6")),
    (400, request(b"Content-Length: five")),
    (400, request(b"Content-Length: +5")),
    (400, request(b"Content-Length: -5")),
    (400, request(b"Content-Length: 0x5")),
    (400, request(b"Content-Length: 5 5")),
    (400, request(b"Content-Length:")),
    (400, request(b"Content-Length: \xb2")),
    (413, request(b"Content-Length: 9999999999999999999999")),
    (501, request(b"Transfer-Encoding: gzip")),
    (501, request(b"Transfer-Encoding: gzip, chunked")),
    (501, request(b"Transfer-Encoding: chunked, gzip")),
    (501, request(b"Transfer-Encoding: xchunked")),
    (400, request(b"Transfer-Encoding: chunked, chunked")),
    (400, request(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked")),
    (400, request(b"Transfer-Encoding: chunked,")),
    (400, request(b"Transfer-Encoding: ,chunked")),
    (400, request(b"Transfer-Encoding:", b"Transfer-Encoding: chunked")),
    (400, request(b"Transfer-Encoding: identity")),
    (400, request(b"Transfer-Encoding: identity, chunked")),
    (400, request(b"Transfer-Encoding:")),
    (400, request(b"Transfer-Encoding: chun\x00ked")),
    (400, request(b"Transfer-Encoding: \x0bchunked")),
    (400, request(b"Transfer-Encoding: chunked", start=b"POST / HTTP/1.0")),
    (400, request(b"Transfer-Encoding : chunked")),
    (400, request(b"X : y")),
    (400, request(b"X y")),
    (400, request(b": y")),
    (400, request(b"X: a\x00b")),
    (400, request(b"X: a\rb")),
    (400, request(b"X\x80: y")),
    (400, request(b"X: y", b" folded")),
    (400, request(b"X: y", b"\tfolded")),
    (400, request(b"X: y\nZ: y")),
    (400, request(host=False)),
    (400, request(b"Host: other")),
    (400, request(b"Host: a b", host=False)),
    (400, request(b"Host: a/b", host=False)),
    (400, request(b"Host: user@dd", host=False)),
    (400, request(b"Host: dd", b"Host: dd", start=b"GET / HTTP/1.0", host=False)),
    (400, request(start=b"GE T / HTTP/1.1")),
    (400, request(start=b"GET  / HTTP/1.1")),
    (400, request(start=b"GET / HTTP/1.1 ")),
    (400, request(start=b"G@T / HTTP/1.1")),
    (400, request(start=b"G\x80T / HTTP/1.1")),
    (400, request(start=b"GET /a b HTTP/1.1")),
    (400, request(start=b"GET /\x00 HTTP/1.1")),
    (400, request(start=b"GET /\x80 HTTP/1.1")),
    (400, request(start=b"GET / http/1.1")),
    (400, request(start=b"GET / HTTPS/1.1")),
    (400, request(start=b"GET /")),
    (400, request(start=b"GET nowhere HTTP/1.1")),
    (400, request(start=b"GET * HTTP/1.1")),
    (400, request(start=b"GET http:///x HTTP/1.1")),
    (400, request(start=b"GET ftp://dd/x HTTP/1.1")),
    (505, request(start=b"GET / HTTP/1.2")),
    (505, request(start=b"GET / HTTP/2.0")),
    (505, request(start=b"GET / HTTP/0.9")),
    (501, request(start=b"CONNECT dd:443 HTTP/1.1")),
    (400, b"\r\n\r\n"),
]


@pytest.mark.parametrize(("status", "raw"), REFUSED)
def test_a_request_that_is_ambiguous_or_malformed_is_refused(status: int, raw: bytes) -> None:
    with pytest.raises(HeadError) as e:
        parse_request(raw)
    assert e.value.status == status
    assert str(e.value)


def test_a_refused_request_is_named_for_the_log_without_its_query() -> None:
    with pytest.raises(HeadError) as e:
        parse_request(request(b"X : y", start=b"PUT http://dd/a/b?secret=1 HTTP/1.1"))
    assert (e.value.method, e.value.path) == (b"PUT", "/a/b")
    with pytest.raises(HeadError) as e:
        parse_request(request(start=b"G@T /a HTTP/1.1"))
    assert (e.value.method, e.value.path) == (None, None)


# -------------------------------------------------------------------------------------------------- accepted requests


def sent(raw: bytes, body_size: int = 0) -> bytes:
    """Give what a backend at u:1 gets of a request head."""
    return parse_request(raw).upstream_bytes(b"u:1", body_size)


HOPS = [
    *(b"Connection: keep-alive", b"Keep-Alive: timeout=5", b"Proxy-Connection: close", b"Proxy-Authenticate: x"),
    *(b"Proxy-Authorization: x", b"TE: trailers", b"Trailer: X-T", b"Upgrade: h2c"),
]


def test_fields_go_on_as_they_came_with_the_backends_host_in_its_place() -> None:
    raw = request(b"x-a: 1", b"HOST: dd.example:80", b"X-A:  2 ", b"x-a:3", b"Cookie: a=b", b"X-Empty:", host=False)
    expected = b"POST /v1 HTTP/1.1\r\nx-a: 1\r\nHOST: u:1\r\nX-A: 2\r\nx-a: 3\r\nCookie: a=b\r\nX-Empty: \r\n\r\n"
    assert sent(raw) == expected


@pytest.mark.parametrize("line", HOPS)
@pytest.mark.parametrize("change", [bytes, bytes.lower, bytes.upper])
def test_hop_by_hop_fields_stay_here(line: bytes, change: object) -> None:
    assert callable(change)
    name, _, value = line.partition(b":")
    assert sent(request(b"A: 1", change(name) + b":" + value, b"B: 2")) == request(b"A: 1", b"B: 2").replace(
        b"dd", b"u:1"
    )


def test_fields_that_connection_nominates_stay_here_but_for_what_frames_the_message() -> None:
    lines = [b"X-Hop: 1", b"Connection: x-hop ,, X-OTHER,host", b"x-other: 2", b"Content-Length: 3", b"Keep: me"]
    raw = request(*lines, b"connection: content-length, transfer-encoding, close")
    assert sent(raw) == request(b"Content-Length: 3", b"Keep: me").replace(b"dd", b"u:1")
    assert not parse_request(raw).keep_alive


def test_a_chunked_request_goes_on_with_the_length_of_what_was_read() -> None:
    raw = request(b"Transfer-Encoding: Chunked", b"A: 1")
    assert parse_request(raw).chunked
    assert sent(raw, 12) == request(b"A: 1", b"Content-Length: 12").replace(b"dd", b"u:1")
    assert sent(raw, 0) == request(b"A: 1", b"Content-Length: 0").replace(b"dd", b"u:1")


@pytest.mark.parametrize(
    "lines", [[b"Content-Length: 5", b"Content-Length: 5"], [b"Content-Length: 5, 5"], [b"Content-Length: 5"]]
)
def test_equal_lengths_count_as_one(lines: list[bytes]) -> None:
    assert parse_request(request(*lines)).length == 5
    assert sent(request(*lines)) == request(b"Content-Length: 5").replace(b"dd", b"u:1")


@pytest.mark.parametrize(
    ("target", "forwarded"),
    [
        (b"/", b"/"),
        (b"//a//b", b"//a//b"),
        (b"/a%2Fb%zz?x=%20&y#z", b"/a%2Fb%zz?x=%20&y#z"),
        (b"/?", b"/?"),
        (b"http://dd", b"/"),
        (b"http://dd/x?y", b"/x?y"),
        (b"HTTP://dd:80/x", b"/x"),
        (b"https://dd?q", b"/?q"),
    ],
)
def test_the_target_goes_on_byte_for_byte_in_origin_form(target: bytes, forwarded: bytes) -> None:
    assert sent(request(start=b"GET %b HTTP/1.1" % target)).startswith(b"GET %b HTTP/1.1\r\n" % forwarded)


@pytest.mark.parametrize("target", [b"*", b"http://dd"])
def test_options_of_the_server_as_a_whole_stays_so(target: bytes) -> None:
    assert sent(request(start=b"OPTIONS %b HTTP/1.1" % target)).startswith(b"OPTIONS * HTTP/1.1\r\n")


def test_an_http10_request_goes_on_as_http11_with_a_host() -> None:
    head = parse_request(request(b"A: 1", b"Connection: keep-alive", start=b"GET /x HTTP/1.0", host=False))
    assert head.upstream_bytes(b"u:1", 0) == b"GET /x HTTP/1.1\r\nHost: u:1\r\nA: 1\r\n\r\n"
    assert (head.http10, head.keep_alive) == (True, False)


@pytest.mark.parametrize(
    ("lines", "keep_alive"),
    [
        ([], True),
        ([b"Connection: keep-alive"], True),
        ([b"Connection: close"], False),
        ([b"Connection: CLOSE"], False),
        ([b"Connection: x, close"], False),
        ([b"Connection: x", b"Connection: close"], False),
        ([b"Connection: closed"], True),
    ],
)
def test_when_the_clients_connection_goes_on(lines: list[bytes], keep_alive: bool) -> None:
    assert parse_request(request(*lines)).keep_alive is keep_alive


def test_expect_is_answered_here_and_not_forwarded() -> None:
    head = parse_request(request(b"Expect: 100-Continue"))
    assert head.expects_continue
    assert b"xpect" not in head.upstream_bytes(b"u:1", 0)
    http10 = parse_request(request(b"Expect: 100-continue", start=b"POST / HTTP/1.0"))
    assert not http10.expects_continue
    other = parse_request(request(b"Expect: something-else"))
    assert not other.expects_continue
    assert b"Expect: something-else" in other.upstream_bytes(b"u:1", 0)


@pytest.mark.parametrize(
    ("start", "for_proxy"),
    [
        (b"GET /health HTTP/1.1", True),
        (b"HEAD /health?x HTTP/1.1", True),
        (b"GET http://dd/health HTTP/1.0", True),
        (b"POST /health HTTP/1.1", False),
        (b"GET /healthz HTTP/1.1", False),
        (b"GET /health/ HTTP/1.1", False),
        (b"GET //health HTTP/1.1", False),
    ],
)
def test_what_is_answered_here(start: bytes, for_proxy: bool) -> None:
    head: RequestHead = parse_request(request(start=start))
    assert (head.for_proxy, head.counts) == (for_proxy, not for_proxy)


# ---------------------------------------------------------------------------------------------------------- responses


BAD_ANSWERS = [
    answer(b"Content-Length: 5", b"Transfer-Encoding: chunked"),
    answer(b"Content-Length: 5", b"Content-Length: 5"),
    answer(b"Content-Length: 5", b"Content-Length: 6"),
    answer(b"Content-Length: x"),
    answer(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
    answer(b"Transfer-Encoding: gzip"),
    answer(b"Transfer-Encoding: gzip, chunked"),
    answer(b"Transfer-Encoding: chunked", start=b"HTTP/1.0 200 OK"),
    answer(b"X : y"),
    answer(b"X: a\x00"),
    answer(b"X: y\nZ: z"),
    answer(start=b"HTTP/1.1 20 OK"),
    answer(start=b"HTTP/1.1 2000 OK"),
    answer(start=b"HTTP/1.1 abc OK"),
    answer(start=b"HTTP/1.1  200 OK"),
    answer(start=b"HTTP/1.1"),
    answer(start=b"HTTP/x.y 200 OK"),
    answer(start=b"HTTP/1.1 101 Switching Protocols"),
    answer(start=b"HTTP/1.1 200 O\x00K"),
]


@pytest.mark.parametrize("raw", BAD_ANSWERS)
def test_a_malformed_response_is_a_protocol_error(raw: bytes) -> None:
    with pytest.raises(HeadError):
        parse_response(raw)


@pytest.mark.parametrize("status", [100, 102, 103, 199])
def test_interim_responses_are_recognised(status: int) -> None:
    assert parse_response(answer(start=b"HTTP/1.1 %d X" % status)) is None


@pytest.mark.parametrize(
    ("raw", "framing", "length"),
    [
        (answer(b"Content-Length: 5"), Framing.LENGTH, 5),
        (answer(b"Content-Length: 0"), Framing.LENGTH, 0),
        (answer(b"Transfer-Encoding: Chunked"), Framing.CHUNKED, 0),
        (answer(), Framing.CLOSE, 0),
        (answer(start=b"HTTP/1.0 200 OK"), Framing.CLOSE, 0),
        (answer(b"Content-Length: 5", start=b"HTTP/1.1 204 No Content"), Framing.NONE, 0),
        (answer(b"Content-Length: 5", start=b"HTTP/1.1 304 Not Modified"), Framing.NONE, 0),
    ],
)
def test_how_the_end_of_a_response_is_known(raw: bytes, framing: Framing, length: int) -> None:
    head = parsed(raw)
    assert (head.framing, head.length) == (framing, length)


def test_a_response_goes_on_as_it_came() -> None:
    raw = answer(
        b"x-a: 1", b"X-A: 2", b"Set-Cookie: a", b"set-cookie: b", b"Content-Length: 3", start=b"HTTP/1.1 299 Odd Word"
    )
    assert parsed(raw).out == raw
    assert parsed(raw).verbatim


@pytest.mark.parametrize("reason", [b"", b" ", b" OK", b" \xc3\xa4", b" Two  words"])
def test_the_reason_goes_on_as_it_came(reason: bytes) -> None:
    head = parsed(answer(b"Content-Length: 0", start=b"HTTP/1.1 200" + reason))
    assert head.out.split(b"\r\n")[0] == b"HTTP/1.1 200" + (reason or b" ")


@pytest.mark.parametrize("line", HOPS)
def test_hop_by_hop_fields_of_a_response_stay_here(line: bytes) -> None:
    head = parsed(answer(b"A: 1", line, b"Content-Length: 0"))
    assert head.out == answer(b"A: 1", b"Content-Length: 0")
    assert not head.verbatim


def test_nominated_fields_of_a_response_stay_here() -> None:
    head = parsed(answer(b"A: 1", b"Connection: a, content-length", b"B: 2", b"Content-Length: 0"))
    assert head.out == answer(b"B: 2", b"Content-Length: 0")


def test_a_204_has_no_length() -> None:
    head = parsed(answer(b"Content-Length: 5", b"A: 1", start=b"HTTP/1.1 204 No Content"))
    assert head.out == answer(b"A: 1", start=b"HTTP/1.1 204 No Content")


@pytest.mark.parametrize(
    ("raw", "keep_alive"),
    [
        (answer(b"Content-Length: 0"), True),
        (answer(b"Content-Length: 0", b"Connection: close"), False),
        (answer(b"Content-Length: 0", start=b"HTTP/1.0 200 OK"), False),
        (answer(b"Content-Length: 0", b"Connection: keep-alive", start=b"HTTP/1.0 200 OK"), False),
    ],
)
def test_when_the_upstreams_connection_may_be_used_again(raw: bytes, keep_alive: bool) -> None:
    assert parsed(raw).keep_alive is keep_alive


CHUNKED = answer(b"A: 1", b"Transfer-Encoding: chunked", b"B: 2")


@pytest.mark.parametrize(
    ("raw", "side", "expected"),
    [
        (CHUNKED, ClientSide(), CHUNKED),
        (
            CHUNKED,
            ClientSide(close=True),
            answer(b"A: 1", b"Transfer-Encoding: chunked", b"B: 2", b"Connection: close"),
        ),
        (CHUNKED, ClientSide(http10=True), answer(b"A: 1", b"B: 2")),
        (answer(b"A: 1"), ClientSide(), answer(b"A: 1", b"Transfer-Encoding: chunked")),
        (answer(b"A: 1"), ClientSide(http10=True), answer(b"A: 1")),
        (answer(b"A: 1"), ClientSide(bodyless=True), answer(b"A: 1")),
        (answer(b"Content-Length: 0"), ClientSide(add_retry_after=3), answer(b"Content-Length: 0", b"Retry-After: 3")),
    ],
)
def test_what_is_added_for_a_client(raw: bytes, side: ClientSide, expected: bytes) -> None:
    assert client_head(parsed(raw), side) == expected


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"0", 0.0),
        (b"17", 17.0),
        (b"1.5", 1.5),
        (b" 2 ", 2.0),
        (b"99999999999999999999", float("inf")),
        (b"Sun, 06 Nov 1994 08:49:37 GMT", 37.0),
        (b"Sun, 06 Nov 1994 08:48:00 GMT", 0.0),
        (b"Sunday, 06-Nov-94 08:49:37 GMT", 37.0),
        (b"-1", None),
        (b"soon", None),
        (b"", None),
        (b"1e3", None),
        (b"\xb2", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: bytes, seconds: float | None) -> None:
    assert retry_after_s(value, 784111740.0) == seconds


@pytest.mark.parametrize(
    "value", [b"Sun, 06 Nov 99999 08:49:37 GMT", b"Sun, 99 Nov 1994 99:99:99 GMT", b",", b"Mon, ,"]
)
def test_a_retry_after_that_makes_no_sense_is_nothing(value: bytes) -> None:
    assert retry_after_s(value, 0.0) is None
