"""A cluster whose jobs are directories of a file system that its hosts share.

ROOT/train-3f9a2c/              (for a job of a job, ROOT/train-3f9a2c+rollout-1b22d0/)
    plan.pickle                 what to run, secrets included, until it runs
    status.json                 JobInfo, replaced as a whole
    carried                     locked by the process that carries the job, for as long as it lives; also by
                                one that stops a job which nobody carries yet
    stop                        the seconds of grace, once somebody wants the job to end
    replica-N.attempt-M.log
"""

import fcntl
import json
import os
import pickle
import secrets
import shutil
import sys
import time
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import IO

from fray._jobs.clusters import ClusterBase
from fray._jobs.plan import JobPlan
from fray._values.jobs import ExitReason, JobInfo, JobStatus

STATUS, PLAN, LOCK, STOP = "status.json", "plan.pickle", "carried", "stop"
CARRIER = "fray._jobs.supervisor"  # the module that carries a job
_READ_AT_ONCE = 1 << 20


class DirectoryCluster(ClusterBase):
    """Derive a cluster from one primitive: run a command somewhere, and do not wait for it.

    The command carries one job on the host where it runs, and ends with it: it starts the replicas,
    starts failed ones again, and writes down what happens. Every host that it may run on has this
    interpreter and sees `root`, at the same paths. Where that process is killed the job reads failed, lost,
    and what it had started may go on.

    Args:
        spec: What opens the same cluster again.
        root: Where the records of jobs are; made where it is missing, for this user only.
    """

    def __init__(self, spec: str, root: str | os.PathLike[str]) -> None:
        super().__init__(spec)
        self._root = Path(root).absolute()

    @abstractmethod
    def _start(self, job_id: str, command: list[str]) -> None:
        """Let a command run somewhere, in a session of its own, and return without waiting for it."""

    def _submit(self, plan: JobPlan) -> None:
        folder = self._folder(plan.job_id)
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)
        try:
            (folder / PLAN).touch(mode=0o600)
            (folder / PLAN).write_bytes(pickle.dumps(plan))
            write_status(folder, plan.first_info())
            self._start(plan.job_id, [sys.executable, "-P", "-m", CARRIER, os.fspath(folder)])
        except BaseException:
            shutil.rmtree(folder)
            raise

    def _info(self, job_id: str) -> JobInfo | None:
        folder = self._folder(job_id)
        # The lock is looked at first: who had it has written how the job ended before letting go.
        abandoned = _abandoned(folder)
        try:
            data = json.loads((folder / STATUS).read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        info = JobInfo.from_dict(data)
        return _lost(info) if abandoned and not info.finished else info

    def _ids(self) -> Iterable[str]:
        if not self._root.is_dir():
            return []
        return [folder.name.replace("+", "/") for folder in self._root.iterdir()]

    def _read_log(self, job_id: str, replica: int | None, attempt: int, offset: int) -> bytes:
        try:
            with log_path(self._folder(job_id), replica, attempt).open("rb") as file:
                file.seek(offset)
                return file.read(_READ_AT_ONCE)
        except FileNotFoundError:
            return b""

    def _stop(self, job_id: str, grace: float) -> None:
        folder = self._folder(job_id)
        replace_file(folder / STOP, str(grace))
        claimed = claim(folder)
        if claimed is not None:  # nobody has come to carry it: it waits for its start somewhere
            with claimed:
                (folder / PLAN).unlink(missing_ok=True)
                write_status(folder, _stopped(JobInfo.from_dict(json.loads((folder / STATUS).read_bytes()))))

    def _folder(self, job_id: str) -> Path:
        # No id that is one has dots alone between its slashes; with a "+" there this names nothing.
        return self._root / (job_id.replace("/", "+") if job_id.strip("./") else "+")


def claim(folder: Path) -> IO[bytes] | None:
    """Be the one who settles how a job ends, while the file returned is open; None where another is."""
    draft = folder / f".{LOCK}.{secrets.token_hex(4)}"
    file = draft.open("wb")
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        os.link(draft, folder / LOCK)  # locked before it can be seen, and only one gets the name
    except FileExistsError:
        file.close()
        return None
    finally:
        draft.unlink()
    return file


def log_path(folder: Path, replica: int | None, attempt: int) -> Path:
    """Return where a replica's attempt writes."""
    return folder / f"replica-{replica}.attempt-{attempt}.log"


def write_status(folder: Path, info: JobInfo) -> None:
    """Replace the status of a job."""
    replace_file(folder / STATUS, json.dumps(info.to_dict()))


def replace_file(path: Path, text: str) -> None:
    """Write a file so that readers see the old one or the new one, whole."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text)
    draft.replace(path)


def _abandoned(folder: Path) -> bool:
    """Whether a process carried the job and is gone."""
    try:
        with (folder / LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return True
    except (BlockingIOError, FileNotFoundError, NotADirectoryError):
        return False


def _stopped(info: JobInfo) -> JobInfo:
    stopped, now = JobStatus.STOPPED, time.time()
    tasks = tuple(
        replace(task, status=stopped, reason=ExitReason.STOPPED, finished_at=now) for task in info.tasks
    )
    return replace(info, status=stopped, tasks=tasks, pending_reason=None, finished_at=now)


def _lost(info: JobInfo) -> JobInfo:
    tasks = tuple(
        task
        if task.status.finished
        else replace(task, status=JobStatus.FAILED, reason=ExitReason.LOST, error_message="lost")
        for task in info.tasks
    )
    message = "the process that carried the job was killed before the job had ended"
    return replace(info, status=JobStatus.FAILED, tasks=tasks, error_message=message, pending_reason=None)
