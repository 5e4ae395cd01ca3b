"""What the keys of a plan must be together: names, placeholders, ports, places, time.

Owns the checks that need more than one key. Pure. They run on drafts, so that a plan with a broken key is still told
everything else that is wrong with it: a check whose keys are broken is skipped, never guessed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from proxy.config import nearest
from runtime.budget import LONGEST_WARNING_S, budget
from runtime.placeholders import CLIENT_NAMES, ENDPOINT_PREFIX, REPLICA_NAMES, placeholders
from runtime.placement import PlacementError, place_parts
from runtime.plan import Client, Deployment, Job, Output
from runtime.units import human_duration

Problem = tuple[str, str]  # key and reason


@dataclass(frozen=True, slots=True)
class Draft:
    """One table of a plan: the label it has in errors, and its values by record field; a broken key is missing."""

    label: str
    fields: dict[str, Any]

    def has(self, *names: str) -> bool:
        """Tell whether all these fields are sound."""
        return all(name in self.fields for name in names)


@dataclass(frozen=True, slots=True)
class Drafts:
    """All tables of a plan."""

    job: Draft
    deployments: list[Draft]
    client: Draft
    runtime: Draft


def problems(drafts: Drafts) -> Iterator[Problem]:
    """Yield key and reason of everything in a plan that does not go together."""
    yield from _names(drafts)
    yield from _outputs(drafts.client)
    yield from _placeholders(drafts)
    yield from _ports(drafts)
    yield from _places(drafts)
    yield from _time(drafts)


def _names(drafts: Drafts) -> Iterator[Problem]:
    seen: set[str] = set()
    for draft in drafts.deployments:
        if draft.has("name"):
            name = draft.fields["name"]
            if name in seen:
                yield f"{draft.label}.name", f"{name!r} names two deployments"
            seen.add(name)


def _outputs(client: Draft) -> Iterator[Problem]:
    seen: set[str] = set()
    outputs: Sequence[Output] = client.fields.get("outputs", ())
    for number, output in enumerate(outputs):
        if output.path in seen:
            yield f"client.output[{number}].path", f"{output.path!r} is listed twice"
        seen.add(output.path)


def _placeholders(drafts: Drafts) -> Iterator[Problem]:
    names = [draft.fields["name"] for draft in drafts.deployments if draft.has("name")]
    endpoints = [ENDPOINT_PREFIX + name for name in names]
    for draft in drafts.deployments:
        yield from _command(draft, REPLICA_NAMES, dict.fromkeys(endpoints, "is for the client"))
    foreign = {name: "is for replicas" for name in REPLICA_NAMES if name not in CLIENT_NAMES}
    # With a nameless deployment in the plan nobody can say which endpoint names are unknown.
    complete = len(names) == len(drafts.deployments)
    yield from _command(drafts.client, (*CLIENT_NAMES, *endpoints), foreign, complete)


def _command(
    draft: Draft, known: Sequence[str], foreign: dict[str, str], endpoints_complete: bool = True
) -> Iterator[Problem]:
    for name in placeholders(draft.fields.get("command", ())):
        if name in known or (name.startswith(ENDPOINT_PREFIX) and not endpoints_complete):
            continue
        if name in foreign:
            reason = f"{foreign[name]}, not for this command"
        else:
            reason = f"is an unknown placeholder, the nearest known one is {{{nearest(name, list(known))}}}"
        yield f"{draft.label}.command", f"{{{name}}} {reason} (write {{{{{name}}}}} for these very characters)"


def _ports(drafts: Drafts) -> Iterator[Problem]:
    """Refuse a port that two services would use.

    Each port is used once in the whole plan, although two nodes could share it: so the plan also runs on one machine,
    and where a replica lands never decides whether it starts.
    """
    users: dict[int, str] = {}
    for draft in drafts.deployments:
        name = draft.fields.get("name", draft.label)
        endpoint = draft.fields.get("endpoint", {})
        for option in ("listen_port", "metrics_port"):
            port = endpoint.get(option, 0)
            if port:
                user = f"the endpoint of {name}"
                if port in users:
                    yield f"{draft.label}.endpoint.{option}", f"port {port} is used by {users[port]} too"
                users.setdefault(port, user)
    for draft in drafts.deployments:
        if draft.has("base_port", "replicas"):
            yield from _replica_ports(draft, users)


def _replica_ports(draft: Draft, users: dict[int, str]) -> Iterator[Problem]:
    base, replicas = draft.fields["base_port"], draft.fields["replicas"]
    if base + replicas - 1 > 65535:
        yield f"{draft.label}.base_port", f"replica {replicas - 1} would listen on {base + replicas - 1}, above 65535"
        return
    taken = [port for port in range(base, base + replicas) if port in users]
    if taken:
        first = taken[0]
        yield f"{draft.label}.base_port", f"replica {first - base} would use port {first}, as {users[first]} does"
    for index in range(replicas):
        users.setdefault(base + index, f"replica {index} of {draft.fields.get('name', draft.label)}")


_JOB_ROOM = ("nodes", "gpus_per_node", "cpus_per_node", "mem_per_node_bytes")
_REPLICA_NEEDS = ("replicas", "gpus_per_replica", "cpus_per_replica", "mem_per_replica_bytes")


def _places(drafts: Drafts) -> Iterator[Problem]:
    if not (
        drafts.deployments
        and drafts.job.has(*_JOB_ROOM)
        and drafts.client.has("cpus", "mem_bytes")
        and all(draft.has(*_REPLICA_NEEDS) for draft in drafts.deployments)
    ):
        return
    # The keys that placement does not ask for may be broken: labels and neutral values stand in for them.
    deployments = [
        Deployment(**{**_NEUTRAL_DEPLOYMENT, **draft.fields, "name": draft.label}) for draft in drafts.deployments
    ]
    job = Job(**{**_NEUTRAL_JOB, **drafts.job.fields})
    client = Client(**{**_NEUTRAL_CLIENT, **drafts.client.fields})
    try:
        place_parts(job, deployments, client)
    except PlacementError as error:
        yield f"{error.deployment or drafts.client.label}.{error.key}", str(error)


_NEUTRAL_DEPLOYMENT: dict[str, Any] = {
    "command": (),
    "base_port": 0,
    "engine": "auto",
    "health_path": "/",
    "startup_timeout_s": 0.0,
    "stop_timeout_s": 0.0,
    "env": {},
    "endpoint": {},
}
_NEUTRAL_JOB: dict[str, Any] = {
    "name": "",
    "time_s": 0.0,
    "partition": None,
    "account": None,
    "qos": None,
    "constraint": None,
    "sbatch": (),
    "state_dir": None,
}
_NEUTRAL_CLIENT: dict[str, Any] = {"command": (), "env": {}, "outputs": ()}


def _time(drafts: Drafts) -> Iterator[Problem]:
    stops = [draft.fields["stop_timeout_s"] for draft in drafts.deployments if draft.has("stop_timeout_s")]
    if not (drafts.job.has("time_s") and drafts.runtime.has("drain_timeout_s")):
        return
    given, needed = drafts.job.fields["time_s"], budget(drafts.runtime.fields["drain_timeout_s"], stops)
    if needed.signal_s > LONGEST_WARNING_S:
        longest = human_duration(LONGEST_WARNING_S)
        yield "runtime.drain_timeout", f"an orderly end of more than {longest} is not possible ({needed.describe()})"
    elif given <= needed.total_s:
        reason = f"{human_duration(given)} is too short: an orderly end alone takes {human_duration(needed.total_s)}"
        yield "job.time", f"{reason} ({needed.describe()})"
