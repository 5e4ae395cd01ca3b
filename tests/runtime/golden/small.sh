#!/bin/bash
#SBATCH --job-name=small
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --time=00:15:00
#SBATCH --signal=B:USR1@47
#SBATCH --open-mode=append
#SBATCH --requeue

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
