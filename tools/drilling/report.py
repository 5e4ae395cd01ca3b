"""The page of all drills: a summary, then each drill with its verdicts, its events and its charts.

Pure: reports in, HTML out; charts and frame are those of the load report.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from tools.drilling.checks import State
from tools.drilling.runner import Report
from tools.load import page, report
from tools.load.charts import clock

_STATE_CLASSES = {State.HELD: "pass", State.BROKEN: "fail", State.SKIPPED: "skip"}


def render(reports: Sequence[Report], when: str) -> str:
    """Return the whole page; `when` is the time of the run in words."""
    passed = sum(one.passed for one in reports)
    skipped = sum(bool(one.skipped) for one in reports)
    failed = len(reports) - passed - skipped
    requests = sum(figures["requests"] for one in reports for figures in one.figures)
    broken = sum(verdict.state is State.BROKEN for one in reports for verdict in one.verdicts)
    held = sum(verdict.state is State.HELD for one in reports for verdict in one.verdicts)
    tiles = page.tiles(
        [
            ("Drills passed", f"{passed}", f"of {len(reports)}" + (f", {skipped} skipped" if skipped else "")),
            ("Drills failed", f"{failed}", "none" if not failed else "see below"),
            ("Promises held", f"{held}", f"{broken} broken"),
            ("Requests", f"{requests:,}", "sent by all clients"),
        ]
    )
    body = tiles + _summary(reports) + "".join(map(_drill, reports))
    title = "Drills: all promises held" if not failed else f"Drills: {failed} of {len(reports)} failed"
    return page.document(title, f"Overload and failure drills of dd-proxy  ·  {when}", body)


def counts(figures: dict[str, Any]) -> str:
    """Say in words how the requests of one load ended."""
    words = f"{figures['completed']:,} ended well"
    if figures["left"]:
        words += f", {figures['left']:,} left on purpose"
    return f"{words}, {figures['failed']:,} lost"


def _state(one: Report) -> str:
    if one.skipped:
        return '<span class="skip">skipped</span>'
    return '<span class="pass">passed</span>' if one.passed else '<span class="fail">FAILED</span>'


def _summary(reports: Sequence[Report]) -> str:
    rows = []
    for one in reports:
        faults = [verdict for verdict in one.verdicts if verdict.state is State.BROKEN]
        said = one.skipped or "; ".join(f"{fault.promise}: {fault.said}" for fault in faults)
        if not said:
            said = "; ".join(map(counts, one.figures))
        link = f'<a href="#{html.escape(one.drill.name)}">{html.escape(one.drill.title)}</a>'
        rows.append([link, _state(one), html.escape(said)])
    return page.section("Summary", page.stacked_table(("Drill", "Result", "What was found"), rows))


def _drill(one: Report) -> str:
    drill = one.drill
    if one.skipped:
        return page.section(
            drill.title, f'<p class="skip">Skipped: {html.escape(one.skipped)}.</p>', drill.about, drill.name
        )
    rows = [
        [
            html.escape(verdict.promise),
            f'<span class="{_STATE_CLASSES[verdict.state]}">{verdict.state.value}</span>',
            html.escape(verdict.said),
        ]
        for verdict in one.verdicts
    ]
    body = page.stacked_table(("Promise", "Verdict", "Figures"), rows)
    if one.happened:
        body += "<h3>What happened</h3>" + page.pairs((clock(at), words) for at, words in one.happened)
    body = page.section(drill.title, body, drill.about, drill.name)
    for index, figures in enumerate(one.figures):
        load = drill.loads[index]
        words = ", ".join(f"{key.replace('_', ' ')} {_plain(value)}" for key, value in load.items())
        heading = f"Load {index + 1} of {len(one.figures)}" if len(one.figures) > 1 else "The load"
        inner = report.tiles(figures) + page.notes(figures["notes"]) + report.sections(figures)
        body += f'<details class="load"><summary>{heading}: {html.escape(words)}</summary>{inner}</details>'
    return body


def _plain(value: object) -> str:
    if isinstance(value, list):
        return f"{min(value):g} to {max(value):g} by the hour"
    return str(value)
