"""The records of jobs: a directory each, readable with plain tools.

STATE/jobs/train-3f9a2c/
    request.json      what was asked for, variables by name only
    payload.pkl       the callable and its arguments, where there is one
    status.json       JobInfo, replaced as a whole; the supervisor writes it
    supervisor.json   which process carries the job
    supervisor.log    what went wrong with that process
    control           a pipe to it
    environment       a link to the environment that was built for the job
    logs/             environment.log, replica-N.attempt-M.log
    jobs/             the records of jobs that this one launched
"""

import contextlib
import fcntl
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from fray import JobId, JobInfo, JobNotFoundError, JobStatus
from fray.backend import LogReader
from fray.cluster import ExitReason, poll_delays
from fray_local._supervisor.mailbox import post
from fray_local._supervisor.processes import alive, boot_id, kill_until_gone, with_cookie
from fray_local._supervisor.replicas import log_path
from fray_local._supervisor.status import STATUS, VERSION, read_json, write_json

_ORPHAN_GRACE = 10.0  # seconds that the jobs of a lost one have after SIGTERM


def state_dir() -> Path:
    """Return where state lives: `FRAY_STATE_DIR`, else the platform's directory for a user's state."""
    given = os.environ.get("FRAY_STATE_DIR")
    if given:
        return Path(given).absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "fray"
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "fray"


class Record:
    """One job's directory."""

    def __init__(self, path: Path, job_id: JobId) -> None:
        self.path, self.job_id = path, job_id

    def info(self) -> JobInfo:
        """Return the job's state; of a job whose supervisor died, its end is settled first."""
        info = self._read()
        if info.finished or self.supervised():
            return info
        info = self._read()  # it may have finished between the two looks
        return info if info.finished else self._bury()

    def supervised(self) -> bool:
        """Whether the job's supervisor lives."""
        return alive(read_json(self.path / "supervisor.json"))

    def log(self, replica: int | None, attempt: int) -> LogReader:
        """Open a log, as `fray.cluster.follow_logs` asks for it."""
        if replica is None:
            return LogReader(self.path / "logs" / "environment.log")
        return LogReader(log_path(os.fspath(self.path), replica, attempt))

    def children(self) -> "list[Record]":
        """Return the records of the jobs that this one launched."""
        return Records(self.path / "jobs", self.job_id).all()

    def tell_to_stop(self, grace: float) -> None:
        """Have the job's supervisor begin to stop it, unless it is finished."""
        for delay in poll_delays(longest=0.05):
            # The pipe has no reader in the first milliseconds of a supervisor.
            if self.info().finished or post(os.fspath(self.path), f"stop {grace}"):
                return
            time.sleep(delay)

    def wait_until_gone(self) -> None:
        """Block until the job is finished and its supervisor has ended."""
        for delay in poll_delays(longest=0.05):
            if self.info().finished and not self.supervised():
                return
            time.sleep(delay)

    def _read(self) -> JobInfo:
        data = read_json(self.path / STATUS)
        if data is None and self.path.is_dir():
            # Nothing that a crash of ours leaves: status files are replaced as a whole.
            return JobInfo(
                job_id=self.job_id,
                name=self.job_id.leaf.rpartition("-")[0],
                status=JobStatus.FAILED,
                tasks=(),
                error_message=f"its record is damaged: {self.path / STATUS} cannot be read",
            )
        if data is None:
            raise JobNotFoundError(self.job_id, f"the local cluster of {state_dir()}")
        return JobInfo.from_dict(data)

    def _bury(self) -> JobInfo:
        """Settle the end of a job that nobody carries any more: end what is left of it, and say so."""
        with _locked(self.path / "burial.lock"):
            info = self._read()
            if info.finished:
                return info
            kill_until_gone(lambda: with_cookie(os.fspath(self.path)))
            for child in self.children():
                child.tell_to_stop(_ORPHAN_GRACE)
            lost = {"status": JobStatus.FAILED, "reason": ExitReason.LOST}
            data = info.to_dict()
            for task in data["tasks"]:
                if not JobStatus(task["status"]).finished:
                    task.update({key: str(value) for key, value in lost.items()}, finished_at=time.time())
            data.update(
                version=VERSION,
                status=str(JobStatus.FAILED),
                pending_reason=None,
                error_message=self._cause_of_death(),
                finished_at=time.time(),
            )
            write_json(os.fspath(self.path / STATUS), data)
            return JobInfo.from_dict(data)

    def _cause_of_death(self) -> str:
        supervisor = read_json(self.path / "supervisor.json") or {}
        if supervisor.get("boot") != boot_id():
            return "the machine was restarted while the job was not finished"
        return (
            f"its supervisor (process {supervisor.get('pid')}) was killed before the job was finished; "
            "what was left of the job was ended"
        )


class Records:
    """The records of a folder: of the jobs that users launched, or of those that one job launched."""

    def __init__(self, folder: Path, parent: JobId | None = None) -> None:
        self.folder, self.parent = folder, parent

    def all(self) -> list[Record]:
        """Return every record here, in no order."""
        try:
            names = os.listdir(self.folder)  # noqa: PTH208 - names are what is needed
        except FileNotFoundError:
            return []
        return [self._record(name) for name in names if not name.startswith(".")]

    def with_descendants(self) -> Iterator[Record]:
        """Yield every record here, and those below each."""
        for record in self.all():
            yield record
            yield from Records(record.path / "jobs", record.job_id).with_descendants()

    def find(self, job_id: str) -> Record:
        """Return the record of a job.

        Raises:
            JobNotFoundError: There is none.
        """
        path = self.path(job_id)
        if any(part in ("", ".", "..") for part in job_id.split("/")) or not (path / STATUS).is_file():
            raise JobNotFoundError(job_id, f"the local cluster of {self.folder.parent}")
        return Record(path, JobId(job_id))

    def path(self, job_id: str) -> Path:
        """Return where the record of a job is, or would be."""
        return self.folder.joinpath(*"/jobs/".join(job_id.split("/")).split("/"))

    def prune(self, keep: int, days: float) -> None:
        """Delete the oldest records of finished jobs beyond `keep`, and those older than `days`."""
        records = sorted(self.all(), key=lambda record: _modified(record.path), reverse=True)
        oldest = time.time() - days * 86400
        for place, record in enumerate(records):
            if (place >= keep or _modified(record.path) < oldest) and _finished(record):
                # Renamed first: whoever looks meanwhile finds a whole record or none.
                doomed = record.path.with_name(f".old-{record.path.name}")
                with contextlib.suppress(OSError):  # another launcher prunes the same one
                    record.path.rename(doomed)
                    shutil.rmtree(doomed)

    def _record(self, name: str) -> Record:
        return Record(self.folder / name, JobId(f"{self.parent}/{name}" if self.parent else name))


def _finished(record: Record) -> bool:
    below = Records(record.path / "jobs", record.job_id).with_descendants()
    return all(each.info().finished and not each.supervised() for each in [record, *below])


def _modified(path: Path) -> float:
    try:
        return (path / STATUS).stat().st_mtime
    except OSError:
        return 0.0


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
