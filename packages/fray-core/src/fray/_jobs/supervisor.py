"""Carry one job of a `DirectoryCluster` on this host: `python -m fray._jobs.supervisor FOLDER`.

pending   until the replicas are started, or a stop came first
running   replicas run; failed ones start again while they have retries left
finished  everything that descends from here is ended, then the final status is written
"""

import os
import pickle
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from fray._jobs.directory_cluster import CARRIER, PLAN, STOP, claim, log_path, write_status
from fray._jobs.last_lines import last_lines
from fray._jobs.plan import JobPlan
from fray._jobs.process_tree import adopt_orphans, end_descendants, reap
from fray._values.delays import poll_delays
from fray._values.jobs import ExitReason, JobStatus, TaskStatus

_LAST_GRACE = 10.0  # seconds that replicas have after SIGTERM when their time is up
_LONGEST_PAUSE = 0.05  # seconds between two looks


class Carrier:
    """One job, from its plan to its final status."""

    def __init__(self, folder: Path, plan: JobPlan) -> None:
        self._folder, self._plan = folder, plan
        self._info = plan.first_info()
        self._tasks = list(self._info.tasks)
        self._running: dict[int, tuple[int, subprocess.Popen[bytes]]] = {}  # pid -> replica

    def run(self) -> None:
        """Carry the job to its end; whatever happens, its processes are ended and its status final."""
        status, reason = JobStatus.FAILED, ExitReason.LOST
        error: str | None = "what carried the job failed"
        grace = 0.0
        try:
            status, reason, error, grace = self._live()
        finally:
            # A job that this one launched has a carrier of its own, which is told to stop like this one.
            end_descendants(grace, spare=CARRIER)
            self._finish(status, reason, error)

    def _live(self) -> tuple[JobStatus, ExitReason, str | None, float]:
        """Return how the job ended, what that means for replicas that still run, and their grace."""
        deadline = None
        for pause in poll_delays(longest=_LONGEST_PAUSE):
            if (folder_stop := self._folder / STOP).exists():
                return JobStatus.STOPPED, ExitReason.STOPPED, None, float(folder_stop.read_text())
            if deadline is not None and time.monotonic() >= deadline:
                error = f"ran longer than its timeout of {self._plan.timeout:g} s"
                return JobStatus.FAILED, ExitReason.TIMED_OUT, error, _LAST_GRACE
            if self._info.status is JobStatus.PENDING:
                deadline = None if self._plan.timeout is None else time.monotonic() + self._plan.timeout
                self._start_all()
            for pid, code in reap().items():
                if pid in self._running:
                    self._ended(*self._running.pop(pid), code)
            if not self._running:
                break
            time.sleep(pause)
        failed = [task for task in self._tasks if task.status is JobStatus.FAILED]
        message = "\n".join(f"replica {task.replica} {task.error_message}" for task in failed)
        return JobStatus.FAILED if failed else JobStatus.SUCCEEDED, ExitReason.EXITED, message or None, 0.0

    def _start_all(self) -> None:
        self._info = replace(
            self._info, status=JobStatus.RUNNING, pending_reason=None, started_at=time.time()
        )
        for replica in range(self._plan.replicas):
            self._start(replica)
        self._write()

    def _start(self, replica: int) -> None:
        plan, task = self._plan, self._tasks[replica]
        attempt = task.attempt + 1
        self._tasks[replica] = replace(
            task, status=JobStatus.RUNNING, attempt=attempt, started_at=time.time()
        )
        with log_path(self._folder, replica, attempt).open("ab") as log, tempfile.TemporaryFile() as stdin:
            stdin.write(plan.payload or b"")
            stdin.seek(0)
            try:
                process = subprocess.Popen(
                    plan.command,
                    stdin=stdin,
                    stdout=log,
                    stderr=log,
                    env=plan.environ | {"FRAY_REPLICA_ID": str(replica)},
                    cwd=plan.workspace,
                    start_new_session=True,
                )
            except OSError as error:
                message = f"could not start {plan.command[0]!r}: {error.strerror}"
                self._settle(replica, ExitReason.COULD_NOT_START, None, message)
            else:
                self._running[process.pid] = replica, process

    def _ended(self, replica: int, process: "subprocess.Popen[bytes]", code: int) -> None:
        process.returncode = code  # `reap` has it, and the Popen would else look for it
        if not code:
            self._settle(replica, ExitReason.EXITED, 0, None)
            self._write()
            return
        reason, how = ExitReason.EXITED, f"exited with code {code}"
        if code < 0:
            reason, how = ExitReason.SIGNALLED, f"was ended by signal {-code}"
        self._settle(replica, reason, code, how + self._last_lines(replica))
        task = self._tasks[replica]
        if task.attempt <= self._plan.max_retries_failure:
            earlier = (*task.previous, replace(task, previous=()))
            self._tasks[replica] = TaskStatus(replica=replica, attempt=task.attempt, previous=earlier)
            self._start(replica)
        self._write()

    def _settle(self, replica: int, reason: ExitReason, code: int | None, error: str | None) -> None:
        self._tasks[replica] = replace(
            self._tasks[replica],
            status=JobStatus.FAILED if error else JobStatus.SUCCEEDED,
            reason=reason,
            exit_code=code,
            error_message=error,
            finished_at=time.time(),
        )

    def _last_lines(self, replica: int) -> str:
        log = log_path(self._folder, replica, self._tasks[replica].attempt)
        return last_lines(log, self._plan.secrets)

    def _finish(self, status: JobStatus, reason: ExitReason, error: str | None) -> None:
        now = time.time()
        for replica, task in enumerate(self._tasks):
            if not task.status.finished:
                self._tasks[replica] = replace(task, status=status, reason=reason, finished_at=now)
        self._info = replace(
            self._info, status=status, error_message=error, pending_reason=None, finished_at=now
        )
        self._write()

    def _write(self) -> None:
        self._info = replace(self._info, tasks=tuple(self._tasks))
        write_status(self._folder, self._info)


def main() -> None:
    """Carry the job of a folder, unless another process has settled it."""
    folder = Path(sys.argv[1])
    claimed = claim(folder)
    if claimed is None:
        return  # it was stopped before it could start
    with claimed:
        plan: JobPlan = pickle.loads((folder / PLAN).read_bytes())
        (folder / PLAN).unlink()
        os.chdir("/")
        adopt_orphans()
        Carrier(folder, plan).run()


if __name__ == "__main__":
    main()
