"""The main processes of a job's replicas: how an attempt is started, measured, and how it ended."""

from __future__ import annotations

import os
import signal
import time

from fray._jobs import process_tree
from fray._jobs.plans.values import Grant
from fray._jobs.processes.oom import oom_kills
from fray._jobs.processes.spawn import start_program
from fray._jobs.processes.usage import UsageMeter, over_asked
from fray._jobs.records.usage_history import UsageHistory
from fray._jobs.rules.events import AttemptEnd, Ended
from fray._values.job_words import ExitReason
from fray._values.light_tuples import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    import resource
    from collections.abc import Callable

    from fray._jobs.logs.attempts import AttemptLogs
    from fray._jobs.plans.plan import JobPlan
    from fray._jobs.processes.control_group import ControlGroup
    from fray._jobs.processes.memory_group import JobGroups
    from fray._jobs.processes.ports import HeldPorts
    from fray._jobs.rules.states import ReplicaState
    from fray._jobs.supervisor.job_tree import JobTree

_ENDING = (signal.SIGTERM, signal.SIGINT)


class _Attempt(NamedTuple):
    """An attempt that runs; `oom_kills` are those that the system had counted before it.

    It has no history here where its program writes that itself: see `JobPlan.measured_elsewhere`.
    """

    replica: int
    attempt: int
    oom_kills: int
    meter: UsageMeter
    history: UsageHistory | None
    group: ControlGroup | None


class ReplicaProcesses:
    """Those of one job.

    Args:
        groups: What they are started in: each attempt in a group of its own below.
        warn: Called with what a user of the job should know.
    """

    def __init__(
        self,
        record: str,
        plan: JobPlan,
        tree: JobTree,
        logs: AttemptLogs,
        groups: JobGroups,
        warn: Callable[[str], None],
    ) -> None:
        self._record, self._plan, self._tree, self._logs = record, plan, tree, logs
        self._groups, self._warn = groups, warn
        self._running: dict[int, _Attempt] = {}  # by process
        self._killed: set[int] = set()  # of these
        self._meeting: tuple[int, dict[int, dict[str, str]]] = 0, {}
        self._meeting_ports: HeldPorts | None = None
        self._held_ports: HeldPorts | None = None  # of replicas, for the life of the job
        self.ports: dict[int, dict[str, int]] = {}
        """The ports of each replica, by name."""
        self.grant = Grant(plan.gpus)
        """What the job has of the machine."""

    def start(self, replica: int, attempt: int) -> AttemptEnd | None:
        """Start an attempt; return how that failed, if it did."""
        plan = self._plan
        self._tree.childless = False
        own = {"FRAY_REPLICA_ID": str(replica), "FRAY_ATTEMPT": str(attempt)}
        environ = plan.environ | own | self._own_gpus(replica)
        try:
            environ |= self._ranks(replica, attempt) | self._logs.variables(replica, attempt)
            if plan.ports:
                environ |= self._own_ports(replica)
            kills = oom_kills(self._groups.folders)
            group = self._groups.tree and self._groups.tree.below(f"replica-{replica}.attempt-{attempt}")
            output = self._logs.open(replica, attempt)
            try:
                pid = start_program(
                    plan.command,
                    environ,
                    plan.workspace,
                    output,
                    group,
                    self._groups.memory,
                    # A command that runs its program elsewhere may get a signal before it has a handler.
                    blocked=_ENDING if plan.measured_elsewhere else (),
                    ignored=process_tree.USER_SIGNALS if plan.measured_elsewhere else (),
                )
            finally:
                os.close(output)
        except OSError as error:
            from fray._jobs.supervisor.exits import no_program  # of attempts that failed alone

            return AttemptEnd(ExitReason.COULD_NOT_START, None, no_program(error, plan.command[0]))
        history = None if plan.measured_elsewhere else UsageHistory(self._record, replica, attempt)
        self._running[pid] = _Attempt(replica, attempt, kills, UsageMeter(), history, group)
        return None

    def with_ports(self, tasks: tuple[ReplicaState, ...]) -> tuple[ReplicaState, ...]:
        """Return the state of replicas with the ports that they have."""
        if not self.ports:
            return tasks
        return tuple(task._replace(ports=self.ports.get(task.replica, {})) for task in tasks)

    def send(self, replica: int, attempt: int, number: int) -> None:
        """Send a signal to what an attempt has in its session."""
        for pid, running in self._running.items():
            if (running.replica, running.attempt) == (replica, attempt):
                self._killed |= {pid} if number == signal.SIGKILL else set()
                self._tree.send_session(pid, number)

    def notify(self, replica: int, attempt: int, grace: float) -> None:
        """Notify an attempt that its host is taken away in so many seconds."""
        self._logs.notify(replica, attempt, time.time() + grace)

    def measure(self) -> None:
        """Look at what each attempt uses: the processes of its session, and of one that is alone, all."""
        if not self._running:
            return
        try:
            pids = self._tree.members()
        except OSError:  # a sample is left out
            return
        sessions = {pid: process_tree.session_of(pid) for pid in pids} if len(self._running) > 1 else {}
        for leader, running in self._running.items():
            meter = running.meter
            meter.sample(pid for pid in pids if sessions.get(pid, leader) == leader)
            if running.history is not None:
                running.history.note(time.time(), meter.memory, meter.cpu_time or 0.0)

    def ended(self, pid: int, status: int, usage: resource.struct_rusage) -> Ended | None:
        """Describe how an attempt ended whose main process was reaped; None for any other process.

        Also for one that waits for the end of its host (`is_held`), and was not killed from here.

        What that left in its session is killed, before the next attempt starts.
        """
        from fray._jobs.supervisor.exits import amended, end_of_exit, is_held

        running = self._running.pop(pid, None)
        if running is None:
            return None
        killed = pid in self._killed
        self._killed.discard(pid)
        self._tree.send_session(pid, signal.SIGKILL)
        replica, attempt, kills, meter, history, group = running
        self._clear_endpoints(replica, attempt)
        self._logs.settle(replica, attempt)
        code = os.waitstatus_to_exitcode(status)
        if code == -signal.SIGKILL and not killed and is_held(self._record, replica, attempt):
            return None
        details = self._logs.last_lines(replica, attempt, self._plan.secrets) if code else ""
        end = end_of_exit(code, out_of_memory=oom_kills(self._groups.folders) > kills, details=details)
        meter.reaped(usage)
        if group is not None:
            meter.counted(group.memory_peak(), group.cpu_time())
            group.remove()
        if history is not None:
            history.note(time.time(), meter.memory, meter.cpu_time or 0.0, last=True)
        end = self._with_usage(end, replica, meter)
        return Ended(replica, attempt, amended(end, self._record, replica, attempt))

    def _clear_endpoints(self, replica: int, attempt: int) -> None:
        from fray._jobs.records.predecessors import folder_of_records

        job_id = self._plan.job_id
        folder = folder_of_records(self._record, job_id)
        if os.path.isdir(os.path.join(folder, ".endpoints")):
            from fray._jobs.records.endpoint_files import clear_endpoints

            clear_endpoints(folder, job_id, replica, attempt)

    def _with_usage(self, end: AttemptEnd, replica: int, meter: UsageMeter) -> AttemptEnd:
        over = over_asked(meter.peak_memory, self._plan.memory)
        if over is not None:
            unlimited = "" if self._plan.memory_limit else ", which is not limited here"
            self._warn(f"replica {replica}: {over} of memory{unlimited}")
            if end.reason is ExitReason.OUT_OF_MEMORY:
                end = end._replace(how=f"{end.how} ({over})")
        return end._replace(peak_memory=meter.peak_memory, cpu_time=meter.cpu_time)

    def _own_gpus(self, replica: int) -> dict[str, str]:
        count, place = self._plan.gpus_per_replica, replica - self._plan.first_replica
        own = self.grant.gpus[place * count : (place + 1) * count]
        return {"CUDA_VISIBLE_DEVICES": ",".join(own)} if count else {}

    def _own_ports(self, replica: int) -> dict[str, str]:
        """The variables of a replica's ports: the same for each attempt, where nobody else listens there."""
        from fray._jobs.plans.port_variables import HOST_ADDRESS, port_variable
        from fray._jobs.processes.ports import HeldPorts

        held = self._held_ports = self._held_ports or HeldPorts()
        before = self.ports.get(replica)
        if before is None:
            found = dict(zip(self._plan.ports, held.take(len(self._plan.ports)), strict=True))
        else:
            found = {name: held.again(port) for name, port in before.items()}
        self.ports[replica] = found
        address = {} if self._plan.address is None else {HOST_ADDRESS: self._plan.address}
        return {port_variable(name): str(port) for name, port in found.items()} | address

    def _ranks(self, replica: int, attempt: int) -> dict[str, str]:
        layout = self._plan.gang
        if layout is None:
            return {}
        if self._meeting[0] != attempt:  # a meeting of its own for each attempt
            from fray._jobs.processes.ports import HeldPorts
            from fray._jobs.ranks import PORTS, Meeting, rank_variables

            if self._meeting_ports is not None:
                self._meeting_ports.close()
            self._meeting_ports = HeldPorts()
            meeting = Meeting("127.0.0.1", tuple(self._meeting_ports.take(PORTS)))
            found = {rank: rank_variables(layout, rank, meeting) for rank in range(layout.replicas)}
            self._meeting = attempt, found
        return self._meeting[1][replica]
