"""A real Slurm of three nodes on this machine, for tests.

Owns one munged, one slurmctld and one slurmd per node, all in one directory of their own, and stops exactly what it
started. Every node is this host: nodes share ports, files and the host name, and differ by SLURMD_NODENAME and NodeAddr
(127.0.0.11 and up). GPUs are links to /dev/null, which is enough for Slurm to hand out indexes. Needs no root, no
systemd and no cgroups, and touches nothing under /etc or /run. Refuses to know dd-proxy.
"""

from __future__ import annotations

import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import TracebackType

PACKAGES = "slurmctld slurmd slurm-client munge"
INSTALL = f"apt-get install -y --no-install-recommends {PACKAGES}"
_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "scontrol", "squeue", "sinfo")
_SEARCH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
_PORTS = range(20000, 31000)  # below the ephemeral range, so that no client socket takes one meanwhile
_STARTS = 3


def missing_programs() -> list[str]:
    """List what of Slurm is not installed here."""
    return [name for name in _PROGRAMS if shutil.which(name, path=_SEARCH) is None]


@dataclass(frozen=True)
class Shape:
    """What the cluster pretends to have. `extra` are further slurm.conf lines, appended as they are."""

    nodes: int = 3
    gpus: int = 2
    cpus: int = 4
    memory_mb: int = 4096
    kill_wait_s: int = 30
    extra: Sequence[str] = field(default=())


class MiniSlurm:
    """Run a throw-away cluster: `with MiniSlurm() as slurm: slurm.run("sinfo")`."""

    def __init__(self, shape: Shape | None = None) -> None:
        self.shape = shape or Shape()
        # Short on purpose: unix socket paths in it must stay under 108 bytes.
        self.directory = Path(tempfile.mkdtemp(prefix="dds-", dir="/tmp"))
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __repr__(self) -> str:
        return f"<MiniSlurm {self.directory} nodes={self.shape.nodes} daemons={len(self._daemons)}>"

    def __enter__(self) -> MiniSlurm:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def config(self) -> Path:
        """Locate slurm.conf."""
        return self.directory / "slurm.conf"

    @property
    def nodes(self) -> tuple[str, ...]:
        """Name the nodes."""
        return tuple(f"node{number}" for number in range(1, self.shape.nodes + 1))

    def environment(self, **extra: str) -> dict[str, str]:
        """Give this process's environment, pointed at the cluster and free of any surrounding job."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "SBATCH", "SRUN"))}
        return {**kept, "PATH": _SEARCH, "SLURM_CONF": str(self.config), **extra}

    def run(self, *command: str, timeout: float = 30, check: bool = True) -> str:
        """Run a Slurm command and return its output. Raises AssertionError with its stderr when it fails."""
        done = subprocess.run(command, env=self.environment(), capture_output=True, text=True, timeout=timeout)
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(command)}: exit {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def job(self, job_id: str) -> dict[str, str]:
        """Read `scontrol -o show job` as a mapping of its words."""
        words = self.run("scontrol", "-o", "show", "job", job_id).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait_job(self, job_id: str, *states: str, timeout: float = 60) -> dict[str, str]:
        """Wait until a job is in one of `states`, at most `timeout` seconds, and return its fields."""
        seen: dict[str, str] = {}

        def reached() -> bool:
            seen.update(self.job(job_id))
            return seen["JobState"] in states

        wait_until(reached, timeout, lambda: f"job {job_id} is {seen.get('JobState')}, not {' or '.join(states)}")
        return seen

    def hasten(self, job_id: str, timeout: float = 60) -> None:
        """Wait for a requeued job to start again, two seconds from now instead of Slurm's two minutes.

        Not at once: a node refuses a credential of the very second in which it revoked the old one. Said again when
        needed, because Slurm sets the time anew when the last of the old start is cleared away.
        """

        def started() -> bool:
            job = self.job(job_id)
            if job["JobState"] == "PENDING" and job["Reason"] == "BeginTime":
                wait_s = (datetime.fromisoformat(job["EligibleTime"]) - datetime.now()).total_seconds()
                if wait_s > 10:
                    self.run("scontrol", "update", f"jobid={job_id}", "starttime=now+2seconds", check=False)
            return job["JobState"] not in ("PENDING", "COMPLETING", "CONFIGURING", "REQUEUED")

        wait_until(started, timeout, lambda: f"{self.job(job_id)}")

    def wait_idle(self, timeout: float = 60) -> None:
        """Wait until no job is left and every node is idle."""

        def idle() -> bool:
            states = self.run("sinfo", "-h", "-N", "-p", "main", "-o", "%t").split()
            return states == ["idle"] * self.shape.nodes

        wait_until(idle, timeout, lambda: self.run("sinfo", "-N") + self.run("squeue"))

    def clear(self, timeout: float = 60) -> None:
        """Cancel every job, kill what of theirs is left, bring every node back and wait until all are idle."""
        jobs = self.run("squeue", "-h", "-o", "%A").split()
        if jobs:
            self.run("scancel", *jobs, check=False)
            with suppress(TimeoutError):
                wait_until(lambda: not self.job_processes(), 2)
            self._kill_job_processes()
        self.run("scontrol", "update", f"nodename={','.join(self.nodes)}", "state=resume", check=False)
        self.wait_idle(timeout)

    def job_processes(self) -> dict[int, str]:
        """Find the live processes of this cluster's jobs: pid and command line."""
        conf, found = f"SLURM_CONF={self.config}".encode(), {}
        for pid, folder in _processes():
            with suppress(OSError):
                variables = (folder / "environ").read_bytes().split(b"\0")
                if conf in variables and any(item.startswith(b"SLURM_JOB_ID=") for item in variables):
                    found[pid] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        return found

    def step_daemons(self) -> list[int]:
        """Find the slurmstepd processes of this cluster (known by the log they write)."""
        logs, found = f"{self.directory}/slurmd-", []
        for pid, folder in _processes():
            with suppress(OSError):
                if not os.readlink(folder / "exe").rsplit("/", 1)[-1].startswith("slurmstepd"):
                    continue
                if any(os.readlink(entry).startswith(logs) for entry in (folder / "fd").iterdir()):
                    found.append(pid)
        return found

    def stop(self) -> None:
        """Cancel the jobs, stop the daemons and remove the directory. Safe to call twice."""
        if any(daemon.poll() is None for daemon in self._daemons):
            with suppress(subprocess.SubprocessError):
                jobs = self.run("squeue", "-h", "-o", "%A", timeout=5, check=False).split()
                if jobs:
                    self.run("scancel", *jobs, timeout=5, check=False)
        self._kill_job_processes()
        with suppress(TimeoutError):
            wait_until(lambda: not self.step_daemons(), 3)
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in reversed(self._daemons):
            try:
                daemon.wait(3)
            except subprocess.TimeoutExpired:  # a slurmd that sits in KillWait does not end on SIGTERM
                daemon.kill()
                daemon.wait()
        self._daemons.clear()
        self._kill_job_processes()
        for pid in self.step_daemons():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _kill_job_processes(self) -> None:
        for pid in self.job_processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _start(self) -> None:
        self._start_munged()
        for attempt in range(1, _STARTS + 1):
            base = _free_ports(self.shape.nodes + 1)
            self._write_config(base)
            self._spawn("slurmctld", "-D", "-i", "-f", str(self.config), log="slurmctld.out")
            for node in self.nodes:
                self._spawn("slurmd", "-D", "-N", node, "-f", str(self.config), log=f"slurmd-{node}.out")
            try:
                wait_until(self._all_idle, 60, self._last_words)
            except ChildProcessError:  # another cluster was faster to take these ports
                if attempt == _STARTS:
                    raise
                for daemon in self._daemons[1:]:
                    daemon.kill()
                    daemon.wait()
                del self._daemons[1:]
            else:
                return

    def _start_munged(self) -> None:
        key = self.directory / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(random.randbytes(128))
        at = self.directory
        self._spawn(
            *("munged", "--foreground", "--force", f"--key-file={key}", f"--socket={at}/munge.sock"),
            *(f"--pid-file={at}/munged.pid", f"--log-file={at}/munged.log", f"--seed-file={at}/munged.seed"),
            log="munged.out",
        )
        wait_until((at / "munge.sock").exists, 10, self._last_words)

    def _spawn(self, *command: str, log: str) -> None:
        with open(self.directory / log, "ab") as output:
            self._daemons.append(
                subprocess.Popen(
                    command,
                    env=self.environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            )

    def _all_idle(self) -> bool:
        for daemon in self._daemons:
            if daemon.poll() is not None:
                raise ChildProcessError(f"{daemon.args!r} ended with {daemon.returncode}\n{self._last_words()}")
        try:
            states = self.run("sinfo", "-h", "-N", "-p", "main", "-o", "%t", timeout=5, check=False).split()
        except subprocess.TimeoutExpired:
            return False
        return states == ["idle"] * self.shape.nodes

    def _last_words(self) -> str:
        logs = sorted(self.directory.glob("*.log")) + sorted(self.directory.glob("*.out"))
        return "\n".join(f"{path.name}: {path.read_text(errors='replace')[-600:]}" for path in logs)

    def _write_config(self, base: int) -> None:
        at, shape = self.directory, self.shape
        for folder in ("state", "spool", "dev", *(f"spool/{node}" for node in self.nodes)):
            (at / folder).mkdir(exist_ok=True)
        # Without this slurmd 22.05 looks for a cgroup file system or systemd at start.
        (at / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
        gres = ""
        if shape.gpus:
            for number in range(shape.gpus):
                device = at / "dev" / f"gpu{number}"
                device.unlink(missing_ok=True)
                device.symlink_to("/dev/null")
            files = f"{at}/dev/gpu[0-{shape.gpus - 1}]"
            (at / "gres.conf").write_text(f"NodeName=node[1-{shape.nodes}] Name=gpu Type=fake File={files}\n")
            gres = f"Gres=gpu:fake:{shape.gpus}"
        lines = [f"{key}={value}" for key, value in self._settings(base).items()]
        if shape.gpus:
            lines.append("GresTypes=gpu")
        size = f"CPUs={shape.cpus} SocketsPerBoard=1 CoresPerSocket={shape.cpus} RealMemory={shape.memory_mb}"
        for number, node in enumerate(self.nodes, 1):
            address = f"NodeHostname=localhost NodeAddr=127.0.0.{10 + number} Port={base + number}"
            lines.append(f"NodeName={node} {address} {size} {gres}")
        everything = "Nodes=ALL MaxTime=INFINITE DefaultTime=60 State=UP"
        lines.append(f"PartitionName=main Default=YES PriorityTier=1 {everything}")
        lines.append(f"PartitionName=urgent PriorityTier=10 {everything}")  # its jobs preempt those of main
        self.config.write_text("\n".join([*lines, *shape.extra]) + "\n")

    def _settings(self, base: int) -> Mapping[str, object]:
        at, user = self.directory, pwd.getpwuid(os.getuid()).pw_name
        return {
            "ClusterName": f"mini{base}",
            "SlurmctldHost": f"{socket.gethostname().split('.')[0]}(127.0.0.1)",
            "SlurmctldPort": base,
            "SlurmUser": user,
            "SlurmdUser": user,
            "AuthType": "auth/munge",
            "CredType": "cred/munge",
            "AuthInfo": f"socket={at}/munge.sock",
            "StateSaveLocation": at / "state",
            "SlurmdSpoolDir": at / "spool" / "%n",
            "SlurmctldPidFile": at / "slurmctld.pid",
            "SlurmdPidFile": at / "slurmd-%n.pid",
            "SlurmctldLogFile": at / "slurmctld.log",
            "SlurmdLogFile": at / "slurmd-%n.log",
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none",
            "JobAcctGatherType": "jobacct_gather/none",
            "AccountingStorageType": "accounting_storage/none",
            "MpiDefault": "none",
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_Core_Memory",
            "SchedulerType": "sched/backfill",
            "SchedulerParameters": "sched_interval=2,bf_interval=2,batch_sched_delay=0",
            "SlurmdParameters": "config_overrides",  # nodes may claim more than this machine has
            "PreemptType": "preempt/partition_prio",
            "PreemptMode": "REQUEUE",
            "DefMemPerCPU": self.shape.memory_mb // self.shape.cpus,
            "KillWait": self.shape.kill_wait_s,
            "MinJobAge": 3600,
            "ReturnToService": 2,
        }


def wait_until(condition: Callable[[], bool], timeout: float, describe: Callable[[], str] | None = None) -> None:
    """Wait for a condition of another program that sends no event. Raises TimeoutError with what `describe` says."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout:g} s: {describe() if describe else condition}")
        time.sleep(0.05)


def _processes() -> Iterator[tuple[int, Path]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            yield int(folder.name), folder


def _free_ports(count: int) -> int:
    for _ in range(200):
        base = random.choice(_PORTS)
        if all(_is_free(base + offset) for offset in range(count)):
            return base
    raise RuntimeError(f"no {count} free ports in a row")


def _is_free(port: int) -> bool:
    with closing(socket.socket()) as probe:
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True
