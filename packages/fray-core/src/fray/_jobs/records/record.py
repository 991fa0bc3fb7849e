"""The records of jobs: a directory each, readable with plain tools. Readers change nothing in them.

ROOT/train-3f9a2c/
    request.json      what was requested, variables by name only
    plan.pickle       what to run, secrets included, until a supervisor that was not handed it has come
    payload.pkl       the callable and its arguments, where there is one
    status.json       JobInfo, replaced as a whole; by the launcher first, then the supervisor or its guardian
    reserve           room for the final status
    lock              held by the supervisor for as long as it lives; names it
    supervisor.log    what went wrong with it
    control, stop     how it is reached
    on_exit           the command that runs when the job has ended; on_exit.done when it was started
    environment       a link to the environment that was built for the job
    usage/            what each attempt used over time
    logs/             environment.log, replica-N.attempt-M.log, on-exit.log
    jobs/             the records of jobs that this one launched
    replicas/         the records of its replicas, where each has a supervisor of its own
"""

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fray._jobs.process_tree import boot_id
from fray._jobs.records.endings import read_status
from fray._jobs.records.files import CHILDREN, LOCK, LOGS, PLAN, REQUEST
from fray._jobs.records.liveness import Holder, Liveness, holder_of, last_renewed
from fray._jobs.records.older_records import job_id_of, liveness_of_record, name_of_0_1
from fray._jobs.records.replica_records import path_of_replica, replica_paths
from fray._jobs.records.status_file import NO_RECORD, STATUS, VERSION, load_json, read_json
from fray._jobs.rules.replica_endings import info_of_replicas
from fray._values.errors import FrayError, JobNotFoundError
from fray._values.job_states import ExitReason, JobId, JobInfo, JobStatus, LastSeen

_DRAFT, _DOOMED = ".new-", ".old-"


class JobRecord:
    """One job's directory."""

    def __init__(self, path: Path, job_id: JobId, siblings: "Records | None" = None) -> None:
        self.path, self.job_id, self._siblings = path, job_id, siblings

    def info(self, written: JobInfo | None = None) -> JobInfo:
        """Return the job's state as it is now.

        Args:
            written: What was written last, where that has been read.

        Raises:
            JobNotFoundError: There is no such record.
        """
        info = self.written() if written is None else written
        if info.finished:
            return info
        replicas = self.replicas()
        if replicas:
            return info_of_replicas(info, [each.info() for each in replicas])
        liveness = self.liveness()
        if liveness is Liveness.NOT_STARTED:
            return _never_started(info) if self._sweep_has_ended() else info
        if liveness is Liveness.ALIVE:
            return info
        if liveness is Liveness.UNKNOWN:
            return replace(info, last_seen=self._last_seen())
        if (self.path / PLAN).exists():
            return info  # it may be resumed, elsewhere
        info = self.written()  # it may have finished between the two looks
        return info if info.finished else _lost(info, self.holder())

    def liveness(self) -> Liveness:
        """Return what is known of the job's supervisor."""
        return liveness_of_record(os.fspath(self.path))

    def alive(self) -> bool:
        """Whether the job's supervisor may live."""
        return self.liveness() in (Liveness.ALIVE, Liveness.UNKNOWN)

    def holder(self) -> Holder | None:
        """Return the supervisor of the job, or its last one."""
        return holder_of(self._lock)

    @property
    def logs(self) -> Path:
        """Where the job's logs are; 0.1.0 had some in the record itself."""
        logs = self.path / LOGS
        return logs if os.path.isdir(logs) else self.path  # `Path.is_dir` raises where that is forbidden

    def request(self) -> dict[str, Any]:
        """Return the request, as far as it may be shown; empty where that cannot be read."""
        return read_json(os.path.join(self.path, REQUEST)) or {}

    def children(self) -> "list[JobRecord]":
        """Return the records of the jobs that this one launched."""
        return Records(self.path / CHILDREN, self.job_id).all()

    def replicas(self) -> "list[JobRecord]":
        """Return the records of its replicas, in order; none where one supervisor has them all."""
        return [JobRecord(Path(path), self.job_id) for path in replica_paths(os.fspath(self.path))]

    def of_replica(self, replica: int | None) -> "JobRecord":
        """Return the record in which a supervisor writes about a replica; for None, of what comes before."""
        return JobRecord(Path(path_of_replica(os.fspath(self.path), replica)), self.job_id)

    def with_descendants(self) -> "Iterator[JobRecord]":
        """Yield this record, and those of all jobs below it."""
        yield self
        for child in self.children():
            yield from child.with_descendants()

    def written(self) -> JobInfo:
        """Return the state that was written last, whether or not its supervisor lives."""
        info = read_status(os.fspath(self.path))
        if info is not None:
            replicas = [] if info.finished else self.replicas()
            return info_of_replicas(info, [each.written() for each in replicas]) if replicas else info
        return JobInfo(
            job_id=self.job_id,
            name=self.job_id.leaf.rpartition("-")[0] or self.job_id.leaf,
            status=JobStatus.FAILED,
            tasks=(),
            error_message=f"its record is damaged: {self.path / STATUS} {self._damage()}",
        )

    def _damage(self) -> str:
        """Say what is wrong with the status of a record that has none."""
        try:
            data = load_json(os.path.join(self.path, STATUS))
        except OSError as error:
            if error.errno in NO_RECORD and not os.path.exists(os.path.join(self.path, REQUEST)):
                raise JobNotFoundError(self.job_id, f"the cluster of {self.path.parent}") from None
            return f"cannot be read: {error.strerror}"
        version = (data or {}).get("version", VERSION)
        return "cannot be read" if version <= VERSION else f"is of a later version of Fray ({version})"

    def _sweep_has_ended(self) -> bool:
        """Whether it is a member of a sweep that nobody coordinates any more: nobody will start it."""
        if self.job_id.sweep is None:
            return False
        return (self._siblings or Records(self.path.parent, self.job_id.parent)).parent_has_ended

    def _last_seen(self) -> LastSeen:
        holder = self.holder()
        host = "another host" if holder is None else holder.host
        return LastSeen(host=host, time=last_renewed(self._lock) or 0.0)

    @property
    def _lock(self) -> str:
        return os.path.join(self.path, LOCK)


class Records:
    """The records of a folder: of the jobs that users launched, or of those that one job launched."""

    def __init__(self, folder: Path, parent: JobId | None = None) -> None:
        self.folder, self.parent = folder, parent

    def make_folder(self) -> None:
        """Make the folder, closed to others.

        Raises:
            FrayError: It belongs to another user.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_own(self.folder)

    def all(self) -> list[JobRecord]:
        """Return every record here, in no order."""
        return [self.record(name) for name in self.names()]

    def names(self) -> list[str]:
        """Return the names of the records here; other files are passed over.

        Raises:
            PermissionError: This user may not look at the jobs here.
        """
        try:
            with os.scandir(self.folder) as entries:
                return [entry.name for entry in entries if _is_record(entry)]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except PermissionError:
            if self.parent is None:
                raise
            return []  # the job above reads as damaged itself; others do not suffer from it

    def with_descendants(self) -> Iterator[JobRecord]:
        """Yield every record here, and those below each."""
        for record in self.all():
            yield from record.with_descendants()

    def find(self, job_id: str) -> JobRecord:
        """Return the record of a job.

        Raises:
            JobNotFoundError: There is none.
        """
        where = f"the cluster of {self.folder}"
        if any(part in ("", ".", "..") or part[0] == "." for part in job_id.split("/")):
            raise JobNotFoundError(job_id, where)
        try:
            path = self.path(job_id)
            there = path.is_dir()
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            there = False
        if not there:
            raise JobNotFoundError(job_id, where)
        return JobRecord(path, JobId(job_id))

    def path(self, job_id: str) -> Path:
        """Return where the record of a job is, or would be."""
        path = self.folder.joinpath(*f"/{CHILDREN}/".join(job_id.split("/")).split("/"))
        if "/" not in job_id or path.is_dir():
            return path
        older = self.folder / name_of_0_1(job_id)
        return older if older.is_dir() else path

    def draft_of(self, job_id: str) -> Path:
        """Return where a record is made, before it is renamed: it appears complete."""
        path = self.path(job_id)
        return path.with_name(f"{_DRAFT}{path.name}")

    def record(self, name: str) -> JobRecord:
        """Return the record of a name in this folder."""
        leaf = job_id_of(name)
        return JobRecord(self.folder / name, JobId(f"{self.parent}/{leaf}" if self.parent else leaf), self)

    @cached_property
    def parent_has_ended(self) -> bool:
        """Whether the job that launched these has ended: as it was when this was asked first."""
        return self.parent is not None and JobRecord(self.folder.parent, self.parent).info().finished


def check_own(folder: Path) -> None:
    """Refuse a folder of records that is another user's; close one that others may enter.

    Raises:
        FrayError: It is another user's; the message says what to do.
    """
    status = folder.stat()
    if status.st_uid != os.getuid():
        raise FrayError(
            f"{folder} belongs to user {status.st_uid}, not to you ({os.getuid()}), who could change what "
            "your jobs run; choose another folder, e.g. by FRAY_STATE_DIR"
        )
    if status.st_mode & 0o077:
        folder.chmod(0o700)


def _is_record(entry: "os.DirEntry[str]") -> bool:
    return not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)


def _never_started(info: JobInfo) -> JobInfo:
    """How a member of a sweep reads that was to start when that ended; nothing of it is written."""
    message = "its sweep ended before it could start"
    tasks = tuple(replace(task, status=JobStatus.STOPPED, reason=ExitReason.STOPPED) for task in info.tasks)
    return replace(info, status=JobStatus.STOPPED, tasks=tasks, error_message=message, pending_reason=None)


def _lost(info: JobInfo, holder: Holder | None) -> JobInfo:
    """How a job reads whose supervisor is gone without a word; nothing of it is written."""
    if holder is not None and holder.boot != boot_id():
        message = "the machine was restarted while the job was not finished"
    else:
        which = f" (process {holder.pid})" if holder is not None and holder.pid else ""
        message = f"its supervisor{which} was killed before the job was finished"
    tasks = tuple(
        task
        if task.status.finished
        else replace(task, status=JobStatus.FAILED, reason=ExitReason.LOST, error_message=message)
        for task in info.tasks
    )
    return replace(info, status=JobStatus.FAILED, tasks=tasks, error_message=message, pending_reason=None)
