"""Which node each replica runs on.

Owns the packing: GPUs disjoint, CPUs and memory within the node, the client's share kept free on the first node (the
head), where it runs. Pure and deterministic: the same plan is always placed alike, so that a requeue starts the same
shape. Endpoints and the monitor share the head's CPUs and take no share of their own. Ports need no care here: a valid
plan uses each port once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runtime.plan import Client, Deployment, Job, Plan

HEAD = 0
_SEARCH_LIMIT = 5_000  # dead ends; where first fit fails on real plans a few dozen settle it


class PlacementError(Exception):
    """Replicas do not fit. `deployment` and `key` say where the plan asks for too much; `key` None: the client."""

    def __init__(self, deployment: str | None, key: str, reason: str) -> None:
        super().__init__(reason)
        self.deployment = deployment
        self.key = key


@dataclass(frozen=True, slots=True)
class Placed:
    """One replica in its place. `node` counts from the head (0); `gpus` are indexes on that node."""

    deployment: str
    index: int
    node: int
    port: int
    gpus: tuple[int, ...]


@dataclass(slots=True)
class _Node:
    gpus: int
    cpus: int
    memory: int | None

    def fits(self, one: Deployment) -> bool:
        needed = one.mem_per_replica_bytes or 0
        return (
            one.gpus_per_replica <= self.gpus
            and one.cpus_per_replica <= self.cpus
            and (self.memory is None or needed <= self.memory)
        )

    def change(self, one: Deployment, sign: int) -> None:
        self.gpus -= sign * one.gpus_per_replica
        self.cpus -= sign * one.cpus_per_replica
        if self.memory is not None:
            self.memory -= sign * (one.mem_per_replica_bytes or 0)

    def room(self) -> tuple[int, int, int | None]:
        return self.gpus, self.cpus, self.memory


def place(plan: Plan) -> tuple[Placed, ...]:
    """Place every replica of a plan on the job's nodes, in the plan's order. Raises PlacementError."""
    return place_parts(plan.job, plan.deployments, plan.client)


def place_parts(job: Job, deployments: Sequence[Deployment], client: Client) -> tuple[Placed, ...]:
    """Place the replicas of the parts of a plan. Raises PlacementError for what cannot be packed."""
    _check_client(job, client)
    for one in deployments:
        _check_single(job, one)
    _check_sums(job, deployments, client)
    order = sorted(
        (one for one in deployments for _ in range(one.replicas)),
        key=lambda one: (-one.gpus_per_replica, -one.cpus_per_replica, -(one.mem_per_replica_bytes or 0)),
    )
    nodes = _search(_empty_nodes(job, client), order)
    if nodes is None:
        raise _shape_error(job, deployments, client)
    return _number(deployments, order, nodes)


def place_locally(plan: Plan) -> tuple[Placed, ...]:
    """Place every replica on this machine, each with GPUs of its own, counted through in the plan's order."""
    placed, next_gpu = [], 0
    for one in plan.deployments:
        for index in range(one.replicas):
            gpus = tuple(range(next_gpu, next_gpu + one.gpus_per_replica))
            next_gpu += one.gpus_per_replica
            placed.append(Placed(one.name, index, HEAD, one.port(index), gpus))
    return tuple(placed)


def _empty_nodes(job: Job, client: Client) -> list[_Node]:
    nodes = [_Node(job.gpus_per_node, job.cpus_per_node, job.mem_per_node_bytes) for _ in range(job.nodes)]
    head = nodes[HEAD]
    head.cpus -= client.cpus
    if head.memory is not None:
        head.memory -= client.mem_bytes or 0
    return nodes


def _search(nodes: list[_Node], order: list[Deployment]) -> list[int] | None:
    """Find a node for each replica: first fit, with a bounded search behind it where first fit fails.

    Equal replicas take nodes in ascending order, and of nodes with equal room only the first is tried.
    """
    chosen: list[int] = []
    start, steps = 0, 0
    while len(chosen) < len(order):
        one, tried = order[len(chosen)], {nodes[number].room() for number in range(start)}
        if chosen and order[len(chosen) - 1] is one:
            tried = {nodes[number].room() for number in range(chosen[-1], start)}
        for number in range(start, len(nodes)):
            if nodes[number].room() not in tried and nodes[number].fits(one):
                nodes[number].change(one, 1)
                chosen.append(number)
                start = number if len(chosen) < len(order) and order[len(chosen)] is one else 0
                break
        else:
            steps += 1
            if not chosen or steps > _SEARCH_LIMIT:
                return None
            last = chosen.pop()
            nodes[last].change(order[len(chosen)], -1)
            start = last + 1
    return chosen


def _number(deployments: Sequence[Deployment], order: list[Deployment], nodes: list[int]) -> tuple[Placed, ...]:
    by_name: dict[str, list[int]] = {one.name: [] for one in deployments}
    for one, node in zip(order, nodes, strict=True):
        by_name[one.name].append(node)
    used = dict.fromkeys(nodes, 0)
    placed = []
    for one in deployments:
        for index, node in enumerate(sorted(by_name[one.name])):
            gpus = tuple(range(used[node], used[node] + one.gpus_per_replica))
            used[node] += one.gpus_per_replica
            placed.append(Placed(one.name, index, node, one.port(index), gpus))
    return tuple(placed)


def _check_client(job: Job, client: Client) -> None:
    if client.cpus > job.cpus_per_node:
        raise PlacementError(None, "cpus", f"needs {client.cpus} CPUs, a node has {job.cpus_per_node}")
    memory = job.mem_per_node_bytes
    if memory is not None and (client.mem_bytes or 0) > memory:
        raise PlacementError(None, "mem", f"needs {_memory(client.mem_bytes or 0)}, a node has {_memory(memory)}")


def _check_single(job: Job, one: Deployment) -> None:
    """Tell a replica that is larger than a node from many that are too many."""
    needed: list[tuple[str, int, int, str]] = [
        ("gpus_per_replica", one.gpus_per_replica, job.gpus_per_node, "GPUs"),
        ("cpus_per_replica", one.cpus_per_replica, job.cpus_per_node, "CPUs"),
    ]
    for key, wanted, offered, what in needed:
        if wanted > offered:
            reason = f"a replica lives on one node and needs {wanted} {what}, a node has {offered}"
            raise PlacementError(one.name, key, reason)
    memory, size = job.mem_per_node_bytes, one.mem_per_replica_bytes or 0
    if memory is not None and size > memory:
        reason = f"a replica lives on one node and needs {_memory(size)}, a node has {_memory(memory)}"
        raise PlacementError(one.name, "mem_per_replica", reason)


def _check_sums(job: Job, deployments: Sequence[Deployment], client: Client) -> None:
    """Refuse what no packing could hold, and name the resource."""
    start = _cannot(job, deployments)
    last = deployments[-1].name
    gpus = sum(one.replicas * one.gpus_per_replica for one in deployments)
    if gpus > job.nodes * job.gpus_per_node:
        reason = f"{start}: they need {gpus} GPUs, the nodes have {job.nodes * job.gpus_per_node}"
        raise PlacementError(last, "replicas", reason)
    cpus = sum(one.replicas * one.cpus_per_replica for one in deployments)
    offered = job.nodes * job.cpus_per_node - client.cpus
    if cpus > offered:
        reason = f"{start}: they need {cpus} CPUs, the nodes have {offered} beside the client's {client.cpus}"
        raise PlacementError(last, "replicas", reason)
    if job.mem_per_node_bytes is None:
        return
    memory = sum(one.replicas * (one.mem_per_replica_bytes or 0) for one in deployments)
    offered = job.nodes * job.mem_per_node_bytes - (client.mem_bytes or 0)
    if memory > offered:
        reason = f"{start}: they need {_memory(memory)}, the nodes have {_memory(offered)} beside the client's share"
        raise PlacementError(last, "replicas", reason)


def _shape_error(job: Job, deployments: Sequence[Deployment], client: Client) -> PlacementError:
    room = f"{job.gpus_per_node} GPUs, {job.cpus_per_node} CPUs"
    if job.mem_per_node_bytes is not None:
        room += f", {_memory(job.mem_per_node_bytes)}"
    share = f"{client.cpus} CPUs"
    if client.mem_bytes is not None:
        share += f" and {_memory(client.mem_bytes)}"
    reason = f"{_cannot(job, deployments)} of {room} each, of which the client takes {share} on the first"
    return PlacementError(deployments[-1].name, "replicas", reason)


def _cannot(job: Job, deployments: Sequence[Deployment]) -> str:
    count = sum(one.replicas for one in deployments)
    return f"{count} replicas cannot be packed on {job.nodes} node{'s' if job.nodes > 1 else ''}"


def _memory(size: int) -> str:
    return f"{size / 2**30:.4g} GiB"
