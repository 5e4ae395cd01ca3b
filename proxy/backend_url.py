"""Where a replica listens: host names, addresses and backend URLs. Pure text: resolves nothing, connects nowhere."""

from __future__ import annotations

import re
from dataclasses import dataclass

_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")

_BYTE = re.compile(r"0|[1-9]\d{0,2}")


@dataclass(frozen=True, slots=True)
class BackendUrl:
    """Where one replica listens; `host` is lower-case and without brackets."""

    scheme: str
    host: str
    port: int

    @property
    def authority(self) -> str:
        """Return `host:port`, an IPv6 address in brackets: the backend's id, Host field and metrics label."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """Return the URL in its one normal form, for example `http://[::1]:9`."""
        return f"{self.scheme}://{self.authority}"


def parse_host(text: str) -> str:
    """Return a host name or IP address in its normal form: lower case, IPv6 compressed and without brackets.

    Raises ValueError with a reason that does not repeat `text`.
    """
    host = text.lower()
    if not host:
        raise ValueError("the host is missing")
    if not host.isascii() or not host.isprintable() or " " in host:
        raise ValueError("the host must be printable ASCII without blanks")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if ":" in host:
        return _ipv6(host)
    labels = host.removesuffix(".").split(".")
    if all(label.isdigit() for label in labels):
        if len(labels) != 4 or not all(_BYTE.fullmatch(label) and int(label) < 256 for label in labels):
            raise ValueError("the host is not a valid IPv4 address")
        return ".".join(labels)
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError("the host is neither a host name nor an IP address")
    return host


def _ipv6(text: str) -> str:
    # Imported here: most deployments name no IPv6 address, and every module costs idle memory.
    import ipaddress

    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        raise ValueError("the host is not a valid IPv6 address") from None
    if address.scope_id is not None:
        raise ValueError("an IPv6 zone (%…) is not supported")
    return address.compressed


def parse_backend_url(text: str) -> BackendUrl:
    """Return the backend that `text` names: `http://host:port` or `https://host:port` and nothing more.

    Raises ValueError with a reason that shows the URL without user, password and query.
    """
    try:
        return _parse(text)
    except ValueError as error:
        raise ValueError(f"{redact_url(text)!r}: {error}; write http://host:port or https://host:port") from None


def redact_url(text: str) -> str:
    """Return `text` with what may be secret in a URL (user, password, query, fragment) masked and the end cut off."""
    shown = re.sub(r"[?#].*", lambda match: match[0][0] + "…", text, flags=re.DOTALL)
    head, separator, rest = shown.rpartition("@")
    if separator:
        scheme, slashes, _ = head.partition("://")
        shown = f"{scheme}://***@{rest}" if slashes else f"***@{rest}"
    return shown if len(shown) <= 100 else shown[:99] + "…"


def _parse(text: str) -> BackendUrl:
    scheme, separator, rest = text.partition("://")
    scheme = scheme.lower()
    if not text:
        raise ValueError("the URL is empty")
    if any(character.isspace() or not character.isprintable() for character in text):
        raise ValueError("blanks and control characters are not allowed")
    if not separator:
        raise ValueError("the scheme is missing")
    if scheme not in ("http", "https"):
        raise ValueError("the scheme must be http or https")
    for mark, name in (("#", "fragment"), ("?", "query"), ("@", "user or password"), ("/", "path"), ("\\", "path")):
        if mark in rest:
            raise ValueError(f"a {name} is not allowed")
    # A colon inside the brackets of an IPv6 address separates no port.
    bracket = rest.rfind("]")
    colon = rest.find(":", bracket + 1)
    host, port = (rest, None) if colon < 0 else (rest[:colon], rest[colon + 1 :])
    if ("[" in host or "]" in host) and not (host.startswith("[") and bracket == len(host) - 1):
        raise ValueError("the host is not a valid IPv6 address in brackets")
    if port is not None and ":" in port:
        raise ValueError("an IPv6 address must stand in brackets")
    host = parse_host(host)
    if not port:
        raise ValueError("the port is missing")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65535):
        raise ValueError("the port must be a number from 1 to 65535")
    return BackendUrl(scheme, host, int(port))
