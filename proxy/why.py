"""`dd-proxy why REQUEST_ID`: what happened to one request, in words. The side port tells it; this prints it."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from proxy.explain import sentence
from proxy.side_client import Parser, SideError, add_url_option, complain, fetch

PROGRAM = "dd-proxy why"
LISTED = 20


def main(argv: list[str]) -> int:
    """Print the story of one request, or a list of those that may be asked for; returns the exit code."""
    parser = Parser(PROGRAM, description=(
        "Tell what happened to one request: who could be chosen, who was left out and why, the attempts and their "
        "times. The proxy keeps the last 1,000 requests, and for longer the last 200 that failed over or ended badly."
    ))  # fmt: skip
    about = f"as in the log, or in the response with --request-id-header; without one: the last {LISTED} of interest"
    parser.add_argument("request_id", nargs="?", metavar="REQUEST_ID", help=about)
    add_url_option(parser)
    parser.add_argument("--json", action="store_true", help="print what the side port says, for scripts")
    options = parser.parse_args(argv)
    try:
        if options.request_id is None:
            path = f"/requests?notable=1&limit={LISTED}"
        else:
            path = f"/requests/{quote(options.request_id, safe='')}"
        told = fetch(options.url, path)
    except SideError as error:
        return complain(PROGRAM, error)
    if options.json:
        print(json.dumps(told, indent=2))
    elif options.request_id is None:
        print("\n".join(_listed(told)))
    else:
        print("\n".join(told["explanation"]))
    return 0


def _listed(events: list[dict[str, Any]]) -> list[str]:
    if not events:
        return ["No request failed over or ended badly so far. dd-proxy why REQUEST_ID tells of any recent one."]
    width = max(len(str(event["request_id"])) for event in events)
    return [
        f"{event['request_id']:<{width}}  {event['ts']}  {event['final_status']}  {sentence(event)}" for event in events
    ]
