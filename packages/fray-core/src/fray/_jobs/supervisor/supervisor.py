"""The supervision of one job on its host, in a process of its own (`start`).

pending   wait for other jobs, do what the plan has to be done first (an environment), wait for room
running   perform the actions of `fray._jobs.supervision`, report events to it
finished  nothing of the job is left, its room is given back, the final status is written

A launch waits until the first replica runs: what is not needed until then is imported where it is used.
"""

from __future__ import annotations

import os
import signal
import time

from fray._jobs import process_tree
from fray._jobs.logs.attempts import AttemptLogs
from fray._jobs.processes.spawn import start_function
from fray._jobs.records.control_pipe import DEFAULT_GRACE, WAKE, ControlPipe, restarts_filed, stop_filed
from fray._jobs.records.liveness import HEARTBEAT
from fray._jobs.records.packed_plans import remove_plan
from fray._jobs.records.replica_records import job_path
from fray._jobs.records.status_file import STATUS, read_json, write_status
from fray._jobs.rules.events import (
    Begin,
    CannotRun,
    ClearReplica,
    ClearTree,
    EndTree,
    NotifyReplica,
    Policy,
    SettleJob,
    StartFailed,
    StartReplica,
    StopReplica,
    StopRequested,
    Tick,
    TreeEnded,
)
from fray._jobs.rules.states import JobState, ReplicaState
from fray._jobs.supervision import JobPhase, Supervision
from fray._jobs.supervisor.control_messages import requested
from fray._jobs.supervisor.job_tree import JobTree
from fray._jobs.supervisor.replica_processes import ReplicaProcesses
from fray._values.job_words import ExitReason, JobStatus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fray._jobs.plans.plan import JobPlan
    from fray._jobs.processes.memory_group import JobGroups
    from fray._jobs.records.liveness import SupervisorLock
    from fray._jobs.rules.events import Action, Event

_LOOK = 1.0  # seconds between two looks for what comes without a wake-up: a stop from another host, room
_SOON = 0.25  # seconds after the launch in which nobody can have changed the source


class Supervisor:
    """One job, from its plan to its final status."""

    def __init__(self, record: str, plan: JobPlan, lock: SupervisorLock, groups: JobGroups) -> None:
        self._record, self._plan, self._lock, self._group = record, plan, lock, groups.tree
        self._guardian = os.getppid()
        self._control = ControlPipe(record)
        self._logs = AttemptLogs(record, plan.log_limit)
        self._tree = JobTree(record)
        self._replicas = ReplicaProcesses(record, plan, self._tree, self._logs, groups, self._warn)
        policy = Policy(
            replicas=plan.replicas,
            gang=plan.gang is not None,
            max_retries_failure=plan.max_retries_failure,
            max_retries_preemption=plan.max_retries_preemption,
            timeout=plan.timeout,
            first_replica=plan.first_replica,
        )
        self._machine = Supervision(policy, epoch=time.time() - time.monotonic())
        self._state = JobState(
            JobStatus.PENDING, self._machine.tasks, pending_reason="starting", warnings=plan.warnings
        )
        self._written = self._state
        self._preparing: int | None = None  # the child that prepares
        self._comparing: int | None = None  # the child that looks whether the source has changed
        self._waits_for = plan.after  # the jobs that it runs after, until each has succeeded
        self._waiting_for_room = self._has_waited = False
        self._killing = self._ending = False
        self._grace_of_children: float | None = None  # once the jobs below are to end too
        self._next_look = self._next_beat = 0.0

    def run(self) -> None:
        """Supervise the job; whatever happens, its tree is ended and its status final."""
        self._resume()
        events = self._look_at_predecessors() if self._waits_for else self._prepare()
        while True:
            for event in [*events, Tick()]:
                self._handle(event)
            if self._ending and self._tree_is_empty():
                self._ending = self._killing = False
                events = [TreeEnded()]
            elif self._machine.phase is JobPhase.FINISHED:
                break
            else:
                self._write()
                events = self._wait()
        self._finish()

    # --- before the replicas ---

    def _resume(self) -> None:
        """Go on after a supervisor that was killed with its host, where the job may be resumed."""
        resumes = self._plan.host_end or self._plan.again
        written = read_json(os.path.join(self._record, STATUS)) if resumes else None
        tasks = [ReplicaState.from_dict(task) for task in (written or {}).get("tasks", ())]
        interrupted = any(task.status == JobStatus.RUNNING for task in tasks)
        if self._plan.again and not interrupted:
            self._machine.again(tasks)
        elif any(task.attempt for task in tasks):
            self._perform(self._machine.resume(tasks, time.monotonic(), self._plan.attempts_before))

    def _look_at_predecessors(self) -> list[Event]:
        """Go on where the jobs that it runs after have succeeded; fail where one has not."""
        from fray._jobs.records.predecessors import folder_of_records, look_at, note_waiter

        folder = folder_of_records(self._record, self._plan.job_id)
        if not self._has_waited:
            note_waiter(folder, self._waits_for, self._record)
        self._waits_for, failure = look_at(folder, self._waits_for)
        if failure is not None:
            return [CannotRun(ExitReason.DEPENDENCY_FAILED, failure)]
        if not self._waits_for:
            return self._prepare()
        others = f" and {len(self._waits_for) - 1} more" if len(self._waits_for) > 1 else ""
        self._wait_for(f"waiting for job {min(self._waits_for)}{others} to succeed")
        return []

    def _prepare(self) -> list[Event]:
        try:
            preparation = self._plan.preparation
            if preparation is None:
                return self._ask_for_room()
            self._wait_for(preparation.waits_for)
            output = self._logs.open(None, 0)
            try:
                self._preparing = start_function(
                    lambda: preparation.prepare(job_path(self._record)),
                    self._plan.workspace,
                    output,
                    self._group,
                )
            finally:
                os.close(output)
        except OSError as error:
            return [CannotRun(ExitReason.COULD_NOT_START, f"the job could not be prepared: {error}")]
        return []

    def _prepared(self, code: int) -> list[Event]:
        self._preparing = None
        if code:
            self._logs.settle(None, 0)
            details = self._logs.last_lines(None, 0, self._plan.secrets)
            return [CannotRun(ExitReason.COULD_NOT_START, f"the environment could not be built{details}")]
        return self._ask_for_room()

    def _ask_for_room(self) -> list[Event]:
        """Begin where there is room; else wait, as on a disk that is full, and ask again at the next look."""
        try:
            waits_for = self._enter()
        except OSError as error:
            waits_for = f"waiting until it can start: {error}"
        self._waiting_for_room = waits_for is not None
        if waits_for is not None:
            self._wait_for(waits_for)
        elif self._comparing is None:
            self._handle(Begin())
        return []

    def _enter(self) -> str | None:
        """Request room, and where there is some compare the source if need be; return what the job waits for.

        Raises:
            OSError: Either could not be done.
        """
        admission = self._plan.admission
        if admission is not None:
            answer = self._plan.granted or admission.enter()
            if isinstance(answer, str):
                return answer
            self._replicas.grant = answer
        waited = self._has_waited and time.time() - self._plan.submitted_at > _SOON
        if waited and self._plan.snapshot_of is None:
            from fray._jobs.supervisor.source_change import start_comparison

            self._comparing = start_comparison(self._record, self._plan, self._group)
        return None

    def _compared(self) -> None:
        from fray._jobs.supervisor.source_change import change_found

        self._comparing = None
        change = change_found(self._record)
        if change is not None:
            self._warn(change)
        self._handle(Begin())

    def _warn(self, text: str) -> None:
        if text not in self._state.warnings:
            self._state = self._state._replace(warnings=(*self._state.warnings, text))

    def _wait_for(self, what: str) -> None:
        self._has_waited = True
        self._state = self._state._replace(pending_reason=what)

    # --- what happens ---

    def _wait(self) -> list[Event]:
        """Sleep until something happens or is due; return what happened."""
        now = time.monotonic()
        due = self._machine.due
        seconds = min(self._next_look, self._next_beat, self._next_look if due is None else due) - now
        if self._ending:
            seconds = min(seconds, 0.005)  # not every end is a child's: those deeper down are looked for
        messages, output = self._control.wait(seconds, self._logs.readable())
        if output:
            self._logs.copy()
        return [*self._reap(), *self._read(messages), *self._look()]

    def _read(self, messages: list[str]) -> list[Event]:
        events: list[Event] = []
        for message in messages:
            if message == WAKE:
                self._next_look = 0.0
            elif message == "granted":
                events += self._ask_for_room() if self._waiting_for_room else []
            else:
                events += requested(message, self._plan.numbers)
        if self._control.signalled:
            self._control.signalled = False
            events += self._host_ends()
        return events

    def _host_ends(self) -> list[Event]:
        """This process itself got SIGTERM."""
        if self._plan.host_end is None:
            return [StopRequested(DEFAULT_GRACE)]
        ending = self._plan.host_end.why()
        if ending is None:
            return []  # it is killed soon, and resumed
        if ending.reason is ExitReason.STOPPED:
            return [StopRequested(ending.grace)]
        return [CannotRun(ending.reason, ending.message, ending.grace)]

    def _look(self) -> list[Event]:
        """See to what comes without a wake-up."""
        now = time.monotonic()
        if now >= self._next_beat:
            self._next_beat = now + HEARTBEAT
            self._lock.renew()
        events: list[Event] = []
        if now < self._next_look:
            return events
        self._next_look = now + _LOOK
        self._logs.copy()
        self._replicas.measure()
        if self._waits_for and not self._ending:
            events += self._look_at_predecessors()
        if self._waiting_for_room and not self._ending:
            events += self._ask_for_room()
        events += self._read(restarts_filed(self._record))
        grace = stop_filed(self._record)
        if grace is not None:
            events.append(StopRequested(grace))
        return events

    def _reap(self) -> list[Event]:
        events: list[Event] = []
        self._tree.childless = False
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                self._tree.childless = True
                return events
            if not pid:
                return events
            if pid == self._preparing:
                events += self._prepared(os.waitstatus_to_exitcode(status))
            elif pid == self._comparing:
                self._compared()
            else:
                ended = self._replicas.ended(pid, status, usage)
                events += [] if ended is None else [ended]

    # --- what is to be done ---

    def _handle(self, event: Event) -> None:
        """Perform what follows from an event."""
        now = time.monotonic()
        self._machine.epoch = time.time() - now  # one of the clocks may have been set, or have stood still
        self._perform(self._machine.handle(event, now))

    def _perform(self, actions: list[Action]) -> None:
        """Perform actions; what fails at once goes back into the machine."""
        failures: list[Event] = []
        for action in actions:
            match action:
                case StartReplica(replica, attempt):
                    failed = self._replicas.start(replica, attempt)
                    if failed is not None:
                        failures.append(StartFailed(replica, attempt, failed))
                case NotifyReplica(replica, attempt, grace):
                    self._replicas.notify(replica, attempt, grace)
                case StopReplica(replica, attempt, _, forced):
                    self._replicas.send(replica, attempt, signal.SIGKILL if forced else signal.SIGTERM)
                case ClearReplica():
                    pass  # done when it was reaped, while the process id is known
                case ClearTree():
                    self._ending, self._killing = True, True
                    self._tree.send(signal.SIGKILL)
                case EndTree(grace, forced):
                    self._end_tree(grace, forced)
                case SettleJob(status, message):
                    self._state = self._state._replace(status=status, error_message=message)

        for event in failures:  # after all of a gang were started
            self._handle(event)

    def _end_tree(self, grace: float, forced: bool) -> None:
        self._ending = True
        self._grace_of_children = grace
        self._tree.tell_children(grace)
        self._killing |= forced
        self._tree.send(signal.SIGKILL if forced else signal.SIGTERM)

    def _tree_is_empty(self) -> bool:
        """Whether nothing of the job is left; where all is to be killed, what there still is gets killed."""
        try:
            left = self._tree.remains()
        except OSError:  # the next look says
            return False
        if left:
            if self._killing:
                process_tree.send(left, signal.SIGKILL)
            return False
        return self._grace_of_children is None or not self._tree.tell_children(self._grace_of_children)

    # --- the record ---

    def _write(self) -> bool:
        machine = self._machine
        state = self._state._replace(tasks=self._replicas.with_ports(machine.tasks))
        if state.started_at is None and machine.started_at is not None:
            state = state._replace(pending_reason=None, started_at=machine.started_at)
            if not state.status.finished:
                state = state._replace(status=JobStatus.RUNNING)
                self._tell_sweep()
        self._state = state
        if state != self._written:
            data = {**self._plan.described, **state.to_dict()}
            if write_status(self._record, data, final=state.finished_at is not None):
                self._written = state
        return self._written == state

    def _finish(self) -> None:
        from fray._jobs.supervisor.job_end import leave_room, settle_plan

        self._logs.close()
        leave_room(self._plan)
        settle_plan(self._record, self._plan, self._state.status)
        if self._plan.host_end is not None:
            remove_plan(self._record)
        self._state = self._state._replace(pending_reason=None, finished_at=time.time())
        # A disk that is full or read-only for a while delays the final status, and does not change it.
        while not self._write():
            self._control.wait(_LOOK, [])
            self._lock.renew()
        if self._plan.on_exit is not None and os.getppid() != self._guardian:
            from fray._jobs.records.on_exit import run_on_exit

            run_on_exit(self._record)  # the guardian, whose part it is, was killed

    def _tell_sweep(self) -> None:
        if os.path.basename(self._record).isdecimal():  # it is a member of one
            from fray._jobs.records.predecessors import tell_of_start

            tell_of_start(self._record)
