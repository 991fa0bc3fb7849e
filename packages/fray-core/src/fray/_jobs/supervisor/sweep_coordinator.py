"""The process that coordinates a sweep: it starts members' supervisors as there is need for them.

A member that waits costs its record, and no process. What happens arrives by the end of a member's guardian,
which is a child of this process, and by lines in the control pipe (`running 3`, `member 3`, `stop 10`). The
coordinator stands in the place of a supervisor (`boot`): where it is killed, its guardian ends the sweep.
"""

import os
import sys
import time

from fray._jobs.plans.sweep_plan import SweepPlan
from fray._jobs.process_tree import JOB_VARIABLE
from fray._jobs.records.control_pipe import DEFAULT_GRACE, WAKE, ControlPipe, post_to_supervisor, stop_filed
from fray._jobs.records.files import CHILDREN, LOCK, SUPERVISOR_LOG
from fray._jobs.records.liveness import HEARTBEAT, Liveness, SupervisorLock, liveness_of
from fray._jobs.records.predecessors import folder_of_records, has_ended, note_waiter
from fray._jobs.records.status_file import STATUS, load_json, read_json, write_status
from fray._jobs.rules.sweep_order import SweepOrder
from fray._jobs.supervisor.command import supervisor_command
from fray._values.job_words import JobStatus

MEMBER, RUNNING = "member", "running"
_LOOK = 1.0  # seconds between two looks for what comes without a wake-up
_WRITE = 0.1  # seconds between two writes of the progress, at the least
_TELL = 0.05  # seconds between two tries to stop a member that is just starting
_NAMED = 3  # members in the message of a sweep that failed


class Coordinator:
    """One sweep, from its plan to its final status."""

    def __init__(self, record: str, plan: SweepPlan, lock: SupervisorLock) -> None:
        self._record, self._plan, self._lock = record, plan, lock
        self._control = ControlPipe(record)
        self._order = SweepOrder(plan.members, plan.runs_after, plan.max_parallel)
        self._folder = folder_of_records(record, plan.job_id)
        self._processes: dict[int, int] = {}  # of the guardians -> position
        # Members whose guardians were killed and whose supervisors live, or whose end could not be read.
        self._unguarded: set[int] = set()
        self._started_at: float | None = None
        self._grace: float | None = None  # once the sweep is to end
        self._told: set[int] = set()
        self._written: dict[str, object] = {}
        self._next_look = self._next_beat = self._next_write = 0.0

    def run(self) -> None:
        """Coordinate the sweep until every member has ended."""
        if self._plan.resumed:
            self._read_members()
        note_waiter(self._folder, self._order.elsewhere, self._record)
        while True:
            self._look()
            if self._grace is None:
                self._start_members()
            else:
                self._stop_members(self._grace)
            if self._order.finished:
                break
            self._write()
            self._wait()
        self._finish()

    def _read_members(self) -> None:
        for position in range(self._plan.members):
            status = self._status_of(position)
            if status is not None and status.finished:
                self._order.ended(position, status)

    # --- what happens ---

    def _wait(self) -> None:
        now = time.monotonic()
        due = min(self._next_look, self._next_beat)
        if self._status() != self._written:
            due = min(due, self._next_write)
        if self._grace is not None:
            due = min(due, now + _TELL)
        messages, _ = self._control.wait(due - now, [])
        for message in messages:
            word, _, rest = message.partition(" ")
            if word == RUNNING:
                self._order.runs(int(rest))
                self._started_at = self._started_at or time.time()
            elif word == MEMBER:
                self._note_message(int(rest))
            elif word == "stop":
                self._stop_within(float(rest))
            elif word == WAKE:
                self._next_look = 0.0
        if self._control.signalled:
            self._grace = DEFAULT_GRACE if self._grace is None else self._grace
        self._reap()

    def _note_message(self, position: int) -> None:
        status = self._status_of(position)
        if status is None or status.finished:
            self._note_end(position)

    def _stop_within(self, grace: float) -> None:
        """End the sweep; members that were asked before are asked again where less time is left to them."""
        if self._grace is None or grace < self._grace:
            self._grace, self._told = grace, set()

    def _reap(self) -> None:
        while self._processes or self._unguarded:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            position = self._processes.pop(pid, None)
            if position is not None:
                self._note_end(position)
            else:  # of a supervisor whose guardian was killed
                self._look_at_unguarded()

    def _look_at_unguarded(self) -> None:
        for position in sorted(self._unguarded):
            self._unguarded.discard(position)
            self._note_end(position)

    def _note_end(self, position: int) -> None:
        """A member has ended, or has lost its guardian."""
        status = self._status_of(position)
        if status is not None and status.finished:
            self._order.ended(position, status)
        elif status is None or self._liveness_of(position) is Liveness.ALIVE:
            self._unguarded.add(position)
        else:
            self._order.ended(position, JobStatus.FAILED)  # it reads lost

    def _look(self) -> None:
        now = time.monotonic()
        if now >= self._next_beat:
            self._next_beat = now + HEARTBEAT
            self._lock.renew()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK
        for job_id in self._order.elsewhere:
            if has_ended(self._folder, job_id):
                self._order.ended_elsewhere(job_id)
        self._look_at_unguarded()
        if self._grace is None:
            self._grace = stop_filed(self._record)

    # --- members ---

    def _start_members(self) -> None:
        while (position := self._order.next_to_start()) is not None:
            status = self._status_of(position)
            if status is None:  # later, then
                self._order.put_back(position)
                return
            if status.finished:  # it was stopped before its turn came
                self._order.ended(position, status)
                continue
            try:
                self._processes[self._start(position)] = position
            except OSError as error:  # this host can start no process now: later, then
                print(f"member {position} was not started: {error}", file=sys.stderr)
                self._order.put_back(position)
                return

    def _start(self, position: int) -> int:
        record = self._record_of(position)
        command = supervisor_command(record, list(self._plan.paths))
        output = (os.path.join(record, SUPERVISOR_LOG), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        return os.posix_spawn(
            sys.executable,
            command,
            {**os.environ, **self._plan.secrets.get(position, {}), JOB_VARIABLE: record},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, *output),
                (os.POSIX_SPAWN_OPEN, 2, *output),
            ],
            setsid=True,
        )

    def _stop_members(self, grace: float) -> None:
        """Ask those that run to stop, again and again until each has received it; the others never start."""
        from fray._jobs.supervisor.sweep_endings import settle_unstarted

        started = self._order.started
        for position in self._order.unfinished:
            if position not in started and settle_unstarted(self._record_of(position)):
                self._note_message(position)
        for position in started - self._told:
            if post_to_supervisor(self._record_of(position), f"stop {grace}"):
                self._told.add(position)

    def _record_of(self, position: int) -> str:
        return os.path.join(self._record, CHILDREN, str(position))

    def _status_of(self, position: int) -> JobStatus | None:
        """Return the status of a member, "failed" where it is damaged; None where it cannot be read now."""
        try:
            written = load_json(os.path.join(self._record_of(position), STATUS)) or {}
        except (FileNotFoundError, NotADirectoryError):  # it was removed
            return JobStatus.FAILED
        except OSError:
            return None
        status = written.get("status")
        return JobStatus(status) if status in tuple(JobStatus) else JobStatus.FAILED

    def _liveness_of(self, position: int) -> Liveness:
        return liveness_of(os.path.join(self._record_of(position), LOCK))

    # --- the record ---

    def _status(self) -> dict[str, object]:
        """What is written while the sweep runs."""
        running = self._started_at is not None
        return {
            "status": JobStatus.RUNNING if running else JobStatus.PENDING,
            "progress": self._order.progress,
            "started_at": self._started_at,
            "pending_reason": None if running else "no member runs yet",
        }

    def _write(self) -> None:
        now, status = time.monotonic(), self._status()
        if status != self._written and now >= self._next_write:
            self._next_write = now + _WRITE
            if write_status(self._record, {**self._plan.described, **status}, final=False):
                self._written = status

    def _finish(self) -> None:
        status, message = self._verdict()
        final = {
            "status": status,
            "error_message": message,
            "pending_reason": None,
            "finished_at": time.time(),
        }
        while not write_status(self._record, {**self._plan.described, **self._status(), **final}, final=True):
            self._control.wait(_LOOK, [])
            self._lock.renew()

    def _verdict(self) -> tuple[JobStatus, str | None]:
        failed = self._order.with_status(JobStatus.FAILED)
        if self._grace is not None:
            return JobStatus.STOPPED, None
        if failed:
            return JobStatus.FAILED, self._failures(failed)
        stopped = self._order.with_status(JobStatus.STOPPED)
        return (JobStatus.STOPPED if stopped else JobStatus.SUCCEEDED), None

    def _failures(self, failed: list[int]) -> str:
        lines = [f"{len(failed)} of {self._plan.members} members failed"]
        for position in failed[:_NAMED]:
            written = read_json(os.path.join(self._record_of(position), STATUS)) or {}
            why = str(written.get("error_message") or "it was lost").partition("\n")[0]
            lines.append(f"  {self._plan.job_id}/{position}: {why}")
        more = len(failed) - _NAMED
        return "\n".join([*lines, f"  and {more} more"] if more > 0 else lines)
