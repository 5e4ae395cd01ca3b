#!/bin/bash
#SBATCH --job-name=gen
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --gres=gpu:4
#SBATCH --mem=512000M
#SBATCH --time=1-02:00:00
#SBATCH --partition=batch
#SBATCH --account=research
#SBATCH --qos=high
#SBATCH "--constraint=a100|h100"
#SBATCH --signal=B:USR1@58
#SBATCH --open-mode=append
#SBATCH --exclusive
#SBATCH "--comment=two \"words\" # and \\ a backslash"
#SBATCH --no-requeue

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
