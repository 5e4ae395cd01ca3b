"""Replicas are packed on nodes: GPUs disjoint, CPUs and memory within the node, always alike."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.placement import Placed, PlacementError, place, place_locally, place_parts
from runtime.plan import Client, Deployment, Job, Plan
from tests.runtime.plans import FULL, parse


def _plan(job: dict[str, int | None], client: dict[str, int | None], *needs: tuple[int, int, int, int | None]) -> Plan:
    """Make a plan of (replicas, GPUs, CPUs, memory) per deployment."""
    base = parse(FULL)
    deployments = tuple(
        replace(
            base.deployments[0],
            name=f"d{number}",
            replicas=replicas,
            gpus_per_replica=gpus,
            cpus_per_replica=cpus,
            mem_per_replica_bytes=memory,
            base_port=18000 + 1000 * number,
        )
        for number, (replicas, gpus, cpus, memory) in enumerate(needs)
    )
    return replace(
        base,
        job=replace(base.job, **job),  # type: ignore[arg-type]  # numbers of a job, by name
        deployments=deployments,
        client=replace(base.client, **client),  # type: ignore[arg-type]  # numbers of a client, by name
    )


def _job(nodes: int, gpus: int, cpus: int, memory: int | None = None) -> dict[str, int | None]:
    return {"nodes": nodes, "gpus_per_node": gpus, "cpus_per_node": cpus, "mem_per_node_bytes": memory}


def _client(cpus: int = 1, memory: int | None = None) -> dict[str, int | None]:
    return {"cpus": cpus, "mem_bytes": memory}


def _assert_sound(job: Job, deployments: tuple[Deployment, ...], client: Client, placed: tuple[Placed, ...]) -> None:
    by_name = {one.name: one for one in deployments}
    expected = [(one.name, index) for one in deployments for index in range(one.replicas)]
    assert [(one.deployment, one.index) for one in placed] == expected
    gpus: dict[int, list[int]] = defaultdict(list)
    cpus: dict[int, int] = defaultdict(int, {0: client.cpus})
    memory: dict[int, int] = defaultdict(int, {0: client.mem_bytes or 0})
    for one in placed:
        needs = by_name[one.deployment]
        assert one.port == needs.base_port + one.index
        assert len(one.gpus) == needs.gpus_per_replica
        gpus[one.node] += one.gpus
        cpus[one.node] += needs.cpus_per_replica
        memory[one.node] += needs.mem_per_replica_bytes or 0
    for node in {one.node for one in placed}:
        assert 0 <= node < job.nodes
        assert sorted(gpus[node]) == list(range(len(gpus[node])))
        assert len(gpus[node]) <= job.gpus_per_node
        assert cpus[node] <= job.cpus_per_node
        assert job.mem_per_node_bytes is None or memory[node] <= job.mem_per_node_bytes


def test_the_example_fills_both_nodes() -> None:
    placed = place(parse(FULL))
    assert [one.node for one in placed] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [one.gpus for one in placed] == [(0,), (1,), (2,), (3,)] * 2
    assert [one.port for one in placed] == list(range(18000, 18008))


def test_the_clients_share_is_kept_free_on_the_head() -> None:
    plan = _plan(_job(2, 0, 4), _client(3), (5, 0, 1, None))
    assert [one.node for one in place(plan)] == [0, 1, 1, 1, 1]


def test_memory_counts_only_when_the_job_names_it() -> None:
    needs = (2, 0, 1, 3 * 2**30)
    assert len(place(_plan(_job(1, 0, 8), _client(), needs))) == 2
    with pytest.raises(PlacementError, match="GiB"):
        place(_plan(_job(1, 0, 8, 4 * 2**30), _client(), needs))


def test_a_packing_that_first_fit_misses_is_found() -> None:
    # By GPUs first, the two wide ones would share a node and starve the CPU-heavy ones.
    plan = _plan(_job(2, 4, 10), _client(1), (2, 2, 1, None), (2, 1, 8, None))
    _assert_sound(plan.job, plan.deployments, plan.client, place(plan))


@pytest.mark.parametrize(
    ("job", "needs", "key", "words"),
    [
        (_job(2, 4, 32), (1, 5, 1, None), "gpus_per_replica", "5 GPUs"),
        (_job(2, 4, 32), (1, 1, 33, None), "cpus_per_replica", "33 CPUs"),
        (_job(2, 4, 32, 2**30), (1, 1, 1, 2**31), "mem_per_replica", "2 GiB"),
        (_job(2, 4, 32), (9, 1, 1, None), "replicas", "9 GPUs, the nodes have 8"),
        (_job(2, 4, 32), (8, 1, 8, None), "replicas", "64 CPUs, the nodes have 63"),
        (_job(2, 4, 32), (3, 2, 17, None), "replicas", "cannot be packed on 2 nodes of 4 GPUs, 32 CPUs"),
    ],
)
def test_what_cannot_be_packed_says_what_is_short(
    job: dict[str, int | None], needs: tuple[int, int, int, int | None], key: str, words: str
) -> None:
    with pytest.raises(PlacementError) as caught:
        place(_plan(job, _client(), needs))
    assert (caught.value.deployment, caught.value.key) == ("d0", key)
    assert words in str(caught.value)


def test_locally_every_replica_has_gpus_of_its_own() -> None:
    placed = place_locally(_plan(_job(2, 4, 32), _client(), (2, 2, 1, None), (2, 1, 1, None)))
    assert [one.gpus for one in placed] == [(0, 1), (2, 3), (4,), (5,)]
    assert {one.node for one in placed} == {0}


_NEEDS = st.tuples(st.integers(1, 5), st.integers(0, 3), st.integers(1, 4), st.none() | st.integers(1, 8))


@given(
    st.integers(1, 4),
    st.integers(0, 4),
    st.integers(1, 12),
    st.none() | st.integers(1, 30),
    st.lists(_NEEDS, min_size=1, max_size=3),
)
@settings(max_examples=150, deadline=None)
def test_every_placement_is_sound_and_repeatable(
    nodes: int, gpus: int, cpus: int, memory: int | None, needs: list[tuple[int, int, int, int | None]]
) -> None:
    plan = _plan(_job(nodes, gpus, cpus, memory), _client(1, 1), *needs)
    try:
        placed = place_parts(plan.job, plan.deployments, plan.client)
    except PlacementError:
        return
    _assert_sound(plan.job, plan.deployments, plan.client, placed)
    assert place_parts(plan.job, plan.deployments, plan.client) == placed


@given(st.integers(1, 3), st.data())
@settings(max_examples=100, deadline=None)
def test_what_was_cut_to_fit_is_never_refused(nodes: int, data: st.DataObject) -> None:
    """Build the needs from a packing: whatever fits by construction must be found."""
    sizes = [(2, 3), (1, 4), (3, 1), (1, 1)]
    counts = [0] * len(sizes)
    for node in range(nodes):
        gpus, cpus = 4, 8 - (1 if node == 0 else 0)
        for choice in data.draw(st.lists(st.sampled_from(range(len(sizes))), max_size=5)):
            if sizes[choice][0] <= gpus and sizes[choice][1] <= cpus:
                gpus, cpus = gpus - sizes[choice][0], cpus - sizes[choice][1]
                counts[choice] += 1
    needs = [(count, *size, None) for count, size in zip(counts, sizes, strict=True) if count]
    if needs:
        plan = _plan(_job(nodes, 4, 8), _client(), *needs)
        _assert_sound(plan.job, plan.deployments, plan.client, place(plan))
