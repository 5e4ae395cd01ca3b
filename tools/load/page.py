"""The frame of a report page: one self-contained HTML file, light and dark, for desk and phone.

Owns style and markup of headings, tiles and tables; knows nothing of what is measured. No script, no request to
anywhere.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from pathlib import Path

STYLE = Path(__file__).with_name("page.css")
_SELF_EVIDENT = ("Result", "Verdict")
_COLOURS = [f"s{number}" for number in range(1, 9)]
_STATES = {
    "healthy": "good", "unknown": "off", "absent": "off", "unhealthy": "bad", "open": "serious", "half_open": "warn",
    "draining": "s4", "blocked": "warn",
}  # fmt: skip


def _colour_rules() -> str:
    pairs = [(name, name) for name in _COLOURS] + list(_STATES.items())
    rules = [f".line.{name}{{stroke:var(--{value})}}.fill.{name},rect.{name}{{fill:var(--{value})}}"
             f"i.{name}{{background:var(--{value})}}" for name, value in pairs]  # fmt: skip
    rules += [f".heat.h{step}{{fill:var(--h{step})}}i.h{step}{{background:var(--h{step})}}" for step in range(9)]
    return "".join(rules)


def document(title: str, subtitle: str, body: str) -> str:
    """Return the whole page around a body of finished markup."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE.read_text()}{_colour_rules()}</style></head><body><main>"
        f'<h1>{html.escape(title)}</h1><p class="sub">{html.escape(subtitle)}</p>{body}</main></body></html>\n'
    )


def section(heading: str, body: str, explained: str = "", anchor: str = "") -> str:
    """Return one card of the page."""
    mark = f' id="{html.escape(anchor)}"' if anchor else ""
    words = f'<p class="sub">{html.escape(explained)}</p>' if explained else ""
    return f"<section{mark}><h2>{html.escape(heading)}</h2>{words}{body}</section>"


def tiles(items: Iterable[tuple[str, str, str]]) -> str:
    """Return the figures that matter most: (what, figure, remark)."""
    cells = "".join(
        f'<div class="tile"><span class="what">{html.escape(what)}</span><b>{html.escape(figure)}</b>'
        f"<span>{html.escape(remark)}</span></div>"
        for what, figure, remark in items
    )
    return f'<div class="tiles">{cells}</div>'


def notes(texts: Iterable[str]) -> str:
    """Return what must be known before the figures are believed."""
    return "".join(f'<p class="note" role="note">{html.escape(text)}</p>' for text in texts)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of finished cells; the first column is text, the others figures."""
    top = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def stacked_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of finished text cells whose rows become cards on a phone; verdicts need no name there."""
    top = "".join(f'<th scope="col" class="left">{cell}</th>' for cell in head)
    body = ""
    for row in rows:
        cells = ""
        for index, (name, cell) in enumerate(zip(head, row, strict=True)):
            named = f' data-name="{name}"' if index and name not in _SELF_EVIDENT else ""
            cells += f'<td class="left"{named}>{cell}</td>'
        body += f"<tr>{cells}</tr>"
    return f'<table class="stack"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>'


def pairs(rows: Iterable[tuple[str, str]]) -> str:
    """Return a table of names and plain texts."""
    body = "".join(f"<tr><td>{html.escape(name)}</td><td>{html.escape(text)}</td></tr>" for name, text in rows)
    return f'<table class="pairs"><tbody>{body}</tbody></table>'
