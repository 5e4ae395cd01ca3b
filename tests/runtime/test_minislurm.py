"""The cluster that the other tests stand on."""

from __future__ import annotations

import pytest

from tests.runtime.minislurm import MiniSlurm, wait_until

pytestmark = pytest.mark.slurm


def test_a_step_gets_its_own_node_and_gpu(slurm: MiniSlurm) -> None:
    out = slurm.run(
        *("srun", "-N3", "--ntasks-per-node=1", "--gres=gpu:1", "sh", "-c"),
        'echo "$SLURMD_NODENAME $CUDA_VISIBLE_DEVICES $SLURM_STEP_GPUS"',
    )
    assert sorted(out.splitlines()) == ["node1 0 0", "node2 0 0", "node3 0 0"]


def test_clearing_leaves_no_process_behind(slurm: MiniSlurm) -> None:
    job = slurm.run("sbatch", "--parsable", "-o", "/dev/null", "--wrap", "trap '' TERM; sleep 600 & sleep 600").strip()
    slurm.wait_job(job, "RUNNING")
    wait_until(lambda: any("sleep 600" in command for command in slurm.job_processes().values()), 10)
    slurm.clear()
    assert slurm.job_processes() == {}
    assert slurm.step_daemons() == []
