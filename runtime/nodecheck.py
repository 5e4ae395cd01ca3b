"""What can be known about one node before anything starts there: ports, addresses, commands.

Owns the checks of a single node. It runs once on each node as the preflight step, and in the controller locally. Starts
nothing and opens no port for longer than it takes to try it.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from runtime.layout import AttemptDir, LayoutError
from runtime.placeholders import substitute
from runtime.plan import EnvValue, Plan
from runtime.planfile import read_resolved
from runtime.services import Node, Services, authority, read_services
from runtime.state import StateError
from runtime.steps import replica_values, resolve_env

LOOPBACK = "127.0.0.1"


def check_node(
    plan: Plan, services: Services, node: Node, attempt: AttemptDir, environ: Mapping[str, str]
) -> list[str]:
    """List what is wrong on `node`, which is the one that this process runs on; one line each."""
    problems = []
    for replica in services.replicas:
        if replica.node == node.name:
            problems += check_port(replica.name, replica.host, replica.port)
    for deployment in plan.deployments:
        mine = [replica for replica in services.of(deployment.name) if replica.node == node.name]
        if mine:
            program = substitute(deployment.command[:1], replica_values(mine[0], 0, attempt))[0]
            problems += check_command(deployment.name, program, deployment.env, environ)
    if node == services.head:
        problems += _check_head(plan, attempt, environ)
    return [f"{node.name}: {problem}" for problem in problems]


def _check_head(plan: Plan, attempt: AttemptDir, environ: Mapping[str, str]) -> list[str]:
    problems = []
    for deployment in plan.deployments:
        options = deployment.endpoint
        for host_key, port_key in (("listen_host", "listen_port"), ("metrics_host", "metrics_port")):
            host, port = str(options.get(host_key, LOOPBACK)), options.get(port_key, 0)
            if isinstance(port, int) and port > 0:
                problems += check_port(deployment.endpoint_name(), host, port)
    program = plan.client.command[0].replace("{attempt_dir}", str(attempt.path))
    return problems + check_command("client", program, plan.client.env, environ)


def check_port(owner: str, host: str, port: int) -> list[str]:
    """Try to bind a port; say who needed it when it cannot be had."""
    where = f"port {port} ({authority(host, port)}) of {owner}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        reasons = {
            errno.EADDRINUSE: "is taken by another process",
            errno.EADDRNOTAVAIL: "cannot be bound: this node does not have that address",
            errno.EACCES: "cannot be bound: it is reserved for root",
        }
        return [f"{where} {reasons.get(error.errno or 0, f'cannot be bound: {error.strerror}')}"]
    return []


def check_command(owner: str, program: str, env: Mapping[str, EnvValue], environ: Mapping[str, str]) -> list[str]:
    """Look a program up as the step will find it: in the step's own PATH, from the directory that it starts in."""
    path = {**environ, **resolve_env({key: env[key] for key in ("PATH",) if key in env}, environ)}.get("PATH")
    if shutil.which(program, path=path) is not None:
        return []
    if os.sep in program:
        return [f"command {program} of {owner} is not an executable file here (started from {os.getcwd()})"]
    return [f"command {program} of {owner} was not found in PATH"]


def this_node(services: Services, environ: Mapping[str, str]) -> Node:
    """Tell which node of the allocation this process runs on. Raises KeyError."""
    return services.node(environ.get("SLURMD_NODENAME") or os.uname().nodename)


def main_preflight(attempt_dir: Path) -> int:
    """Check this node for an attempt and print one JSON line with what is wrong; 1 when it cannot be checked."""
    attempt = AttemptDir(attempt_dir.absolute())
    try:
        services = read_services(attempt)
        node = this_node(services, os.environ)
        problems: Sequence[str] = check_node(read_resolved(attempt), services, node, attempt, os.environ)
    except (StateError, LayoutError, OSError, ValueError) as error:
        print(f"dd-proxy preflight: {error}", file=sys.stderr)
        return 1
    except KeyError as error:
        print(f"dd-proxy preflight: {error} is not a node of this attempt", file=sys.stderr)
        return 1
    print(json.dumps({"node": node.name, "problems": problems}), flush=True)
    return 0
