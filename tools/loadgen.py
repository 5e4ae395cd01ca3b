#!/usr/bin/env python3
"""Put load on an LLM endpoint and say how it took it: `python tools/loadgen.py --url http://127.0.0.1:8000`.

The command: reads options, runs the load, writes table, JSON and page. Everything else is in `tools/load`.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import orjson

from tools.load import session
from tools.load.options import parse
from tools.load.report import render
from tools.load.text import table


def main(argv: list[str] | None = None) -> int:
    """Run the command; 0 when the run was made (whatever it found), 1 when nothing got an answer, 2 for bad usage."""
    settings = parse(argv)
    try:
        figures = session.in_loop(session.run(settings))
    except (ValueError, OSError) as error:
        print(f"loadgen: {error}", file=sys.stderr)
        return 2
    print(table(figures))
    try:
        if settings.json_file:
            settings.json_file.write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2))
        if settings.report_file:
            settings.report_file.write_text(render(figures, settings.title), encoding="utf-8")
    except OSError as error:
        print(f"loadgen: {error}", file=sys.stderr)
        return 2
    return 0 if figures["completed"] else 1


if __name__ == "__main__":
    sys.exit(main())
