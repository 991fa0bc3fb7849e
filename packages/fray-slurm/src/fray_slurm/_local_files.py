"""The files of a Slurm on this machine: its configuration, that of its accounting, and its key."""

import contextlib
import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_CONF = """\
ClusterName=fraytest
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
ProctrackType=proctrack/{tracking}
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
# The nodes are as large as tests need, whatever this machine has.
SlurmdParameters=config_overrides
DefMemPerCPU=500
GresTypes=gpu
ReturnToService=2
JobRequeue=1
KillWait={kill_wait}
MinJobAge={min_job_age}
SlurmdTimeout={node_timeout}
InactiveLimit=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
{accounting}
{nodes}
PartitionName=normal Nodes={own} Default=YES PriorityTier=1 GraceTime={grace} PreemptMode=REQUEUE
PartitionName=high Nodes={own} MaxTime=UNLIMITED PriorityTier=10 PreemptMode=OFF
PartitionName=short Nodes={own} DefaultTime=1 MaxTime=2 PriorityTier=1 PreemptMode=OFF
"""

_ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
AccountingStoragePass={folder}/munge.socket
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1"""

_CGROUP = """\
CgroupPlugin=autodetect
CgroupAutomount=no
IgnoreSystemd=yes
"""

_DBD = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser={user}
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=fray
StoragePass=fray
StorageLoc=slurm
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmFiles:
    """The content of the files; see `LocalSlurm`.

    Args:
        settings: Values of Slurm's own settings, by the names in the text above.
    """

    folder: Path
    nodes: Sequence[str]
    cpus: int
    memory: int
    crowd: int
    client_timeout: int
    accounting: bool
    tracking: str
    settings: Mapping[str, int]

    def write(self) -> int:
        """Write all of them, with free ports; return the port of the accounting."""
        folder = self.folder
        (folder / "state").mkdir()
        for node in [*self.nodes, *(["e1"] if self.crowd else [])]:
            (folder / f"spool-{node}").mkdir()
        key = folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        controller, accounting, crowd, *ports = _free_ports(3 + len(self.nodes))
        own = self._conf(controller, accounting, crowd, ports)
        (folder / "slurm.conf").write_text(own)
        # Daemons have Slurm's own patience with each other.
        (folder / "client.conf").write_text(f"{own}MessageTimeout={self.client_timeout}\n")
        # slurmd counts only GPUs that have a device file; any file that is there will do.
        for number in range(2):
            (folder / f"gpu{number}").touch()
        (folder / "cgroup.conf").write_text(_CGROUP)
        (folder / "gres.conf").write_text(f"Name=gpu Type=a100 File={folder}/gpu[0-1]\n")
        dbd = folder / "slurmdbd.conf"
        dbd.touch(mode=0o600)  # slurmdbd refuses one that others may read
        dbd.write_text(_DBD.format(folder=folder, port=accounting, user=user_name()))
        return accounting

    def _conf(self, controller: int, accounting: int, crowd: int, ports: Sequence[int]) -> str:
        none = "AccountingStorageType=accounting_storage/none"
        return _CONF.format(
            folder=self.folder,
            user=user_name(),
            host=_host(),
            controller_port=controller,
            nodes="\n".join([*self._own_nodes(ports), *self._crowd_nodes(crowd)]),
            own=",".join(self.nodes),
            tracking=self.tracking,
            accounting=_ACCOUNTING.format(folder=self.folder, port=accounting) if self.accounting else none,
            **self.settings,
        )

    def _own_nodes(self, ports: Sequence[int]) -> list[str]:
        return [
            f"NodeName={node} NodeHostname={_host()} NodeAddr=127.0.0.1 Port={port} CPUs={self.cpus} "
            f"RealMemory={self.memory} Gres=gpu:a100:2 Feature={node},fast State=UNKNOWN"
            for node, port in zip(self.nodes, ports, strict=True)
        ]

    def _crowd_nodes(self, port: int) -> list[str]:
        if not self.crowd:
            return []
        names, common = f"e[1-{self.crowd}]", f"NodeHostname={_host()} NodeAddr=127.0.0.1 Port={port}"
        return [
            f"NodeName={names} {common} CPUs={self.cpus} RealMemory={self.memory} State=UNKNOWN",
            f"PartitionName=many Nodes={names} PreemptMode=OFF",
        ]


def user_name() -> str:
    """Return the name of the user that runs this program."""
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name


def _host() -> str:
    return socket.gethostname().partition(".")[0]


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
