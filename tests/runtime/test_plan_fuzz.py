"""Whatever a plan file holds, it is read whole or refused with plain lines; nothing else ever comes out."""

from __future__ import annotations

import copy
import datetime
import tomllib
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.plan import Plan, plan_from_json, plan_to_json
from runtime.planfile import PlanErrors, parse_plan
from runtime.render import render
from tests.runtime.plans import FULL

_SCALARS = (
    st.text(max_size=12)
    | st.integers(-(2**40), 2**40)
    | st.floats()
    | st.booleans()
    | st.just(datetime.date(2026, 11, 29))
    | st.sampled_from(
        ["1s", "10m", "999999999d", "00:00:01", "1MiB", "{port}", "{{port}}", "{endpoint.llama}", "--hold"]
    )
)
_KEYS = st.text(max_size=8) | st.sampled_from(["name", "from_env", "path", "records", "listen_port", "backend"])
VALUES: st.SearchStrategy[Any] = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3), max_leaves=6
)


def _places(value: object, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """List the way to every value in a TOML document."""
    steps = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    return [here] * bool(here) + [place for key, item in steps for place in _places(item, (*here, key))]


_DOCUMENT = tomllib.loads(FULL)
_CHANGES = st.lists(st.tuples(st.sampled_from(_places(_DOCUMENT)), VALUES | st.just("remove")), max_size=3)


def _changed(changes: list[tuple[tuple[Any, ...], Any]]) -> dict[str, Any]:
    document = copy.deepcopy(_DOCUMENT)
    for place, value in changes:
        holder: Any = document
        try:
            for step in place[:-1]:
                holder = holder[step]
            if value == "remove":
                del holder[place[-1]]
            else:
                holder[place[-1]] = value
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took this place away
    return document


@given(_CHANGES, st.dictionaries(_KEYS, VALUES, max_size=1))
@settings(max_examples=300, deadline=None)
def test_a_changed_plan_is_read_or_refused_in_plain_lines(changes: list[Any], more: dict[str, Any]) -> None:
    try:
        plan = parse_plan({**_changed(changes), **more}, Path("/plans/plan.toml"))
    except PlanErrors as found:
        lines = str(found).splitlines()
        assert len(lines) == len(found.errors) >= 1
        assert all(line.startswith("/plans/plan.toml: ") for line in lines)
        return
    assert isinstance(plan, Plan)
    assert plan_from_json(plan_to_json(plan)) == plan
    assert render(plan).startswith("#!/bin/bash\n")
