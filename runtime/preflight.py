"""What is checked before any replica starts: the nodes, the budget, the variables, and on each node ports and commands.

Owns the order of these checks and their errors. A failure starts nothing.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from runtime.attempt import Attempt
from runtime.launcher import StepError
from runtime.nodecheck import check_node
from runtime.services import Node, Replica, Services
from runtime.site import SiteError, force_step
from runtime.steps import deployment_of, missing_env, preflight_step
from runtime.units import human_duration

PREFLIGHT_TIMEOUT_S = 120.0


class StartupError(Exception):
    """The attempt cannot start. The text is one line for a person that says what, where and how to mend it."""


async def preflight(attempt: Attempt, environ: dict[str, str]) -> None:
    """Resolve the nodes and check everything that a start needs. Raises StartupError with every problem found."""
    try:
        nodes = await attempt.site.nodes()
        attempt.save_services(locate(attempt, nodes))
        await _check_time(attempt)
    except SiteError as error:
        raise StartupError(str(error)) from None
    missing = missing_env([*attempt.plan.deployments, attempt.plan.client], environ)
    if missing:
        names = ", ".join(missing)
        raise StartupError(f"from_env: {names} not set in the environment of the attempt: export before submitting")
    problems = await (_check_here(attempt, environ) if attempt.site.job is None else _check_nodes(attempt))
    if problems:
        raise StartupError("; ".join(problems))
    attempt.journal.event("preflight_passed", nodes=len(nodes))


def locate(attempt: Attempt, nodes: tuple[Node, ...]) -> Services:
    """Give every placed replica its node and address. Raises SiteError when the allocation is too small."""
    wanted = max(placed.node for placed in attempt.placed) + 1
    if len(nodes) < wanted:
        raise SiteError(f"the allocation has {len(nodes)} nodes, the plan places replicas on {wanted}")
    replicas = []
    for placed in attempt.placed:
        node = nodes[placed.node]
        name = deployment_of(attempt.plan, placed.deployment).replica_name(placed.index)
        replicas.append(Replica(name, placed.deployment, node.name, node.address, placed.port))
    job = attempt.site.job
    if job is None:
        return Services(nodes, tuple(replicas))
    return Services(nodes, tuple(replicas), job=job.id, restart_count=job.restart_count)


async def _check_time(attempt: Attempt) -> None:
    """Compare the budget of an orderly end with what the site gives."""
    need = attempt.budget.total_s
    left = await attempt.site.time_left_s()
    if left is not None and left <= need:
        raise StartupError(
            f"{human_duration(max(0.0, round(left)))} are left of the job's time, an orderly end may take "
            f"{human_duration(need)}: give [job] a longer time, or shorten drain_timeout and stop_timeout"
        )
    kill_wait = await attempt.site.kill_wait_s()
    warning = None if kill_wait is None else attempt.budget.cut_by(kill_wait)
    if warning is not None:
        attempt.journal.event("kill_wait_short", reason=warning)


async def _check_here(attempt: Attempt, environ: dict[str, str]) -> list[str]:
    head = attempt.services.head
    return await asyncio.to_thread(check_node, attempt.plan, attempt.services, head, attempt.directory, environ)


async def _check_nodes(attempt: Attempt) -> list[str]:
    """Run the checks on every node in one step, which says one JSON line for each."""
    said = bytearray()
    try:
        step = attempt.launch(preflight_step(attempt.plan, attempt.directory, attempt.own), said.extend)
    except StepError as error:
        raise StartupError(str(error)) from None
    try:
        if not await step.wait(PREFLIGHT_TIMEOUT_S):
            silent = ", ".join(_silent(attempt, said))
            raise StartupError(f"preflight: no answer from {silent} within {human_duration(PREFLIGHT_TIMEOUT_S)}")
        # Its last words may still be on their way through the pipe when the child has been reaped.
        await asyncio.wait({step.drained}, timeout=1.0)
    finally:
        await force_step(attempt.site, step, attempt.note())
    silent_nodes = _silent(attempt, said)
    if silent_nodes:
        code = step.exited.result() if step.exited.done() else None
        raise StartupError(f"preflight failed on {', '.join(silent_nodes)} (exit {code}); see logs/{step.name}.err")
    return [problem for report in _reports(said) for problem in report["problems"]]


def _silent(attempt: Attempt, said: bytearray) -> list[str]:
    heard = {report["node"] for report in _reports(said)}
    return [node.name for node in attempt.services.nodes if node.name not in heard]


def _reports(said: bytearray) -> list[dict[str, Any]]:
    found = []
    for line in bytes(said).splitlines():
        try:
            report = json.loads(line)
        except ValueError:
            continue  # what a site's task prolog prints
        if isinstance(report, dict) and "node" in report and isinstance(report.get("problems"), list):
            found.append(report)
    return found
