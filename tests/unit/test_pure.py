"""The shape of the code: which modules decide without touching the world, and who may speak to h11."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import proxy

FOLDER = Path(proxy.__file__).parent
PURE = [
    *("backend_url", "balancer", "breaker", "config", "counters", "events", "failover", "framing", "headers", "kinds"),
    *("options", "outcome", "pool", "queue_depth", "replies", "units", "upstream"),
]
UNPURE_IMPORTS = frozenset({"asyncio", "h11", "prometheus_client", "uvloop", "socket", "ssl", "select", "threading"})
UNPURE_NAMES = frozenset({"open", "print", "input"})
ONLY_IN = {"h11": {"wire", "side_port"}, "prometheus_client": {"metrics"}, "uvloop": {"server"}}


def tree(module: str) -> ast.Module:
    return ast.parse((FOLDER / f"{module}.py").read_text())


def imported(module: str) -> set[str]:
    """Give the full names of the modules that a module imports, wherever in it."""
    names = set()
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("module", PURE)
def test_a_pure_module_imports_nothing_that_touches_the_world(module: str) -> None:
    roots = {name.partition(".")[0] for name in imported(module)}
    assert roots & UNPURE_IMPORTS == set()
    named = {node.id for node in ast.walk(tree(module)) if isinstance(node, ast.Name)}
    assert named & UNPURE_NAMES == set()


@pytest.mark.parametrize("module", PURE)
def test_a_pure_module_leans_on_pure_modules_only(module: str) -> None:
    own = {name.removeprefix("proxy.").partition(".")[0] for name in imported(module) if name.startswith("proxy.")}
    assert own <= set(PURE)


@pytest.mark.parametrize("module", sorted({*PURE} - {"events", "headers", "kinds"}))
def test_a_pure_module_is_given_the_time_and_never_reads_it(module: str) -> None:
    assert {"time", "datetime"} & {name.partition(".")[0] for name in imported(module)} == set()


@pytest.mark.parametrize("library", ONLY_IN)
def test_a_library_has_one_home(library: str) -> None:
    modules = {path.stem for path in FOLDER.glob("*.py")}
    users = {m for m in modules if library in {name.partition(".")[0] for name in imported(m)}}
    assert users <= ONLY_IN[library]


def test_every_module_says_what_it_owns() -> None:
    silent = [path.name for path in FOLDER.glob("*.py") if not ast.get_docstring(ast.parse(path.read_text()))]
    assert silent == []
