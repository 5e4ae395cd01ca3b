"""The status page as the side port sends it: page.html with a policy that lets it load nothing from anywhere.

Owns the response around the page; what is on it is page.html's and status.py's.
"""

from __future__ import annotations

import base64
import hashlib
import pkgutil
import re
from functools import cache

from proxy.side_api import Reply

_SCRIPT = re.compile(rb"<script>(.*?)</script>", re.DOTALL)
_STYLE = re.compile(rb"<style>(.*?)</style>", re.DOTALL)


@cache
def reply() -> Reply:
    """Give the page with its security fields; its script and style are allowed by their hashes, nothing else is."""
    html = pkgutil.get_data("proxy", "page.html")
    assert html is not None
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hashes(_SCRIPT, html)}",
            f"style-src {_hashes(_STYLE, html)}",
            "img-src data:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )
    headers = (("Content-Security-Policy", policy), ("Referrer-Policy", "no-referrer"))
    return Reply(200, html, "text/html; charset=utf-8", headers)


def _hashes(pattern: re.Pattern[bytes], html: bytes) -> str:
    digests = (hashlib.sha256(part).digest() for part in pattern.findall(html))
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
