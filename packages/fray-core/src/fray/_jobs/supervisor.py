"""The process that supervises one job on its host; `supervisor_command` says how it is started.

pending   wait for other jobs, do what the plan has to be done first (an environment), wait for room
running   perform what `fray._jobs.supervision` says, tell it what happens
finished  nothing of the job is left, its room is given back, the final status is written

It is the child of its guardian (`fray._jobs.boot`), which ends the tree when the supervisor is killed. Where
the guardian is killed the supervisor goes on without.

The whole starts in a bare interpreter, and a job's start waits for it: nothing here is imported without need.
"""

import gc
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable

from fray._jobs import process_tree
from fray._jobs.control_group import ControlGroup
from fray._jobs.control_pipe import STOP, ControlPipe
from fray._jobs.exits import amended, end_of_exit, no_program
from fray._jobs.liveness import HEARTBEAT, Holder, SupervisorLock, this_host
from fray._jobs.log_files import AttemptLogs
from fray._jobs.oom import oom_kills
from fray._jobs.plan import Grant, JobPlan
from fray._jobs.predecessors import WAKE, folder_of_records, look_at, note_waiter
from fray._jobs.process_tree import boot_id, identify
from fray._jobs.spawn import start_function, start_program
from fray._jobs.states import JobState, ReplicaState
from fray._jobs.status_file import STATUS, read_json, write_status
from fray._jobs.supervision import (
    Action,
    AttemptEnd,
    Begin,
    CannotRun,
    ClearReplica,
    ClearTree,
    Ended,
    EndTree,
    Event,
    JobPhase,
    Noticed,
    NotifyReplica,
    Policy,
    SettleJob,
    StartFailed,
    StartReplica,
    StopReplica,
    StopRequested,
    Supervision,
    Tick,
    TreeEnded,
)
from fray._jobs.usage import UsageMeter, over_asked
from fray._values.job_words import ExitReason, JobStatus

TYPE_CHECKING = False
if TYPE_CHECKING:
    import resource

SUPERVISOR_MODULE = MODULE = "fray._jobs.supervisor"
"""On the command line of every supervisor: those of jobs below are no processes of the job itself."""
PLAN, CHILDREN, CHANGED = "plan.pickle", "jobs", "changed"
_LOOK = 1.0  # seconds between two looks for what comes without a wake-up: a stop from another host, room
_SOON = 0.25  # seconds after the launch in which nobody can have changed the source
_OWN_GRACE = 10.0  # seconds for a job whose supervisor has SIGTERM


class Supervisor:
    """One job, from its plan to its final status."""

    def __init__(self, record: str, plan: JobPlan, lock: SupervisorLock) -> None:
        self._record, self._plan, self._lock = record, plan, lock
        self._guardian = os.getppid()
        self._control = ControlPipe(record)
        self._logs = AttemptLogs(record, plan.log_limit)
        self._meters: dict[int, UsageMeter] = {}  # of what runs, by process
        policy = Policy(
            replicas=plan.replicas,
            gang=plan.gang is not None,
            max_retries_failure=plan.max_retries_failure,
            max_retries_preemption=plan.max_retries_preemption,
            timeout=plan.timeout,
        )
        self._machine = Supervision(policy, epoch=time.time() - time.monotonic())
        self._state = JobState(
            JobStatus.PENDING, self._machine.tasks, pending_reason="starting", warnings=plan.warnings
        )
        self._written = self._state
        self._running: dict[int, tuple[int, int, int]] = {}  # pid -> replica, attempt, OOM kills before it
        self._preparing: int | None = None  # the child that prepares
        self._comparing: int | None = None  # the child that looks whether the source has changed
        self._waits_for = plan.after  # the jobs that it runs after, until each has succeeded
        self._waiting_for_room = self._has_waited = False
        self._grant = Grant(plan.gpus)
        self._killing = self._ending = self._childless = False
        self._grace_of_children: float | None = None  # once the jobs below are to end too
        self._meeting: tuple[int, dict[int, dict[str, str]]] = 0, {}
        self._next_look = self._next_beat = 0.0

    def run(self) -> None:
        """Supervise the job; whatever happens, its tree is ended and its status final."""
        self._resume()
        if self._waits_for:
            note_waiter(self._folder, self._waits_for, self._record)
            events = self._look_at_predecessors()
        else:
            events = self._prepare()
        while True:
            for event in [*events, Tick()]:
                self._perform(self._machine.handle(event, time.monotonic()))
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
        written = read_json(os.path.join(self._record, STATUS)) if self._plan.host_end else None
        tasks = [ReplicaState.from_dict(task) for task in (written or {}).get("tasks", ())]
        if any(task.attempt for task in tasks):
            self._perform(self._machine.resume(tasks, time.monotonic()))

    def _look_at_predecessors(self) -> list[Event]:
        """Go on where the jobs that it runs after have succeeded; fail where one has not."""
        self._waits_for, failure = look_at(self._folder, self._waits_for)
        if failure is not None:
            return [CannotRun(ExitReason.DEPENDENCY_FAILED, failure)]
        if not self._waits_for:
            return self._prepare()
        others = f" and {len(self._waits_for) - 1} more" if len(self._waits_for) > 1 else ""
        self._wait_for(f"waiting for job {min(self._waits_for)}{others} to succeed")
        return []

    @property
    def _folder(self) -> str:
        return folder_of_records(self._record, self._plan.job_id)

    def _prepare(self) -> list[Event]:
        try:
            preparation = self._plan.preparation
            if preparation is None:
                return self._ask_for_room()
            self._wait_for(preparation.waits_for)
            with self._logs.environment() as output:
                self._preparing = start_function(
                    lambda: preparation.prepare(self._record), self._plan.workspace, output
                )
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
        admission = self._plan.admission
        if admission is not None:
            answer = admission.enter()
            self._waiting_for_room = isinstance(answer, str)
            if isinstance(answer, str):
                self._wait_for(answer)
                return []
            self._grant = answer
        waited = self._has_waited and time.time() - self._plan.submitted_at > _SOON
        if waited and self._plan.snapshot_of is None:
            self._compare_source()
        else:
            self._perform(self._machine.handle(Begin(), time.monotonic()))
        return []

    def _compare_source(self) -> None:
        """The job has waited: let a child find out whether it runs what was launched."""
        plan, found = self._plan, os.path.join(self._record, CHANGED)
        self._childless = False

        def compare() -> None:
            from fray._jobs.snapshots import SourceState, change_since

            change = change_since(plan.workspace, SourceState(commit=plan.commit), plan.submitted_at)
            if change is not None:
                with open(found, "w") as file:
                    file.write(change)

        output = os.open(os.path.join(self._record, "supervisor.log"), os.O_WRONLY | os.O_APPEND)
        try:
            self._comparing = start_function(compare, plan.workspace, output)
        finally:
            os.close(output)

    def _compared(self) -> None:
        self._comparing = None
        try:
            with open(os.path.join(self._record, CHANGED)) as file:
                self._warn(file.read())
        except OSError:  # nothing has changed, as a rule
            pass
        self._perform(self._machine.handle(Begin(), time.monotonic()))

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
            word, *values = message.split()
            if word == "stop":
                events.append(StopRequested(float(values[0])))
            elif word == "preempt":
                replica, attempt = int(values[0]), int(values[1])
                if replica < self._plan.replicas:
                    events.append(Noticed(replica, attempt, float(values[2])))
            elif word == WAKE:
                self._next_look = 0.0
            elif word == "granted" and self._waiting_for_room:
                events += self._ask_for_room()
        if self._control.signalled:
            self._control.signalled = False
            events += self._host_ends()
        return events

    def _host_ends(self) -> list[Event]:
        """Somebody told this process itself to end."""
        if self._plan.host_end is None:
            return [StopRequested(_OWN_GRACE)]
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
        self._measure()
        if self._waits_for and not self._ending:
            events += self._look_at_predecessors()
        if self._waiting_for_room and not self._ending:
            events += self._ask_for_room()
        grace = _grace_in(os.path.join(self._record, STOP))
        if grace is not None:
            events.append(StopRequested(grace))
        return events

    def _reap(self) -> list[Event]:
        events: list[Event] = []
        self._childless = False
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                self._childless = True
                return events
            if not pid:
                return events
            code = os.waitstatus_to_exitcode(status)
            if pid == self._preparing:
                events += self._prepared(code)
            elif pid == self._comparing:
                self._compared()
            elif pid in self._running:
                replica, attempt, kills = self._running.pop(pid)
                self._clear_session(pid)
                self._logs.settle(replica, attempt)
                details = self._logs.last_lines(replica, attempt, self._plan.secrets) if code else ""
                end = end_of_exit(code, out_of_memory=oom_kills() > kills, details=details)
                end = self._with_usage(end, pid, replica, usage)
                events.append(Ended(replica, attempt, amended(end, self._record, replica, attempt)))

    def _measure(self) -> None:
        """Look at what each attempt uses: the processes of its session, and of one that is alone, all."""
        if not self._meters:
            return
        pids = self._members()
        sessions = {pid: process_tree.session_of(pid) for pid in pids} if len(self._meters) > 1 else {}
        for leader, meter in self._meters.items():
            meter.sample(pid for pid in pids if sessions.get(pid, leader) == leader)

    def _with_usage(
        self, end: AttemptEnd, pid: int, replica: int, usage: "resource.struct_rusage"
    ) -> AttemptEnd:
        meter = self._meters.pop(pid)
        meter.reaped(usage)
        over = over_asked(meter.peak_memory, self._plan.memory)
        if over is not None:
            unlimited = "" if self._plan.memory_limit else ", which is not limited here"
            self._warn(f"replica {replica}: {over} of memory{unlimited}")
            if end.reason is ExitReason.OUT_OF_MEMORY:
                end = end._replace(how=f"{end.how} ({over})")
        return end._replace(peak_memory=meter.peak_memory, cpu_time=meter.cpu_time)

    # --- what is to be done ---

    def _perform(self, actions: list[Action]) -> None:
        """Perform actions; what fails at once goes back into the machine."""
        failures: list[Event] = []
        for action in actions:
            match action:
                case StartReplica(replica, attempt):
                    failed = self._start(replica, attempt)
                    if failed is not None:
                        failures.append(StartFailed(replica, attempt, failed))
                case NotifyReplica(replica, attempt, grace):
                    self._notify(replica, attempt, grace)
                case StopReplica(replica, attempt, _, forced):
                    number = signal.SIGKILL if forced else signal.SIGTERM
                    for pid, (other, of, _) in self._running.items():
                        if (other, of) == (replica, attempt):
                            self._send_session(pid, number)
                case ClearReplica():
                    pass  # done when it was reaped, while the process id is known
                case ClearTree():
                    self._ending, self._killing = True, True
                    self._kill()
                case EndTree(grace, forced):
                    self._end_tree(grace, forced)
                case SettleJob(status, message):
                    self._state = self._state._replace(status=status, error_message=message)

        for event in failures:  # after all of a gang were started
            self._perform(self._machine.handle(event, time.monotonic()))

    def _start(self, replica: int, attempt: int) -> AttemptEnd | None:
        plan = self._plan
        self._childless = False
        own = {"FRAY_REPLICA_ID": str(replica), "FRAY_ATTEMPT": str(attempt)}
        environ = plan.environ | own | self._own_gpus(replica)
        try:
            environ |= self._ranks(replica, attempt) | self._logs.variables(replica, attempt)
            kills = oom_kills()
            with self._logs.attempt(replica, attempt) as output:
                pid = start_program(plan.command, environ, plan.workspace, output)
        except OSError as error:
            return AttemptEnd(ExitReason.COULD_NOT_START, None, no_program(error, plan.command[0]))
        self._running[pid] = replica, attempt, kills
        self._meters[pid] = UsageMeter()
        return None

    def _own_gpus(self, replica: int) -> dict[str, str]:
        count = self._plan.gpus_per_replica
        own = self._grant.gpus[replica * count : (replica + 1) * count]
        return {"CUDA_VISIBLE_DEVICES": ",".join(own)} if count else {}

    def _ranks(self, replica: int, attempt: int) -> dict[str, str]:
        layout = self._plan.gang
        if layout is None:
            return {}
        if self._meeting[0] != attempt:  # a meeting of its own for each attempt
            from fray._jobs.ports import free_ports
            from fray._jobs.ranks import PORTS, Meeting, rank_variables

            meeting = Meeting("127.0.0.1", tuple(free_ports(PORTS)))
            found = {rank: rank_variables(layout, rank, meeting) for rank in range(layout.replicas)}
            self._meeting = attempt, found
        return self._meeting[1][replica]

    def _notify(self, replica: int, attempt: int, grace: float) -> None:
        self._logs.notify(replica, attempt, time.time() + grace)

    def _end_tree(self, grace: float, forced: bool) -> None:
        self._ending = True
        self._grace_of_children = grace
        self._tell_children(grace)
        if forced:
            self._killing = True
            self._kill()
        else:
            process_tree.send(self._members(), signal.SIGTERM)

    # --- the tree ---

    def _members(self) -> list[int]:
        """The living processes of the job, without those of jobs below it."""
        # Who has no child has no descendant either: orphans would be its children.
        return [] if self._childless else members(self._record)

    def _kill(self) -> None:
        process_tree.send(self._members(), signal.SIGKILL)

    def _tree_is_empty(self) -> bool:
        """Whether nothing of the job is left; where all is to be killed, what there still is gets killed."""
        if self._members():
            if self._killing:
                self._kill()
            return False
        return self._grace_of_children is None or not self._tell_children(self._grace_of_children)

    def _tell_children(self, grace: float) -> bool:
        from fray._jobs.guardian import tell_children

        return os.path.isdir(os.path.join(self._record, CHILDREN)) and tell_children(self._record, grace)

    def _clear_session(self, leader: int) -> None:
        """Kill what a replica's main process left in its session, before its next attempt starts."""
        self._send_session(leader, signal.SIGKILL)

    def _send_session(self, leader: int, number: int) -> None:
        pids = [pid for pid in self._members() if process_tree.session_of(pid) == leader]
        process_tree.send(pids, number)

    # --- the record ---

    def _write(self) -> bool:
        machine = self._machine
        state = self._state._replace(tasks=machine.tasks)
        if state.started_at is None and machine.started_at is not None:
            state = state._replace(pending_reason=None, started_at=machine.started_at)
            if not state.status.finished:
                state = state._replace(status=JobStatus.RUNNING)
        self._state = state
        if state != self._written:
            data = {**self._plan.described, **state.to_dict()}
            if write_status(self._record, data, final=state.finished_at is not None):
                self._written = state
        return self._written == state

    def _finish(self) -> None:
        self._logs.close()
        leave_room(self._plan)
        if self._plan.host_end is not None:
            _remove_plan(self._record)
        self._state = self._state._replace(pending_reason=None, finished_at=time.time())
        # A disk that is full or read-only for a while delays the final status, and does not change it.
        while not self._write():
            self._control.wait(_LOOK, [])
            self._lock.renew()
        if self._plan.on_exit is not None and os.getppid() != self._guardian:
            from fray._jobs.on_exit import run_on_exit

            run_on_exit(self._record)  # the guardian, whose part it is, was killed


def members(record: str, root: int | None = None) -> list[int]:
    """Return the living processes of a job, seen from a process above all of them."""
    if sys.platform == "linux":
        return process_tree.descendants(os.getpid() if root is None else root, spare=MODULE)
    return process_tree.with_variable(process_tree.JOB_VARIABLE, record)


def leave_room(plan: JobPlan) -> None:
    """Give back what a job holds of the machine; where that cannot be written, its end gives it back."""
    if plan.admission is not None:
        try:
            plan.admission.leave()
        except OSError as error:
            print(f"its room was not given back: {error}", file=sys.stderr)


def _grace_in(path: str) -> float | None:
    try:
        with open(path) as file:
            return float(file.read())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):  # it is being written, or was on a disk that was full
        return _OWN_GRACE


def _read_plan(record: str) -> JobPlan | None:
    """The plan, from the record or, where it is not there, from the launcher."""
    path = os.path.join(record, PLAN)
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        data = sys.stdin.buffer.read()
    plan: JobPlan | None = pickle.loads(data) if data else None
    if plan is None or plan.host_end is None:
        _remove_plan(record)
    return plan


def _remove_plan(record: str) -> None:
    try:
        os.unlink(os.path.join(record, PLAN))
    except OSError:
        return  # it was handed over, or the disk is read-only


def supervisor_command(record: str, paths: list[str], lock: int | None = None) -> list[str]:
    """Return the command of a supervisor.

    Args:
        paths: Where it may import from.
        lock: The file that holds the record's lock, where the process inherits it.
    """
    core = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    given = [] if lock is None else [str(lock)]
    return [sys.executable, "-I", "-S", "-c", _BOOT, MODULE, core, os.pathsep.join(paths), record, *given]


# `fray` itself imports what programs use, which takes longer than all that a supervisor does.
_BOOT = (
    "import gc, sys; gc.disable(); core, paths = sys.argv[2:4]; sys.path += paths.split(':'); "
    "fray = sys.modules['fray'] = type(sys)('fray'); fray.__path__ = [core]; "
    "from fray._jobs.boot import main; main(*sys.argv[4:])"
)


def supervise(
    record: str, lock_file: int, entered: Callable[[], ControlGroup | None], *, handed: bool
) -> None:
    """Supervise the job of a record, unless another process has settled it.

    Args:
        lock_file: Where its lock is, to be held.
        entered: Waits until this process is in its control group, and returns that.
        handed: Whether the launcher took the lock and holds the plan.
    """
    process_tree.become_subreaper()
    lock = SupervisorLock(lock_file)
    if handed:
        plan = _read_plan(record)
    elif not lock.take():
        return  # it is being stopped before it could start
    else:
        written = read_json(os.path.join(record, STATUS))
        finished = written is not None and JobStatus(written["status"]).finished
        plan = None if finished else _read_plan(record)
    if plan is None:
        return  # or its launcher died before it could say anything
    gc.enable()  # off while modules were imported: there was nothing to collect
    group = entered()
    own, guardian = identify(os.getpid()), identify(os.getppid())
    lock.say(
        Holder(
            host=this_host(),
            boot=boot_id(),
            pid=own.pid if own else 0,
            started=own.started if own else 0.0,
            guardian=guardian.pid if guardian else 0,
            guardian_started=guardian.started if guardian else 0.0,
            group=group.path if group else None,
        )
    )
    if plan.memory_limit is not None and not (group and group.limit_memory(plan.memory_limit)):
        warning = "its memory is not limited: the control group of the job does not take a limit"
        plan = plan._replace(warnings=(*plan.warnings, warning), memory_limit=None)
    Supervisor(record, plan, lock).run()
