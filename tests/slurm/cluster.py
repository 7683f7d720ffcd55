"""A real Slurm cluster in network namespaces: node 0 is the login node with slurmctld, the others run slurmd.

It needs root, and Debian's slurmctld, slurmd and slurm-client. Authentication is `auth/none`: nothing outside the
namespaces can reach the cluster.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.chaos import lab
from tests.chaos.lab import SUBNET, Lab
from tests.waiting import wait_for

CONFIGURATION = """\
ClusterName=lab
SlurmctldHost=node0({subnet}.1)
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={spool}/%n
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdLogFile={folder}/slurmd.%n.log
SlurmctldLogFile={folder}/slurmctld.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
{send_user_signal}
KillWait=5
SlurmdTimeout=20
MessageTimeout=5
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
{nodes}
PartitionName=low Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=CANCEL GraceTime=120
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
PartitionName=down Nodes=ALL MaxTime=INFINITE State=DOWN
"""


class SlurmCluster(Lab):
    """A login node and `nodes` compute nodes. It is a context manager."""

    def __init__(self, folder: Path, nodes: int) -> None:
        super().__init__(folder, nodes + 1, f"SetEnv SHLVL=1 SLURM_CONF={folder}/slurm.conf")
        self.compute = range(1, nodes + 1)
        # slurmstepd makes a socket in it, and the path of a socket has at most 107 bytes.
        self.spool = tempfile.mkdtemp(prefix="slurm-")

    def __enter__(self) -> "SlurmCluster":
        self.folder.joinpath("state").mkdir(parents=True)
        names = [f"{SUBNET}.{rank + 1} node{rank}" for rank in range(self.nodes)]
        (self.folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *names]) + "\n")
        self.configure(send_user_signal=True)
        super().__enter__()
        try:
            self.start_controller()
            for rank in self.compute:
                self.start_slurmd(rank)
            wait_for(lambda: self.slurm("sinfo", "-h", "-N", "-t", "idle").count("low") == len(self.compute), 60)
        except BaseException:
            self.__exit__()
            raise
        return self

    def configure(self, *, send_user_signal: bool) -> None:
        """Write the configuration. `send_user_signal`: whether a preemption sends a job the signal that it wants."""
        lines = [
            f"NodeName=node{rank} NodeAddr={SUBNET}.{rank + 1} CPUs=2 RealMemory=4000 State=UNKNOWN"
            for rank in self.compute
        ]
        text = CONFIGURATION.format(
            folder=self.folder,
            spool=self.spool,
            subnet=SUBNET,
            nodes="\n".join(lines),
            send_user_signal="SlurmctldParameters=preempt_send_user_signal" if send_user_signal else "",
        )
        (self.folder / "slurm.conf").write_text(text)

    def preempt(self, name: str) -> None:
        """Submit a job that takes all nodes from the jobs of the partition `low`."""
        script = self.folder / f"{name}.sh"
        script.write_text("#!/bin/sh\nexec sleep 600\n")
        options = ("-p", "high", "-N", str(len(self.compute)), "--exclusive", "-o", "/dev/null")
        self.slurm("sbatch", *options, "-J", name, str(script))

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        shutil.rmtree(self.spool, ignore_errors=True)

    def start_controller(self) -> None:
        """Start slurmctld on the login node."""
        self._start(0, "slurmctld", "-D")

    def start_slurmd(self, rank: int) -> None:
        """Start slurmd on a compute node."""
        self._start(rank, "slurmd", "-D", "-N", f"node{rank}")

    def slurm(self, *command: str) -> str:
        """Return what one of Slurm's commands prints on the login node."""
        done = subprocess.run(
            ["nsenter", "-t", str(self.init(0)), "-a", "timeout", "20", *command],
            env=self._environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout

    def shorten(self, name: str) -> None:
        """Give a running job the shortest time limit that is still ahead of it, in Slurm's whole minutes."""
        number, used = self.slurm("squeue", "-h", "-n", name, "-o", "%i %M").split()
        minutes = int(used.split(":")[-2]) if used.count(":") else 0
        self.slurm("scontrol", "update", f"JobId={number}", f"TimeLimit={minutes + 2}")

    def jobs(self) -> list[tuple[str, str]]:
        """Return the name and the state of every job that waits or runs."""
        lines = self.slurm("squeue", "-h", "-o", "%j|%T").splitlines()
        return [(name, state) for name, _, state in (line.partition("|") for line in lines)]

    def _start(self, rank: int, *command: str) -> None:
        with (self.folder / f"{command[0]}{rank}.out").open("ab") as log:
            subprocess.Popen(
                ["nsenter", "-t", str(self.init(rank)), "-a", *command, "-f", str(self.folder / "slurm.conf")],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}


def why_not() -> str:
    """Return what is missing for a cluster on this machine; empty if it can run."""
    if reason := lab.why_not():
        return reason
    for program in ("slurmctld", "slurmd", "sbatch"):
        if shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None:
            return f"{program} is not installed (Debian: slurmctld slurmd slurm-client)"
    return ""


@contextmanager
def slurm_cluster(folder: Path, nodes: int = 2) -> Iterator[SlurmCluster]:
    """Yield a running cluster."""
    folder.mkdir(exist_ok=True)
    with SlurmCluster(folder, nodes) as cluster:
        yield cluster
