"""A real Slurm of a few nodes on this machine, for tests: `with LocalSlurm() as slurm: ...`.

It needs Debian's packages `slurm-wlm` and `munge` (the build that lets several slurmd share a host), and
for `accounting=True` also `slurmdbd` and `mariadb-server`. Everything listens on the loopback interface at
free ports, and lives in one temporary folder.
"""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from fray.backend import poll_delays
from fray_slurm._local_files import SlurmFiles, user_name
from fray_slurm._local_processes import DIES_WITHIN, end_what_is_left, kill_processes, remove_groups
from fray_slurm._recorded_slurm import RecordedSlurm

__all__ = ["LocalSlurm", "RecordedSlurm"]

_CGROUP = "cgroup"
_PATIENCE = 60.0  # seconds for anything that a daemon should do


class LocalSlurm:
    """A Slurm cluster on loopback, from `__enter__` to `__exit__`.

    Partitions: `normal` (the default; its jobs are preempted and requeued), `high` (preempts them), `short`
    (a limit of one minute unless asked, two at most). Each node has `cpus` CPUs, `memory` MB and two made-up
    GPUs of type `a100`, whatever the machine has.

    Args:
        nodes: How many; they are called n1, n2, ...
        min_job_age: Seconds for which `scontrol` remembers a job that has ended.
        kill_wait: Seconds between the SIGTERM and the SIGKILL of a job that is ended.
        grace: Seconds that a preempted job has.
        node_timeout: Seconds after which a node that does not answer is down.
        client_timeout: Seconds for which a command tries to reach a slurmctld that is away.
        crowd: How many nodes there are beside these, e1, e2, ..., in the partition `many`. One slurmd stands
            for all of them: it starts batch steps, and Slurm does not notice that they end by themselves. For
            what a client does about very many jobs.
        accounting: Whether slurmdbd runs, on a MariaDB of its own, so that `sacct` answers.
        tracking: How it knows, and signals, the processes of a step: `linuxproc`, `pgid`, or `cgroup`, for
            which this user must be allowed to make control groups. Slurm names these by its nodes, so the
            names of nodes have an ending of their own then.
    """

    def __init__(
        self,
        nodes: int = 3,
        *,
        cpus: int = 4,
        memory: int = 4000,
        min_job_age: int = 300,
        kill_wait: int = 5,
        grace: int = 10,
        node_timeout: int = 10,
        client_timeout: int = 10,
        crowd: int = 0,
        accounting: bool = False,
        tracking: str = "linuxproc",
    ) -> None:
        ending = f"-{secrets.token_hex(4)}" if tracking == _CGROUP else ""
        self.nodes = [f"n{number}{ending}" for number in range(1, nodes + 1)]
        self._cpus, self._memory, self._accounting = cpus, memory, accounting
        self._crowd, self._client_timeout, self._tracking = crowd, client_timeout, tracking
        self._settings = {
            "min_job_age": min_job_age,
            "kill_wait": kill_wait,
            "grace": grace,
            "node_timeout": node_timeout,
        }
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def variables(self) -> Mapping[str, str]:
        """What a client of this cluster has in its environment: `SLURM_CONF`."""
        return {"SLURM_CONF": os.fspath(self.folder / "client.conf")}

    @property
    def _conf(self) -> str:
        return os.fspath(self.folder / "slurm.conf")

    def __enter__(self) -> Self:
        # Short: the path of a socket has at most 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="fslurm-"))
        try:
            self._accounting_port = self._files().write()
            self._start("munged", _munged(self.folder))
            _until(lambda: (self.folder / "munge.socket").exists(), "munged is up")
            if self._accounting:
                self._start_accounting()
            self.start_controller()
            for node in self.nodes:
                self.start_node(node)
            self.wait_until_idle()
            if self._crowd:
                self.start_node("e1")
                _until(self._crowd_is_idle, "all nodes of the crowd are idle", self._logs)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def run(self, *command: str, check: bool = True) -> str:
        """Run one of Slurm's commands as a client of this cluster; return what it printed."""
        done = subprocess.run(
            command, env={**os.environ, **self.variables}, capture_output=True, text=True, check=False
        )
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def preempt(self, nodes: str) -> None:
        """Take all of these nodes, such as `n1,n2`, from jobs of `normal`, for a moment."""
        whole = ["-p", "high", "-w", nodes, "--ntasks-per-node=1", f"-c{self._cpus}"]
        self.run("sbatch", *whole, "-o", os.devnull, "--wrap", "true")

    def end_hold(self, number: str) -> None:
        """Let a job start that was requeued: once Slurm holds it, as it does for two minutes."""
        _until(lambda: "BeginTime" in self.run("squeue", "-h", "-j", number, "-o", "%r"), "it is held")
        self.run("scontrol", "update", f"JobId={number}", "StartTime=now")

    def wait_until_idle(self) -> None:
        """Return once every node is idle."""

        def idle() -> bool:
            states = self.run("sinfo", "-h", "-N", "-p", "normal", "-o", "%T", check=False).split()
            return states == ["idle"] * len(self.nodes)

        _until(idle, "all nodes are idle", self._logs)

    def _crowd_is_idle(self) -> bool:
        # What no slurmd has registered is unknown until it is set.
        self.run("scontrol", "update", f"NodeName=e[2-{self._crowd}]", "State=IDLE", check=False)
        return self.run("sinfo", "-h", "-p", "many", "-o", "%T %D").split() == ["idle", str(self._crowd)]

    def start_controller(self) -> None:
        """Start slurmctld, and return once it answers."""
        # -i: a state that is missing or damaged is not an error.
        self._start("slurmctld", ["slurmctld", "-D", "-i", "-f", self._conf])
        _until(
            lambda: "UP" in self.run("scontrol", "ping", check=False).split(), "slurmctld answers", self._logs
        )

    def stop_controller(self, *, lose_jobs: bool = False) -> None:
        """End slurmctld with SIGKILL, as a crash does; jobs run on.

        Args:
            lose_jobs: As if it had never saved what it knows of jobs.
        """
        self._end("slurmctld", signal.SIGKILL)
        for path in (self.folder / "state").glob("job_state*") if lose_jobs else ():
            path.unlink()

    def start_node(self, name: str) -> None:
        """Start the slurmd of a node, without waiting for it."""
        self._start(name, ["slurmd", "-D", "-N", name, "-f", self._conf])

    def kill_node(self, name: str) -> None:
        """End a node: its slurmd and everything that runs on it, with SIGKILL."""
        self._end(name, signal.SIGKILL)
        kill_processes(self.folder, f"SLURMD_NODENAME={name}", f"SLURM_NODENAME={name}")

    def _files(self) -> SlurmFiles:
        return SlurmFiles(
            folder=self.folder,
            nodes=self.nodes,
            cpus=self._cpus,
            memory=self._memory,
            crowd=self._crowd,
            client_timeout=self._client_timeout,
            accounting=self._accounting,
            tracking=self._tracking,
            settings=self._settings,
        )

    def _start_accounting(self) -> None:
        data, own = self.folder / "mariadb", self.folder / "mariadb.socket"
        options = [f"--datadir={data}", f"--user={user_name()}", "--innodb-buffer-pool-size=64M"]
        _check(["mariadb-install-db", "--no-defaults", *options, "--skip-test-db"])
        self._start(
            "mariadbd", ["mariadbd", "--no-defaults", *options, f"--socket={own}", "--skip-networking"]
        )
        _until(own.exists, "mariadbd is up", self._logs)
        _check(
            ["mariadb", "--no-defaults", f"--socket={own}", f"--user={user_name()}"],
            "CREATE DATABASE slurm; CREATE USER fray@localhost IDENTIFIED BY 'fray';"
            "GRANT ALL ON slurm.* TO fray@localhost;",
        )
        # slurmdbd has no setting for the socket of its database; the client library reads this variable.
        self._start("slurmdbd", ["slurmdbd", "-D"], {"MYSQL_UNIX_PORT": os.fspath(own)})
        _until(lambda: _answers(self._accounting_port), "slurmdbd is up", self._logs)

    def _start(self, name: str, command: Sequence[str], variables: Mapping[str, str] | None = None) -> None:
        with (self.folder / f"{name}.out").open("ab") as out:
            self._daemons[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**_plain_environ(), "SLURM_CONF": self._conf, **(variables or {})},
                cwd=self.folder,
                start_new_session=True,
            )

    def _end(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        daemon = self._daemons.pop(name, None)
        if daemon is None:
            return
        daemon.send_signal(number)
        try:
            daemon.wait(10)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()

    def _close(self) -> None:
        """End the jobs, then the daemons by their process ids, and remove the folder."""
        if "slurmctld" in self._daemons:
            self.run("scancel", "--full", "--signal=KILL", "--me", check=False)
            self.run("scancel", "--me", check=False)
            # Jobs of a node that is gone end when Slurm notices, which nobody needs to wait for.
            whole = {*self.nodes} <= {*self._daemons}
            with contextlib.suppress(TimeoutError):
                _until(
                    lambda: not self.run("squeue", "-h", check=False),
                    "no job is left",
                    seconds=15 if whole else 0.1,
                )
        for name in reversed([*self._daemons]):
            self._end(name)
        left = end_what_is_left(self.folder)
        if self._tracking == _CGROUP:
            remove_groups(self.nodes)
        shutil.rmtree(self.folder, ignore_errors=True)
        if left:
            raise RuntimeError(f"SIGKILL has not ended these within {DIES_WITHIN:g} s: {'; '.join(left)}")

    def _logs(self) -> str:
        """Return the last lines of every daemon, for an error that names what did not happen."""
        shown = []
        for path in sorted([*self.folder.glob("*.out"), *self.folder.glob("*.log")]):
            lines = path.read_text(errors="replace").splitlines()[-8:]
            shown += [f"{path.name}: {line}" for line in lines]
        return "\n".join(shown)


def _munged(folder: Path) -> list[str]:
    files = {"socket": "munge.socket", "key-file": "munge.key", "log-file": "munge.log"}
    files |= {"pid-file": "munge.pid", "seed-file": "munge.seed"}
    # --force: the folder is this user's alone, which munged takes for a mistake.
    return ["munged", "--foreground", "--force", *(f"--{key}={folder / name}" for key, name in files.items())]


def _until(
    holds: Callable[[], bool], what: str, details: Callable[[], str] = str, seconds: float = _PATIENCE
) -> None:
    deadline = time.monotonic() + seconds
    for pause in poll_delays(shortest=0.02, longest=0.2):
        if holds():
            return
        if time.monotonic() >= deadline:
            raise TimeoutError(textwrap.dedent(f"not within {seconds:g} s: {what}\n{details()}"))
        time.sleep(pause)


def _check(command: Sequence[str], text: str = "") -> None:
    subprocess.run(command, input=text, text=True, capture_output=True, check=True)


def _plain_environ() -> dict[str, str]:
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    return {"PATH": path, "HOME": os.environ.get("HOME", "/"), "LANG": "C.UTF-8"}


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True
