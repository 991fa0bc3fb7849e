"""Run Slurm's commands. Every call of one is here, so that they can be counted."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fray import ClusterUnavailableError, FrayError
from fray_slurm._fields import read_nodes
from fray_slurm._readings import (
    ACCOUNT_FORMAT,
    QUEUE_FORMAT,
    SlurmJob,
    job_number,
    read_accounts,
    read_details,
    read_queue,
    submitted_id,
)
from fray_slurm._script import submit_environment

_PATIENCE = 60.0  # seconds for one command; with slurmctld away they take up to 18 to say so
_AWAY = (
    "unable to contact slurm controller",
    "connection refused",
    "socket timed out",
    "slurm_load_",
    "zero bytes were transmitted",
    "connection timed out",
    "munge decode failed",
    "protocol authentication error",
)
_LARGEST_ARRAY = 1001  # Slurm's own default
_ASKS_AGAIN = 30.0  # seconds for which a name is not asked for again while no command is answered
_ACCOUNTS_WITHIN = 300.0  # seconds for which accounting that fails is taken for one that is away
_IN_A_ROW = 120.0  # seconds between two failures of one row, at the most: a job is looked at each minute
_UNKNOWN_TASK = "not found"  # of an array
_UNKNOWN_JOB = "invalid job id specified"


class SlurmError(FrayError, ValueError):
    """Slurm refused a request; the message has its own words."""


class SlurmClient:
    """The commands of one Slurm cluster, as a user runs them.

    Args:
        cluster: The cluster's name, where there are several; None for the one of this host.
    """

    def __init__(self, cluster: str | None = None) -> None:
        self._cluster = cluster
        self._accounting = True
        self._accounts_failed: tuple[float, float] | None = None  # the first and the last of a row, monotonic
        self._name: str | None = None
        self._names_from = 0.0  # when its name may be asked for, by the monotonic clock
        self.seconds = 0.0
        """How long its commands have taken, all together."""

    def submit(self, script: str, name: str) -> str:
        """Submit a batch script; return the job's id, `N` or `N;cluster`.

        Args:
            name: The job's name, which no other submission has: by it the job is found where the answer is
                lost.

        Raises:
            SlurmError: Slurm refused it.
            ClusterUnavailableError: Slurm did not answer, and has no such job.
        """
        environ = submit_environment(os.environ)
        try:
            printed = self._run(["sbatch", "--parsable"], text=script, environ=environ)
        except ClusterUnavailableError:
            accepted = self._by_name(name)
            if accepted is None:
                raise
            return accepted
        found = submitted_id(printed) or self._by_name(name)
        if found is None:
            raise SlurmError(
                f"sbatch printed no job id, and squeue knows no job {name!r}: {printed.strip()!r}"
            )
        return found

    def queue(self) -> dict[str, SlurmJob]:
        """Return all jobs of this user that Slurm remembers, ended ones too: one call."""
        # -r: a line for each task of an array, also of those that wait.
        command = ["squeue", "-h", "-r", "-t", "all", "-u", _own_user(), "-o", QUEUE_FORMAT]
        return read_queue(self._run(command))

    def accounts(self, jobs: Iterable[str], since: float) -> dict[str, SlurmJob]:
        """Return what the accounting has of jobs: one call; nothing where none is kept, or without `sacct`.

        Args:
            since: Seconds since the epoch; without a start, sacct begins at midnight.

        Raises:
            ClusterUnavailableError: It fails, and has not failed for so long that there may be none.
        """
        if not self._accounting or shutil.which("sacct") is None:
            return {}
        start = _local_time(since)
        command = ["sacct", "-X", "--parsable2", "--noheader", f"--format={ACCOUNT_FORMAT}"]
        wanted = ",".join(dict.fromkeys(job.partition("_")[0] for job in jobs))  # tasks: by their array
        try:
            found = read_accounts(self._run([*command, f"--starttime={start}", f"--jobs={wanted}"]))
        except SlurmError as error:
            self._accounting = "disabled" not in str(error)
            now = time.monotonic()
            first, last = self._accounts_failed or (now, now)
            first = first if now - last <= _IN_A_ROW else now  # it was not asked meanwhile
            self._accounts_failed = (first, now)
            if self._accounting and now - first < _ACCOUNTS_WITHIN:
                raise ClusterUnavailableError(str(error)) from None
            return {}
        self._accounts_failed = None
        return found

    def details(self, job_id: str) -> SlurmJob | None:
        """Return what `scontrol` prints of one job; None where it knows none."""
        try:
            return read_details(self._run(["scontrol", "show", "job", "-o", job_id]))
        except SlurmError as error:
            if any(word in str(error).lower() for word in (_UNKNOWN_JOB, _UNKNOWN_TASK)):
                return None
            raise

    def largest_array(self) -> int:
        """Return how many tasks an array may have; the number of the last one is smaller than that."""
        found = self._setting("MaxArraySize")
        return int(found) if found.isdigit() else _LARGEST_ARRAY

    def is_another(self, cluster: str | None) -> bool:
        """Whether a cluster of this name is none that this client asks: one call, once.

        Raises:
            ClusterUnavailableError: Slurm does not say which it asks.
        """
        if cluster is None or self._cluster == "all":
            return False
        if self._name is None:
            try:
                self._name = self._cluster or self._setting("ClusterName")
            except (ClusterUnavailableError, SlurmError) as error:
                self._names_from = time.monotonic() + _ASKS_AGAIN
                raise ClusterUnavailableError(str(error)) from None
        return self._name != "" and cluster.casefold() not in self._name.casefold().split(",")

    def known_another(self, cluster: str | None) -> bool | None:
        """As `is_another`; None where that is not known, or was not, and no command was answered since."""
        if cluster is not None and self._name is None and time.monotonic() < self._names_from:
            return None  # each call would wait as long as the last one
        try:
            return self.is_another(cluster)
        except ClusterUnavailableError:
            return None

    @property
    def name(self) -> str | None:
        """The name of the one cluster that it asks, where that is known."""
        self.known_another("")
        return None if not self._name or "," in self._name else self._name

    def _setting(self, name: str) -> str:
        """Return a setting of slurmctld; "" where there is none."""
        for line in self._run(["scontrol", "show", "config"]).splitlines():
            found, _, value = line.partition("=")
            if found.strip() == name:
                return value.strip()
        return ""

    def nodes(self) -> dict[str, dict[str, str]]:
        """Return the fields of `scontrol show node` by node."""
        return read_nodes(self._run(["scontrol", "show", "node", "-o"]))

    def sees(self, path: Path, partition: str | None, account: str | None) -> bool | None:
        """Whether a node sees a file; None where no node is free for the check at once."""
        where = [f"--partition={partition}"] if partition else []
        where += [f"--account={account}"] if account else []
        at_once = [
            "--immediate=5",
            "--nodes=1",
            "--ntasks=1",
            "--time=1",
            "--mem=100M",
            "--job-name=fray-probe",
        ]
        try:
            answer = self._run(
                ["srun", *where, *at_once, "sh", "-c", 'test -e "$1" && echo y || echo n', "sh", str(path)]
            )
        except (ClusterUnavailableError, SlurmError):
            return None
        return {"y": True, "n": False}.get(answer.strip())

    def cancel(self, *job_ids: str, signal: str | None = None, pending: bool = False) -> None:
        """Cancel jobs or steps, or send them a signal; a job that has ended is not an error.

        Args:
            pending: Only if it has not started.
        """
        options = [f"--signal={signal}"] if signal else []
        options += ["--state=PENDING"] if pending else []
        try:
            self._run(["scancel", *options, *job_ids])
        except SlurmError as error:
            gone = (_UNKNOWN_JOB, "already completing or completed", "already finished", "invalid job/step")
            if not any(word in str(error).lower() for word in gone):
                raise

    def _by_name(self, name: str) -> str | None:
        """Look a job up by its name; a sbatch that failed or timed out may have been accepted."""
        # %F: of tasks it is the number of their array; %i is `101_[0-99]` of those that wait.
        command = ["squeue", "-h", "-t", "all", "-u", _own_user(), f"--name={name}", "-o", "%F"]
        try:
            found = job_number(self._run(command))
        except (ClusterUnavailableError, SlurmError):
            return None
        return f"{found};{self._cluster}" if found and self._cluster else found

    def _run(
        self, command: Sequence[str], text: str | None = None, environ: Mapping[str, str] | None = None
    ) -> str:
        program, *rest = command
        clusters = [f"--clusters={self._cluster}"] if self._cluster else []
        variables = dict(os.environ if environ is None else environ)
        # They would change what a command prints, or whom it asks.
        variables = {key: value for key, value in variables.items() if not key.startswith(_CHANGE_OUTPUT)}
        started = time.monotonic()
        try:
            done = subprocess.run(
                [program, *clusters, *rest],
                input=text,
                capture_output=True,
                text=True,
                errors="replace",
                env=variables | {"LC_ALL": "C"},
                timeout=_PATIENCE,
                check=False,
            )
        except FileNotFoundError:
            raise ClusterUnavailableError(
                f"there is no {program!r} on the PATH: Slurm's commands are needed; work on a login node of "
                "the cluster, or load its module"
            ) from None
        except OSError as error:  # this host has no process or memory left, say
            raise ClusterUnavailableError(f"{program} could not be started: {error.strerror}") from None
        except subprocess.TimeoutExpired:
            raise ClusterUnavailableError(f"{program} did not answer within {_PATIENCE:g} s") from None
        finally:
            self.seconds += time.monotonic() - started
        if done.returncode:
            self._fail(program, done.returncode, f"{done.stderr}\n{done.stdout}".strip())
        self._names_from = 0.0  # Slurm answers
        # With --clusters, squeue and sacct begin with a line `CLUSTER: name`, which no reader takes.
        return done.stdout

    def _fail(self, program: str, code: int, said: str) -> None:
        text = said or f"exit code {code}"
        lowered = text.lower()
        if _UNKNOWN_JOB not in lowered and any(word in lowered for word in _AWAY):
            raise ClusterUnavailableError(f"{program}: {text}")
        raise SlurmError(f"{program}: {text}")


_CHANGE_OUTPUT = ("SQUEUE_", "SACCT_", "SCANCEL_", "SINFO_", "SLURM_CLUSTERS", "SBATCH_", "SLURM_TIME_FORMAT")


def _own_user() -> str:
    # By number: USER and LOGNAME may be another's, as after su; then all jobs would be missing.
    return str(os.getuid())


def _local_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(seconds))
