"""End jobs, whatever state their supervisors are in.

asked        by the pipe on its host, by a file elsewhere; one that was stopped (SIGSTOP) is continued
unanswered   beyond the grace and some seconds: it is killed, and its tree with it, and the job reads stopped
not there    nobody has come to start the job: it never will
gone         what is left of its tree is ended; the record stays as it is, and reads lost
"""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace

from fray._jobs import process_tree
from fray._jobs.process_tree import JOB_VARIABLE, ControlGroup
from fray._jobs.records.control_pipe import STOP, post_to_supervisor
from fray._jobs.records.endings import read_status, stopped
from fray._jobs.records.files import LOCK, PLAN
from fray._jobs.records.kept_plans import keep_unstarted
from fray._jobs.records.liveness import Holder, Liveness, SupervisorLock, last_renewed
from fray._jobs.records.older_records import children_of_0_1, claim_of_0_1
from fray._jobs.records.predecessors import tell_of_end
from fray._jobs.records.record import JobRecord, Records
from fray._jobs.records.settling import settle_by_members
from fray._jobs.records.status_file import remove_file, replace_file, write_status
from fray._jobs.supervisor.job_tree import SUPERVISOR_MODULE, members
from fray._values.delays import poll_delays
from fray._values.errors import ClusterUnavailableError, JobNotFoundError
from fray._values.job_states import JobInfo

_PATIENCE = 5.0  # seconds beyond a grace within which a supervisor answers
_FAR_PATIENCE = 60.0  # the same, of a supervisor on another host
_SETTLES_WITHIN = 2.0  # seconds in which a supervisor ends its tree, and writes the final status
_WRITES_WITHIN = 10.0  # seconds after the end of its tree in which it writes that on a machine that is busy


def stop_family(record: JobRecord, grace: float) -> None:
    """Stop a job and the jobs below it; return when no process of theirs is left.

    Raises:
        ClusterUnavailableError: Its supervisor is where this process cannot reach it, and does not answer.
    """
    stop_job(record, grace)
    # Its supervisor has stopped them, unless it was killed itself.
    older = map(Records(record.path.parent).record, children_of_0_1(record.path))
    for child in (*record.children(), *older):
        try:
            stop_family(child, grace)
        except JobNotFoundError:
            continue  # removed meanwhile


def stop_job(record: JobRecord, grace: float) -> None:
    """Stop one job; see `stop_family`."""
    replicas = record.replicas()
    left = [_StopOrder(each, grace) for each in replicas or [record]]
    for pause in poll_delays(longest=0.05):
        left = [order for order in left if not order.done()]
        if not left:
            break
        time.sleep(pause)
    if replicas:
        settle_by_members(record)


def request_stop(record: JobRecord, grace: float) -> None:
    """Ask a job's supervisor to stop it, and return at once: where many are stopped, all of them first."""
    path = os.fspath(record.path)
    if not post_to_supervisor(path, f"stop {grace}"):
        _file_stop(path, grace)


def _file_stop(path: str, grace: float) -> bool:
    try:
        replace_file(os.path.join(path, STOP), str(grace).encode())
    except OSError:
        return False  # the disk is full or read-only, and the pipe may have a reader yet
    return True


class _StopOrder:
    """One call of `terminate`."""

    def __init__(self, record: JobRecord, grace: float) -> None:
        self._record, self._path, self._grace = record, os.fspath(record.path), grace
        self._asked_at = time.monotonic()
        self._posted = self._filed = self._killed = False
        self._empty_since: float | None = None

    def done(self) -> bool:
        """Do what there is to be done now; return whether the job has ended."""
        liveness = self._record.liveness()
        info = read_status(self._path)
        if liveness is Liveness.NOT_STARTED:
            return info is None or info.finished or self._claim()
        if liveness is Liveness.GONE:
            end_leftovers(self._record)
            return not self._killed or self._claim()
        if info is not None and info.finished and liveness is Liveness.UNKNOWN:
            return True
        self._ask(finished=info is not None and info.finished)
        if liveness is Liveness.UNKNOWN:
            self._check_far()
            return False
        return self._pressed()

    def _ask(self, *, finished: bool) -> None:
        holder = self._record.holder()
        for process in holder.processes if holder else ():
            process.send(signal.SIGCONT)
        if finished:
            return  # it is about to go
        if not self._posted:
            self._posted = post_to_supervisor(self._path, f"stop {self._grace}")
        if not self._filed and not self._posted:
            self._filed = _file_stop(self._path, self._grace)

    def _pressed(self) -> bool:
        """Kill a supervisor that does not answer; whether its tree is gone, though it could not write so."""
        waited = time.monotonic() - self._asked_at
        holder = self._record.holder()
        if waited < self._grace + _SETTLES_WITHIN:
            return False
        if holder is None:  # of 0.1.0, which said less of itself
            self._check_far()
            return False
        if self._tree_is_gone(holder):
            self._empty_since = self._empty_since or time.monotonic()
            return time.monotonic() - self._empty_since > _WRITES_WITHIN
        self._empty_since = None
        if waited > self._grace + _PATIENCE:
            if not any(process.running for process in holder.processes):
                self._check_far()  # it is in another process namespace
                return False
            kill_tree(self._record, holder)
            self._killed = True
        return False

    def _tree_is_gone(self, holder: Holder) -> bool:
        """Whether the supervisor has ended the tree, and is left alone."""
        roots = [process.pid for process in holder.processes if process.running]
        if not roots or not self._posted:
            return False
        return not any(members(self._path, root) for root in roots[:1])

    def _check_far(self) -> None:
        if time.monotonic() - self._asked_at < self._grace + _FAR_PATIENCE:
            return
        holder = self._record.holder()
        seen = last_renewed(os.path.join(self._path, LOCK))
        ago = f"{time.time() - seen:.0f} s ago" if seen else "at an unknown time"
        raise ClusterUnavailableError(
            f"job {self._record.job_id} does not answer: its supervisor was last seen on host "
            f"{holder.host if holder else 'unknown'}, {ago}, where it cannot be reached from here; "
            "stop it there, or settle it with remove(force=True)"
        )

    def _claim(self) -> bool:
        """Settle a job that nobody supervises; False where a supervisor has just started."""
        return settle_stopped(self._record, self._written)

    def _written(self, done: bool) -> bool:
        if not done and time.monotonic() - self._asked_at > self._grace + _PATIENCE:
            raise ClusterUnavailableError(
                f"nothing of job {self._record.job_id} runs, but {self._path} cannot be written: "
                "the disk is full or read-only"
            )
        return done


def settle_stopped(
    record: JobRecord, written: Callable[[bool], bool] = bool, *, end: JobInfo | None = None
) -> bool:
    """Write that a job without a supervisor was stopped; False where it has one.

    Args:
        written: Called with whether the record could be written, and returns what this is to return.
        end: How it has ended, where that is known.
    """
    path = os.fspath(record.path)
    lock = SupervisorLock.acquire(os.path.join(path, LOCK))
    if lock is None:
        return False
    try:
        info = read_status(path)
        if info is not None and not info.finished:
            if not claim_of_0_1(path):
                return False
            keep_unstarted(path)
            remove_file(os.path.join(path, PLAN))
            known = end and replace(end, finished_at=end.finished_at or time.time())
            done = write_status(path, (known or stopped(info)).to_dict(), final=True)
            tell_of_end(path)
            return written(done)
        return True
    finally:
        lock.close()


def kill_tree(record: JobRecord, holder: Holder) -> None:
    """Kill a supervisor and all below it."""
    path = os.fspath(record.path)
    below = [pid for process in holder.processes if process.running for pid in members(path, process.pid)]
    for process in holder.processes[::-1]:  # the guardian last: it would call the job lost
        process.send(signal.SIGKILL)
    process_tree.send(below, signal.SIGKILL)
    end_leftovers(record)


def end_leftovers(record: JobRecord) -> None:
    """Kill what is left of the tree of a job whose supervisor is gone, as far as it can be found."""
    holder, path = record.holder(), os.fspath(record.path)
    group = ControlGroup(holder.group) if holder is not None and holder.group is not None else None
    if holder is None or holder.boot != process_tree.boot_id():
        return

    def left() -> list[int]:
        own = process_tree.with_variable(JOB_VARIABLE, path)
        own = [pid for pid in own if not _supervises(pid)]
        return [*own, *(group.pids() if group else ())]

    if group is not None:
        group.kill()
    process_tree.kill_until_gone(left)
    if group is not None:
        group.remove()


def _supervises(pid: int) -> bool:
    return SUPERVISOR_MODULE in process_tree.command_of(pid)
