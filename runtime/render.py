"""The batch script of a plan.

Owns its text. Pure: the same plan gives the same bytes whatever the directory, locale, time zone or user. So the script
names no path: the attempt directory and the command that runs dd-proxy are its arguments, which Slurm keeps across
requeues. It holds no value of any `env`.
"""

from __future__ import annotations

from runtime.budget import drain_budget
from runtime.plan import Job, Plan
from runtime.units import slurm_mebibytes, slurm_time

_BODY = """
set -eu
if [ "$#" -lt 1 ]; then
  echo "usage: sbatch script.sh ATTEMPT_DIR [DD_PROXY_COMMAND...]" >&2
  exit 2
fi
attempt_dir=$1
shift
[ "$#" -gt 0 ] || set -- dd-proxy
# exec: the controller must be the batch process itself, so that it gets the signals that are meant for it.
exec "$@" run --attempt-dir "$attempt_dir"
"""


def render(plan: Plan) -> str:
    """Write the batch script that runs one attempt of `plan`, and the next one after each requeue."""
    lines = ["#!/bin/bash", *(f"#SBATCH {_quoted(option)}" for option in _options(plan))]
    return "\n".join(lines) + "\n" + _BODY


def _options(plan: Plan) -> list[str]:
    job = plan.job
    options = [
        f"--job-name={job.name}",
        f"--nodes={job.nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={job.cpus_per_node}",
    ]
    if job.gpus_per_node:
        options.append(f"--gres=gpu:{job.gpus_per_node}")
    if job.mem_per_node_bytes is not None:
        options.append(f"--mem={slurm_mebibytes(job.mem_per_node_bytes)}")
    options.append(f"--time={slurm_time(job.time_s)}")
    options += _site_options(job)
    # USR1 to the batch process alone is the time-limit warning, so that TERM always means cancel.
    options.append(f"--signal=B:USR1@{drain_budget(plan).signal_s}")
    options.append("--open-mode=append")
    if not any(option in ("--requeue", "--no-requeue") for option in job.sbatch):
        options.append("--requeue")
    return [*options, *job.sbatch]


def _site_options(job: Job) -> list[str]:
    named = {"partition": job.partition, "account": job.account, "qos": job.qos, "constraint": job.constraint}
    return [f"--{name}={value}" for name, value in named.items() if value is not None]


def _quoted(option: str) -> str:
    """Quote an option as sbatch reads directives: split at blanks and #, unless in double quotes, with backslashes."""
    if all(character.isalnum() or character in "-_=:@,./+%[]" for character in option):
        return option
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
