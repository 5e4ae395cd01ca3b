"""The admin API answers as INTERFACE section 4 says, and lets nobody change a backend who may not."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from proxy.admin import Admin
from proxy.history import History
from proxy.side_api import Reply, Request
from tests.unit.stand_in import StandIn, attempt, remember, request_event, stand_in

ONE = "/backends/127.0.0.1%3A8001"


async def ask(
    endpoint: StandIn, method: str, target: str, body: object = b"", *, loopback: bool = True, **headers: str
) -> Reply:
    raw = body if isinstance(body, bytes) else orjson.dumps(body)
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return await Admin(endpoint, History(), loopback=loopback).answer(Request(method, target, fields, raw))


async def value(endpoint: StandIn, target: str) -> Any:
    reply = await ask(endpoint, "GET", target)
    assert reply.status == 200, reply
    return orjson.loads(reply.body)


def ids(endpoint: StandIn) -> list[str]:
    return [backend.id for backend in endpoint.fleet]


async def test_backends_are_listed_with_the_fields_of_the_contract() -> None:
    endpoint = stand_in(2)
    one, _ = endpoint.fleet
    endpoint.fleet.lease(one, 0.0)
    endpoint.fleet.record_probe(one, True)
    one.failures, one.idle = 1, [object(), object()]
    listed = await value(endpoint, "/backends")
    assert listed[0] == {
        "id": "127.0.0.1:8001",
        "url": "http://127.0.0.1:8001",
        "required": True,
        "state": "active",
        "healthy": True,
        "breaker": "closed",
        "active": 1,
        "idle": 2,
        "queue_depth": None,
        "queue_age_s": None,
        "requests": 1,
        "failures": 1,
    }
    assert listed[1]["healthy"] is None


async def test_a_new_backend_is_201_and_the_same_again_200() -> None:
    endpoint = stand_in(1)
    new = {"url": "http://127.0.0.1:9009", "required": False}
    reply = await ask(endpoint, "POST", "/backends", new)
    assert (reply.status, orjson.loads(reply.body)["required"]) == (201, False)
    again = await ask(endpoint, "POST", "/backends", {"url": "http://127.0.0.1:9009"})
    assert (again.status, orjson.loads(again.body)["required"]) == (200, True)
    assert ids(endpoint) == ["127.0.0.1:8001", "127.0.0.1:9009"]


async def test_the_same_address_under_another_scheme_is_409() -> None:
    endpoint = stand_in(1)
    assert (await ask(endpoint, "POST", "/backends", {"url": "https://127.0.0.1:8001"})).status == 409


async def test_a_host_that_is_not_allowed_is_403() -> None:
    endpoint = stand_in(1, allowed_host=["127.0.0.1"])
    assert (await ask(endpoint, "POST", "/backends", {"url": "http://10.0.0.1:80"})).status == 403
    assert ids(endpoint) == ["127.0.0.1:8001"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"http://a:1"',
        {"required": True},
        {"url": 7},
        {"url": "http://a:1", "required": 1},
        {"url": "http://a:1", "weight": 2},
        {"url": "http://a:1/path"},
        {"url": "http://a"},
        {"url": "ftp://a:1"},
    ],
)
async def test_a_body_that_names_no_backend_is_400(body: object) -> None:
    endpoint = stand_in(1)
    reply = await ask(endpoint, "POST", "/backends", body)
    assert (reply.status, orjson.loads(reply.body)["error"]["code"]) == (400, 400)
    assert ids(endpoint) == ["127.0.0.1:8001"]


async def test_the_reason_for_a_refused_url_does_not_repeat_a_password() -> None:
    reply = await ask(stand_in(1), "POST", "/backends", {"url": "http://user:hunter2@a:1"})
    assert reply.status == 400
    assert b"hunter2" not in reply.body


async def test_drain_and_resume_answer_with_the_entry() -> None:
    endpoint = stand_in(2)
    for action, state in (("drain", "draining"), ("resume", "active")):
        reply = await ask(endpoint, "POST", f"{ONE}/{action}")
        assert (reply.status, orjson.loads(reply.body)["state"]) == (200, state)
        assert next(iter(endpoint.fleet)).draining is (state == "draining")


@pytest.mark.parametrize(("query", "seconds"), [("", 10.0), ("?timeout=2.5", 2.5), ("?timeout=0", 0.0)])
async def test_delete_is_202_with_the_entry_and_its_timeout(query: str, seconds: float) -> None:
    endpoint = stand_in(2)
    reply = await ask(endpoint, "DELETE", ONE + query)
    assert reply.status == 202
    told = orjson.loads(reply.body)
    assert (told["url"], told["state"]) == ("http://127.0.0.1:8001", "draining")
    assert endpoint.removed == [("127.0.0.1:8001", seconds)]


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf", "", "-0.001"])
async def test_a_bad_timeout_is_400_and_removes_nothing(text: str) -> None:
    endpoint = stand_in(2)
    assert (await ask(endpoint, "DELETE", f"{ONE}?timeout={text}")).status == 400
    assert endpoint.removed == []


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("POST", "/backends/nobody/drain"),
        ("POST", "/backends/nobody/resume"),
        ("DELETE", "/backends/nobody"),
        ("GET", "/backends/nobody"),
        ("GET", "/nothing"),
        ("GET", "/backends/a/b/c"),
        ("GET", "/requests/unknown"),
        ("GET", "/scale"),
        ("PUT", "/scale"),
        ("GET", "/Metrics"),
        ("GET", "/backends/"),
    ],
)
async def test_what_is_not_there_is_404_as_json(method: str, target: str) -> None:
    reply = await ask(stand_in(1), method, target)
    assert (reply.status, orjson.loads(reply.body)["error"]["code"]) == (404, 404)


@pytest.mark.parametrize(
    ("method", "target", "allowed"),
    [
        ("POST", "/metrics", "GET, HEAD"),
        ("DELETE", "/", "GET, HEAD"),
        ("PUT", "/backends", "GET, HEAD, POST"),
        ("GET", f"{ONE}/drain", "POST"),
        ("POST", ONE, "DELETE, GET, HEAD"),
    ],
)
async def test_a_method_that_a_path_does_not_take_is_405_and_says_which_it_does(
    method: str, target: str, allowed: str
) -> None:
    reply = await ask(stand_in(1), method, target)
    assert (reply.status, dict(reply.headers)["Allow"]) == (405, allowed)


async def test_an_ipv6_id_is_found_percent_encoded_or_plain() -> None:
    endpoint = stand_in(1)
    await ask(endpoint, "POST", "/backends", {"url": "http://[::1]:9"})
    for name in ("[::1]:9", "%5B%3A%3A1%5D%3A9"):
        assert (await value(endpoint, f"/backends/{name}"))["id"] == "[::1]:9"


# ---------------------------------------------------------------------- who may change something

TOKEN = "s3cret-Token.1"
CHANGES = [("POST", "/backends"), ("POST", f"{ONE}/drain"), ("POST", f"{ONE}/resume"), ("DELETE", ONE)]


@pytest.mark.parametrize(("method", "target"), CHANGES)
@pytest.mark.parametrize(
    "given",
    [
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        f"Bearer {TOKEN}2",
        f"Bearer {TOKEN[:-1]}",
        f"Basic {TOKEN}",
        TOKEN,
        "Bearer é",
    ],
)
async def test_without_the_token_every_change_is_401(method: str, target: str, given: str) -> None:
    endpoint = stand_in(1, token=TOKEN)
    tried: list[dict[str, Any]] = [{"authorization": given}, {}]
    for headers in tried:
        reply = await ask(endpoint, method, target, {"url": "http://a:1"}, **headers)
        assert (reply.status, dict(reply.headers)["WWW-Authenticate"]) == (401, "Bearer")
        assert TOKEN.encode() not in reply.body
    assert ids(endpoint) == ["127.0.0.1:8001"]
    assert endpoint.removed == []


@pytest.mark.parametrize("loopback", [True, False])
async def test_with_the_token_a_change_is_made_wherever_the_port_is_bound(loopback: bool) -> None:
    endpoint = stand_in(1, token=TOKEN)
    reply = await ask(endpoint, "POST", f"{ONE}/drain", loopback=loopback, authorization=f"bearer  {TOKEN} ")
    assert reply.status == 200


@pytest.mark.parametrize(("method", "target"), CHANGES)
async def test_without_a_token_changes_are_for_loopback_only(method: str, target: str) -> None:
    endpoint = stand_in(1)
    reply = await ask(endpoint, method, target, {"url": "http://a:1"}, loopback=False, authorization="Bearer x")
    assert (reply.status, ids(endpoint)) == (403, ["127.0.0.1:8001"])


async def test_a_foreign_web_page_cannot_change_anything_through_a_browser() -> None:
    endpoint = stand_in(1)
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1"):
        reply = await ask(endpoint, "POST", f"{ONE}/drain", host="127.0.0.1:9000", origin=origin)
        assert reply.status == 403
    same = await ask(endpoint, "POST", f"{ONE}/drain", host="127.0.0.1:9000", origin="http://127.0.0.1:9000")
    assert same.status == 200


async def test_with_a_token_the_page_may_stand_behind_another_name() -> None:
    headers: dict[str, Any] = {"host": "127.0.0.1:9000", "origin": "https://ops.example"}
    endpoint = stand_in(1, token=TOKEN)
    assert (await ask(endpoint, "POST", f"{ONE}/drain", **headers)).status == 401
    assert (await ask(endpoint, "POST", f"{ONE}/drain", authorization=f"Bearer {TOKEN}", **headers)).status == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [("evil.example:9000", 403), ("localhost:9000", 200), ("[::1]:9000", 200), ("10.1.2.3:9000", 200), ("[::1", 403)],
)
async def test_a_name_that_foreign_dns_points_here_is_not_trusted_without_a_token(host: str, status: int) -> None:
    reply = await ask(stand_in(1), "POST", f"{ONE}/drain", host=host, origin=f"http://{host}")
    assert reply.status == status


async def test_reading_needs_no_token() -> None:
    endpoint = stand_in(1, token=TOKEN)
    for target in ("/", "/backends", ONE, "/metrics", "/healthz", "/status.json", "/requests"):
        for method in ("GET", "HEAD"):
            reply = await ask(endpoint, method, target, loopback=False)
            assert reply.status == 200, target
            assert TOKEN.encode() not in reply.body


# ---------------------------------------------------------------------- reading


async def test_readyz_is_the_verdict_of_health_and_healthz_only_that_the_process_serves() -> None:
    endpoint = stand_in(2)
    assert (await ask(endpoint, "GET", "/readyz")).status == 503
    assert (await ask(endpoint, "GET", "/healthz")).status == 200
    for backend in endpoint.fleet:
        endpoint.fleet.record_probe(backend, True)
    assert await value(endpoint, "/readyz") == {"status": "ok", "backends_ready": 2, "backends": 2}
    endpoint.draining = True
    assert (await ask(endpoint, "GET", "/readyz")).status == (await ask(endpoint, "GET", "/healthz")).status == 503


async def test_metrics_are_prometheus_text() -> None:
    reply = await ask(stand_in(1), "GET", "/metrics")
    assert (reply.status, reply.content_type) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert b"dd_proxy_requests_total 0.0\n" in reply.body


async def test_recent_requests_are_listed_newest_first_and_told_one_by_one() -> None:
    endpoint = stand_in(2)
    remember(endpoint, request_event("good"))
    attempts = [attempt("127.0.0.1:8001", "429", 0.012), attempt("127.0.0.1:8002", "200", 0.2)]
    remember(
        endpoint,
        request_event("bad", failover=True, attempts=2, upstreams=attempts),
        [{"queue_depth": ["127.0.0.1:8002"]}, {"tried": ["127.0.0.1:8001"]}],
    )
    assert [event["request_id"] for event in await value(endpoint, "/requests")] == ["bad", "good"]
    assert [event["request_id"] for event in await value(endpoint, "/requests?notable=1")] == ["bad"]
    assert [event["request_id"] for event in await value(endpoint, "/requests?limit=1")] == ["bad"]
    told = await value(endpoint, "/requests/bad")
    assert told["request"]["attempts"] == 2
    assert told["choices"] == [{"queue_depth": ["127.0.0.1:8002"]}, {"tried": ["127.0.0.1:8001"]}]
    assert "127.0.0.1:8001 answered 429 after 12 ms, 127.0.0.1:8002 served it" in told["explanation"][-1]
    assert (await ask(endpoint, "GET", "/requests?limit=many")).status == 400


async def test_the_page_may_load_nothing_from_anywhere() -> None:
    reply = await ask(stand_in(1), "GET", "/")
    assert reply.content_type.startswith("text/html")
    policy = dict(reply.headers)["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert len(reply.body) < 60_000


@pytest.mark.parametrize(
    ("token", "loopback", "word"),
    [("t", True, "token"), ("t", False, "token"), (None, True, "open"), (None, False, "refused")],
)
async def test_the_page_is_told_whether_changes_are_allowed(token: str | None, loopback: bool, word: str) -> None:
    reply = await ask(stand_in(1, token=token), "GET", "/status.json", loopback=loopback)
    assert orjson.loads(reply.body)["changes"] == word
