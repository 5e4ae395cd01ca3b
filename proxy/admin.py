"""What the side port answers: which path means what, and who may change backends.

Owns the admin API of INTERFACE section 4 as a function from a request to a reply. Refuses to know sockets and h11
(side_port.py), and how a backend is drained or removed (the endpoint does that).
"""

from __future__ import annotations

import hmac
import math
import time
from collections.abc import Callable, Mapping
from urllib.parse import parse_qs, unquote, urlsplit

import orjson

from proxy import page
from proxy.config import parse_backend_url
from proxy.explain import explain
from proxy.history import History
from proxy.metrics import CONTENT_TYPE, Exposition
from proxy.side_api import JSON, Endpoint, Reply, Request, error_reply, json_reply
from proxy.status import backend_entry, status
from proxy.upstream import Backend

LISTED_REQUESTS = 100
CHANGES = frozenset({"POST", "PUT", "DELETE"})

Query = Mapping[str, list[str]]


class Refused(Exception):
    """A request that is answered with an error: its status, the reason for a person, and extra header fields."""

    def __init__(self, status: int, message: str, *headers: tuple[str, str]) -> None:
        super().__init__(message)
        self.reply = error_reply(status, message, headers)


class Admin:
    """Answer requests of the side port; `loopback` says that it is bound to a loopback address."""

    def __init__(self, endpoint: Endpoint, history: History, *, loopback: bool) -> None:
        self._endpoint = endpoint
        self._history = history
        self.loopback = loopback
        self._exposition = Exposition(endpoint)
        self._fixed: dict[str, dict[str, Callable[[Request, Query], Reply]]] = {
            "/": {"GET": self._page},
            "/healthz": {"GET": self._alive},
            "/readyz": {"GET": self._ready},
            "/backends": {"GET": self._list, "POST": self._add},
            "/status.json": {"GET": self._status},
            "/requests": {"GET": self._requests},
            "/scale": {"GET": self._scale, "PUT": self._scale},
        }

    async def answer(self, request: Request) -> Reply:
        """Answer one request; what is wrong with it becomes a JSON error. Cancellation leaves nothing behind."""
        path, _, query = request.target.partition("?")
        try:
            if path == "/metrics":
                _only(("GET",), request.method)
                return Reply(200, await self._exposition.render(time.monotonic()), CONTENT_TYPE)
            return self._route(request, path)(request, parse_qs(query, keep_blank_values=True))
        except Refused as refusal:
            return refusal.reply

    def _route(self, request: Request, path: str) -> Callable[[Request, Query], Reply]:
        """Find what answers; changes have passed every check on who asks. Raises Refused."""
        methods = self._fixed.get(path)
        if methods is None:
            methods = self._variable(path)
        _only(tuple(methods), request.method)
        if request.method in CHANGES:
            self._authorize(request)
        return methods["GET" if request.method == "HEAD" else request.method]

    def _variable(self, path: str) -> dict[str, Callable[[Request, Query], Reply]]:
        match path.split("/")[1:]:
            case ["requests", request_id] if request_id:
                return {"GET": lambda request, query: self._one_request(unquote(request_id))}
            case ["backends", name] if name:
                return {
                    "GET": lambda request, query: self._entry(200, self._backend(name)),
                    "DELETE": lambda request, query: self._remove(self._backend(name), query),
                }
            case ["backends", name, "drain"]:
                return {"POST": lambda request, query: self._drain(self._backend(name))}
            case ["backends", name, "resume"]:
                return {"POST": lambda request, query: self._resume(self._backend(name))}
        raise Refused(404, "there is nothing at this path; try /, /backends, /metrics, /healthz or /readyz")

    # ------------------------------------------------------------------ who may change something

    def changes(self) -> str:
        """Say whether backends may be changed here: `token` (with it), `open` (by anybody local) or `refused`."""
        if self._endpoint.config.admin_token is not None:
            return "token"
        return "open" if self.loopback else "refused"

    def _authorize(self, request: Request) -> None:
        token = self._endpoint.config.admin_token
        if token is None:
            if not self.loopback:
                raise Refused(403, "changes need --admin-token-file, since the side port is not bound to loopback")
            _check_origin(request)
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        matches = hmac.compare_digest(given.strip(" \t").encode("latin-1"), token.encode())
        if scheme.lower() != "bearer" or not matches:
            raise Refused(401, "changes need the admin token: Authorization: Bearer …", ("WWW-Authenticate", "Bearer"))

    # ------------------------------------------------------------------ backends

    def _backend(self, name: str) -> Backend:
        backend = self._endpoint.fleet.get(unquote(name))
        if backend is None:
            raise Refused(404, "no backend has this id; GET /backends lists them")
        return backend

    def _entry(self, status_code: int, backend: Backend) -> Reply:
        return json_reply(status_code, backend_entry(backend, time.monotonic()))

    def _list(self, request: Request, query: Query) -> Reply:
        now = time.monotonic()
        return json_reply(200, [backend_entry(backend, now) for backend in self._endpoint.fleet])

    def _add(self, request: Request, query: Query) -> Reply:
        text, required = _wanted_backend(request.body)
        try:
            url = parse_backend_url(text)
        except ValueError as error:
            raise Refused(400, str(error)) from None
        if not self._endpoint.config.allows(url):
            raise Refused(403, f"the host {url.host} is not among the allowed hosts")
        try:
            backend, created = self._endpoint.add_backend(url, required)
        except ValueError as error:
            raise Refused(409, str(error)) from None
        return self._entry(201 if created else 200, backend)

    def _drain(self, backend: Backend) -> Reply:
        self._endpoint.drain_backend(backend)
        return self._entry(200, backend)

    def _resume(self, backend: Backend) -> Reply:
        self._endpoint.resume_backend(backend)
        return self._entry(200, backend)

    def _remove(self, backend: Backend, query: Query) -> Reply:
        timeout_s = _seconds(query, "timeout", self._endpoint.config.drain_timeout_s)
        self._endpoint.remove_backend(backend, timeout_s)
        return self._entry(202, backend)

    # ------------------------------------------------------------------ reading

    def _page(self, request: Request, query: Query) -> Reply:
        return page.reply()

    def _alive(self, request: Request, query: Query) -> Reply:
        draining = self._endpoint.draining
        return json_reply(503 if draining else 200, {"status": "draining" if draining else "ok"})

    def _ready(self, request: Request, query: Query) -> Reply:
        verdict = self._endpoint.fleet.readiness()
        ok = verdict.ok and not self._endpoint.draining
        body = {"status": "ok" if ok else "unavailable", "backends_ready": verdict.ready, "backends": verdict.backends}
        return json_reply(200 if ok else 503, body)

    def _status(self, request: Request, query: Query) -> Reply:
        since = _count(query, "since", 0)
        return json_reply(200, status(self._endpoint, self._history, self.changes(), since, time.monotonic()))

    def _requests(self, request: Request, query: Query) -> Reply:
        notable = query.get("notable", ["0"])[-1] not in ("0", "")
        lines = self._endpoint.recent.lines(_count(query, "limit", LISTED_REQUESTS), notable=notable)
        return Reply(200, b"[" + b",\n".join(lines) + b"]\n", JSON)

    def _one_request(self, request_id: str) -> Reply:
        kept = self._endpoint.recent.find(request_id)
        if kept is None:
            raise Refused(404, "no such request among the recent ones; the log has the older ones")
        event = orjson.loads(kept.line)
        ids = [backend.id for backend in self._endpoint.fleet]
        words = explain(event, kept.choices, ids)
        return json_reply(200, {"request": event, "choices": kept.choices, "backends": ids, "explanation": words})

    def _scale(self, request: Request, query: Query) -> Reply:
        raise Refused(404, "this endpoint was started without a deployment whose size could be told or changed")


def _only(allowed: tuple[str, ...], method: str) -> None:
    if method in allowed or (method == "HEAD" and "GET" in allowed):
        return
    shown = ", ".join(sorted({*allowed, *(("HEAD",) if "GET" in allowed else ())}))
    raise Refused(405, f"this path takes {shown}", ("Allow", shown))


def _check_origin(request: Request) -> None:
    """Refuse what a foreign web page makes a browser send: it would come from loopback too.

    Browsers send Origin with every change. It must be this very server, called by a name that nobody else's DNS can
    point here. With a token this is not needed: no foreign page knows it.
    """
    origin, host = request.headers.get("origin"), request.headers.get("host", "")
    if origin is None:
        return
    if origin.partition("://")[2] != host:
        raise Refused(403, "without a token, changes are taken from this server's own page only")
    if not _is_local_name(host):
        raise Refused(403, "without a token, changes are taken from a page at an IP address or localhost only")


def _wanted_backend(body: bytes) -> tuple[str, bool]:
    """Read the body of POST /backends: the URL as text, and whether the backend is required."""
    try:
        wanted = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise Refused(400, 'the body must be JSON such as {"url": "http://host:port", "required": true}') from None
    if not isinstance(wanted, dict) or not isinstance(wanted.get("url"), str):
        raise Refused(400, 'the body must be a JSON object with a "url" in quotes')
    required = wanted.get("required", True)
    if not isinstance(required, bool):
        raise Refused(400, '"required" must be true or false')
    unknown = sorted(set(wanted) - {"url", "required"})
    if unknown:
        raise Refused(400, f'the body may hold "url" and "required" only, not {len(unknown)} other key(s)')
    return wanted["url"], required


def _seconds(query: Query, name: str, default: float) -> float:
    text = query.get(name, [None])[-1]
    if text is None:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (0 <= seconds < math.inf):
        raise Refused(400, f"{name} must be a number of seconds, 0 or more")
    return seconds


def _count(query: Query, name: str, default: int) -> int:
    text = query.get(name, [None])[-1]
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise Refused(400, f"{name} must be a whole number, 0 or more")
    return int(text)


def _is_local_name(host: str) -> bool:
    """Tell whether a Host field names an IP address or localhost, which no foreign DNS can redirect."""
    # Imported here: few ask from a browser, and every module costs idle memory.
    import ipaddress

    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
