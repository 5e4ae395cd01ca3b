"""A batch client as small as one can be: each record is written by one model and judged by another.

    python3 examples/generate.py --writer URL/v1 --judge URL/v1 --records N --out FILE

Needs only the standard library. It leaves failover to dd-proxy and answers a 429 as its Retry-After says.
"""

from __future__ import annotations

import argparse
import json
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def ask(base_url: str, prompt: str, max_tokens: int) -> str:
    """Return a model's answer. Raises URLError when the endpoint does not give one."""
    body = {"model": "any", "max_tokens": max_tokens, "messages": [{"role": "user", "content": prompt}]}
    request = urllib.request.Request(
        f"{base_url}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    while True:
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                answer: dict[str, Any] = json.load(response)
                return str(answer["choices"][0]["message"]["content"])
        except urllib.error.HTTPError as error:
            if error.code != 429:
                raise
            time.sleep(float(error.headers.get("Retry-After", "1")))


def main() -> None:
    """Generate the records and write them in their order, each as soon as it is its turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--writer", required=True, metavar="URL", help="base URL of the model that writes")
    parser.add_argument("--judge", required=True, metavar="URL", help="base URL of the model that judges")
    parser.add_argument("--records", type=int, default=100, metavar="N", help="how many (default %(default)s)")
    parser.add_argument("--parallel", type=int, default=16, metavar="N", help="at once (default %(default)s)")
    parser.add_argument("--out", required=True, metavar="FILE", help="JSON lines")
    args = parser.parse_args()

    def generate(number: int) -> str:
        text = ask(args.writer, f"Write story {number}.", 32)
        return json.dumps({"id": number, "text": text, "verdict": ask(args.judge, f"Judge: {text}", 4)})

    with ThreadPoolExecutor(args.parallel) as pool, open(args.out, "w", encoding="utf-8") as out:
        for line in pool.map(generate, range(args.records)):
            print(line, file=out, flush=True)


if __name__ == "__main__":
    main()
