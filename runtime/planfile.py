"""Reading a plan: the tables of its keys, and the way from a TOML file to records or to every error.

Owns which keys there are, their kinds and defaults. Refuses to know Slurm, steps and what keys mean together
(plancheck does). Every error is told at once, each with file, key and reason.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from proxy.config import ConfigError, nearest, parse_options
from proxy.config_files import load_toml
from proxy.kinds import Choice, FilePath, HttpPath, Whole
from runtime.layout import AttemptDir, LayoutError, read_json
from runtime.plan import Client, Deployment, Job, Output, Plan, RuntimeOptions, plan_from_json
from runtime.plancheck import Draft, Drafts, problems
from runtime.plankinds import Command, Duration, Env, Memory, Name, OutputPath, SbatchOptions, Text


class Kind(Protocol):
    """What a value must be: see proxy.kinds and runtime.plankinds."""

    def convert(self, value: object) -> Any:
        """Return what the plan keeps; raises ValueError with the reason."""


_REQUIRED = object()


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a table: its kind, the record's field and the field's value when the key is left out."""

    kind: Kind
    field: str
    default: Any = _REQUIRED


def _key(name: str, kind: Kind, default: Any = _REQUIRED, field: str = "") -> tuple[str, Key]:
    return name, Key(kind, field or name, default)


_TABLES = ("job", "deployment", "client", "runtime")

JOB_KEYS = dict((
    _key("name", Name()),
    _key("nodes", Whole(1, 10_000), 1),
    _key("gpus_per_node", Whole(0), 0),
    _key("cpus_per_node", Whole(1)),
    _key("mem_per_node", Memory(), None, "mem_per_node_bytes"),
    _key("time", Duration(), field="time_s"),
    _key("partition", Text(), None),
    _key("account", Text(), None),
    _key("qos", Text(), None),
    _key("constraint", Text(), None),
    _key("sbatch", SbatchOptions(), ()),
    _key("state_dir", FilePath(), "runs"),
))  # fmt: skip

DEPLOYMENT_KEYS = dict((
    _key("name", Name()),
    _key("replicas", Whole(1, 10_000), 1),
    _key("gpus_per_replica", Whole(0), 0),
    _key("cpus_per_replica", Whole(1), 1),
    _key("mem_per_replica", Memory(), None, "mem_per_replica_bytes"),
    _key("command", Command()),
    _key("base_port", Whole(1, 65535)),
    _key("engine", Choice(("auto", "vllm", "sglang")), "auto"),
    _key("health_path", HttpPath(), "/health"),
    _key("startup_timeout", Duration(), 900.0, "startup_timeout_s"),
    _key("stop_timeout", Duration(zero=True), 30.0, "stop_timeout_s"),
    _key("env", Env(), {}),
))  # fmt: skip

CLIENT_KEYS = dict((
    _key("command", Command()),
    _key("cpus", Whole(1), 1),
    _key("mem", Memory(), None, "mem_bytes"),
    _key("env", Env(), {}),
))  # fmt: skip

OUTPUT_KEYS = dict((_key("path", OutputPath()), _key("records", Whole(0), None)))

RUNTIME_KEYS = dict((
    _key("drain_timeout", Duration(zero=True), 10.0, "drain_timeout_s"),
    _key("monitor_interval", Duration(), 1.0, "monitor_interval_s"),
    _key("monitor_failures", Whole(1), 3),
))  # fmt: skip

# `serve` options that the lifecycle gives each endpoint itself.
_OWN_OPTIONS = {
    "backend": "the deployment's replicas are the backends",
    "config": "this table is the configuration",
    "drain_timeout": "use runtime.drain_timeout, which the drain budget is computed from",
    "stats_file": "the attempt's report is made from it",
}


class PlanErrors(Exception):
    """A plan is not valid. `errors` holds everything that is wrong with it; the text is one line for each."""

    def __init__(self, errors: list[ConfigError]) -> None:
        super().__init__("\n".join(_printable(str(error)) for error in errors))
        self.errors = tuple(errors)


def load_plan(path: Path) -> Plan:
    """Read and check a plan file. Raises PlanErrors with every error at once."""
    values, errors = load_toml(str(path))
    if errors:
        raise PlanErrors(errors)
    return parse_plan(values, path)


def parse_plan(values: Mapping[str, object], path: Path) -> Plan:
    """Make the plan of TOML values; `path` names the file in errors and anchors `state_dir`. Raises PlanErrors."""
    errors: list[ConfigError] = []
    drafts = _Reader(str(path), errors).plan(values)
    errors += [ConfigError(str(path), key, reason) for key, reason in problems(drafts)]
    if errors:
        raise PlanErrors(errors)
    job = {**drafts.job.fields, "state_dir": Path(os.path.abspath(path)).parent / drafts.job.fields["state_dir"]}
    return Plan(
        job=Job(**job),
        deployments=tuple(Deployment(**draft.fields) for draft in drafts.deployments),
        client=Client(**drafts.client.fields),
        runtime=RuntimeOptions(**drafts.runtime.fields),
        path=path,
    )


def read_resolved(attempt: AttemptDir) -> Plan:
    """Read the resolved plan of an attempt. Raises LayoutError when it is missing or broken."""
    data = read_json(attempt.plan_json)
    if data is None:
        raise LayoutError(f"{attempt.plan_json} is missing: only dd-proxy submit and run --local make an attempt")
    try:
        return plan_from_json(data)
    except ValueError as error:
        raise LayoutError(f"{attempt.plan_json}: {error}") from None


class _Reader:
    """Turns tables into drafts and collects what is wrong with single keys."""

    def __init__(self, source: str, errors: list[ConfigError]) -> None:
        self._source = source
        self._errors = errors

    def plan(self, values: Mapping[str, object]) -> Drafts:
        for key in values:
            if key not in _TABLES:
                self._error(key, _unknown(key, _TABLES))
        return Drafts(
            job=Draft("job", self._fields("job", self._table(values, "job"), JOB_KEYS)),
            deployments=self._deployments(values),
            client=self._client(values),
            runtime=Draft("runtime", self._fields("runtime", self._table(values, "runtime", {}), RUNTIME_KEYS)),
        )

    def _deployments(self, values: Mapping[str, object]) -> list[Draft]:
        tables = self._tables(values, "deployment", "deployment")
        if not tables and "deployment" not in values:
            self._error("deployment", "at least one [[deployment]] is needed")
        return [self._deployment(number, table) for number, table in enumerate(tables)]

    def _deployment(self, number: int, table: Mapping[str, object] | None) -> Draft:
        name = table.get("name") if table is not None else None
        label = f"deployment[{name if isinstance(name, str) and name.isprintable() and name else number}]"
        fields = self._fields(label, table, DEPLOYMENT_KEYS, nested=("endpoint",))
        if table is not None:
            endpoint = self._endpoint(f"{label}.endpoint", self._table(table, "endpoint", {}, label))
            if endpoint is not None:
                defaults = {key: fields[key] for key in ("engine", "health_path") if key in fields}
                fields["endpoint"] = {**defaults, **endpoint}
        return Draft(label, fields)

    def _endpoint(self, label: str, table: Mapping[str, object] | None) -> dict[str, Any] | None:
        """Check `serve` options with the proxy's own table; what the lifecycle adds is put in for the check."""
        if table is None:
            return None
        own = {key: reason for key, reason in _OWN_OPTIONS.items() if key in table}
        for key, reason in own.items():
            self._error(f"{label}.{key}", f"cannot be given here: {reason}")
        options = {"listen_port": 0, **{key: value for key, value in table.items() if key not in own}}
        _, errors = parse_options({**options, "backend": ["http://127.0.0.1:1"]}, self._source)
        errors = [error for error in errors if error.key != "backend"]  # the real ones are not known yet
        for error in errors:
            self._error(f"{label}.{error.key}", error.reason)
        if errors or own:
            return None
        return {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}

    def _client(self, values: Mapping[str, object]) -> Draft:
        table = self._table(values, "client")
        fields = self._fields("client", table, CLIENT_KEYS, nested=("output",))
        if table is not None:
            outputs = []
            for number, item in enumerate(self._tables(table, "output", "client.output")):
                output = self._fields(f"client.output[{number}]", item, OUTPUT_KEYS)
                if len(output) == len(OUTPUT_KEYS):
                    outputs.append(Output(**output))
            fields["outputs"] = tuple(outputs)
        return Draft("client", fields)

    def _fields(
        self, label: str, table: Mapping[str, object] | None, keys: Mapping[str, Key], nested: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        """Convert a table's values; a key that is wrong is reported and left out of the result."""
        if table is None:
            return {}
        for key in table:
            if key not in keys and key not in nested:
                self._error(f"{label}.{key}", _unknown(key, (*keys, *nested)))
        fields: dict[str, Any] = {}
        for name, key_ in keys.items():
            if name not in table:
                if key_.default is _REQUIRED:
                    self._error(f"{label}.{name}", "is required")
                else:
                    fields[key_.field] = key_.default
                continue
            try:
                fields[key_.field] = key_.kind.convert(table[name])
            except ValueError as error:
                self._error(f"{label}.{name}", str(error))
        return fields

    def _table(
        self, values: Mapping[str, object], key: str, default: Mapping[str, object] | None = None, parent: str = ""
    ) -> Mapping[str, object] | None:
        label = f"{parent}.{key}" if parent else key
        value = values.get(key, default)
        if isinstance(value, Mapping):
            return value
        self._error(label, f"is required: a [{key}] table" if value is None else f"must be a table: [{key}]")
        return None

    def _tables(self, values: Mapping[str, object], key: str, label: str) -> list[Mapping[str, object] | None]:
        value = values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
            self._error(label, f"must be a list of tables: write [[{label}]] before each")
            return []
        return value

    def _error(self, key: str, reason: str) -> None:
        self._errors.append(ConfigError(self._source, key, reason))


def _printable(line: str) -> str:
    """Keep a line one line, whatever a key in the file holds."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in line)


def _unknown(key: str, known: tuple[str, ...]) -> str:
    return f"unknown key, the nearest known one is {nearest(key.replace('-', '_'), list(known))}"
