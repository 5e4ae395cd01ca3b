"""Ask a running proxy's side port, for the terminal tools; what goes wrong becomes one line for a person.

Owns the HTTP of `dd-proxy top` and `dd-proxy why`. Knows no more of the proxy than its side port tells.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import urllib.error
import urllib.request
from typing import Any, NoReturn
from urllib.parse import urlsplit

DEFAULT_URL = "http://127.0.0.1:9000"
TIMEOUT_S = 5.0


class SideError(Exception):
    """An answer that is of no use; the text says what was asked, what came of it and what to do."""


class Parser(argparse.ArgumentParser):
    """A parser of options whose errors are one line with exit code 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def add_url_option(parser: Parser) -> None:
    """Add `--url`, the address of the side port."""
    text = f"the proxy's side port, as its listening line says under `metrics` (default: {DEFAULT_URL})"
    parser.add_argument("--url", default=DEFAULT_URL, type=_side_url, help=text)


def fetch(url: str, path: str) -> Any:
    """Get the JSON value at `path` of the side port `url`. Raises SideError."""
    # Proxies of the environment are for the outside; the side port is asked directly.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}{path}", timeout=TIMEOUT_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise SideError(_refusal(error, url)) from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise SideError(
            f"no answer from {url} ({reason}); --url takes the address that the proxy's listening line "
            "names under `metrics`"
        ) from None
    except ValueError:
        raise SideError(f"what answers at {url} is not the side port of dd-proxy") from None


def complain(program: str, error: SideError) -> int:
    """Print one line and return the exit code of a failure."""
    print(f"{program}: {error}", file=sys.stderr)
    return 1


def _refusal(error: urllib.error.HTTPError, url: str) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError, OSError):
        return f"{url} answered {error.code}: it is not the side port of dd-proxy"


def _side_url(text: str) -> str:
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(url)
        good = parts.scheme == "http" and parts.hostname and parts.path in ("", "/") and not parts.query
        _ = parts.port
    except ValueError:
        good = False
    if not good:
        raise argparse.ArgumentTypeError("write http://host:port")
    return url.rstrip("/")
