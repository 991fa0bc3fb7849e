"""A replica, seen from the batch step: `bare_command("fray_slurm._step")`, `--grace=N [--gres=G] -- COMMAND`.

The job's supervisor starts this as the replica. It starts COMMAND by srun on the replica's node, hands
signals on to it, and ends as it ended. srun itself must not get them: on SIGTERM it kills its step at once.

A step that Slurm ended (preemption, time limit, scancel) is not a failure of the replica. Then this process
does not end either, until the batch step is ended too: the supervisor asks Slurm why, or is started again.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import signal
import subprocess
import sys
import threading
import time

from fray.backend import (
    HOST_ADDRESS,
    JOB_VARIABLE,
    SUPERVISOR_MODULE,
    bare_command,
    die_with_parent,
    ends_path,
)
from fray_slurm._allocation import (
    PORTS_CHECKED,
    TOLD,
    Allocation,
    path_of,
    read,
    read_allocation,
    run_id,
    write,
)
from fray_slurm._signalling import GRACE_WORD, VARIABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, NoReturn

_HOLD = 60.0  # seconds to wait for the end of a job whose step Slurm has ended
_HOLD_UNSIGNALLED = 5.0  # the same where the program has not said that it got a signal
_OUT_OF_MEMORY = 253  # srun's own code for a step whose control group ran out of memory
_LOOK, _LONGEST_PAUSE = 3.0, 15.0
_STARTS_WITHIN = 150.0  # seconds for which a step is tried that Slurm does not start
_GONE_WITHIN = 150.0  # seconds; that a step is over is said again each minute to a slurmctld that was away
_SEEN_WITHIN = 120.0  # seconds; NFS shows after a minute, as a rule, what another host has written
_UNSEEN = "ended, and how is not known: what its node noted in the job's record is not seen on the first node"
_PAUSE = 0.1
_ENDING = (signal.SIGTERM, signal.SIGINT)


class Step:
    """One attempt of a replica.

    Args:
        command: Returns the command that runs it; given the file in which the other end is to write the
            step's id, and how the program ended.
    """

    def __init__(
        self, allocation: Allocation, command: Callable[[str], list[str]], environ: dict[str, str]
    ) -> None:
        self._allocation, self._record = allocation, environ[JOB_VARIABLE]
        self._told = threading.Event()
        self._command, self._environ = command, environ
        self._starting = threading.Lock()  # held from the check of `_told` until srun runs
        self._note = ""
        self._srun: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Run it; return the code to end with, a signal's number negative."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        threading.Thread(target=self._listen, daemon=True).start()
        code, said = self._run_step()
        pause, deadline = _LOOK, time.monotonic() + _STARTS_WITHIN
        while code not in (0, _OUT_OF_MEMORY) and not said and not self._told.wait(pause):
            # Its program was not started: a slurmctld that was away does not know yet what has ended.
            if not self._controller_answers():
                deadline = time.monotonic() + _STARTS_WITHIN
            elif time.monotonic() > deadline:
                break
            else:
                pause = min(2 * pause, _LONGEST_PAUSE)
                code, said = self._run_step()
        out_of_memory = code == _OUT_OF_MEMORY
        if out_of_memory:
            pass  # the step has ended for a reason of its own
        elif said.get("signalled") or (code and "code" in said):  # the other end was ended after its program
            self._hold(_HOLD)
        elif said.get("code", -signal.SIGTERM) in (-signal.SIGTERM, 128 + signal.SIGTERM):
            self._hold(_HOLD_UNSIGNALLED)
        self._tell_supervisor(said, out_of_memory=out_of_memory)
        if "code" in said:
            return int(said["code"])
        return code if code < 128 else 128 - code  # as a shell: 137 is SIGKILL

    def _run_step(self) -> tuple[int, dict[str, Any]]:
        """Run the step to its end; return srun's code, and the report of the other end."""
        with self._starting:
            if self._told.is_set():
                return -signal.SIGTERM, {}
            # A new name each time: this host remembers for a while that there was no file of an old one.
            name = f"replica-{self._environ['FRAY_REPLICA_ID']}.{os.getpid()}.{os.urandom(4).hex()}.json"
            self._note = path_of(self._record, name)
            # In a session of its own, so that a signal to this one's does not reach srun.
            self._srun = subprocess.Popen(
                self._command(self._note),
                env=self._environ,
                start_new_session=True,
                preexec_fn=_become_srun,
            )
        code = self._srun.wait()
        return code, self._reported(code)

    def _reported(self, code: int) -> dict[str, Any]:
        """Return the report of the other end; of one that ended well it may be a while until it is seen here.

        Its own code says nothing of the program: one that failed must never read succeeded.
        """
        deadline = time.monotonic() + _SEEN_WITHIN
        while "code" not in (said := read(self._note)) and code == 0:
            if time.monotonic() > deadline:
                return {**said, "code": 1, "reason": "lost", "failure": _UNSEEN}
            time.sleep(_PAUSE)
        return said

    def _controller_answers(self) -> bool:
        pinged = subprocess.run(["scontrol", "ping"], capture_output=True, text=True, check=False)
        return "UP" in pinged.stdout.split()

    def _tell_supervisor(self, said: Mapping[str, Any], *, out_of_memory: bool) -> None:
        """Report to the supervisor what no exit code shows: what was used, and that nothing could be started.

        Reasons are those of `ExitReason`, whose import would cost each replica's start a third more.
        """
        told = {name: said[name] for name in ("peak_memory", "cpu_time") if name in said}
        if "failure" in said:
            reason = said.get("reason", "could_not_start")
            told |= {"reason": reason, "exit_code": None, "how": said["failure"]}
        elif out_of_memory:
            how = "was ended by Slurm, because it used more memory than it asked for"
            told |= {"reason": "out_of_memory", "exit_code": said.get("code"), "how": how}
        self._say_to_supervisor(told)

    def _say_to_supervisor(self, told: Mapping[str, Any]) -> None:
        replica, attempt = (int(self._environ[name]) for name in ("FRAY_REPLICA_ID", "FRAY_ATTEMPT"))
        path = ends_path(self._record, replica, attempt)
        with contextlib.suppress(OSError):  # on a full disk the exit code is what there is
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)  # noqa: PTH103, PTH120
            write(path, told)

    def _listen(self) -> None:
        """Take signals of the supervisor; those of Slurm go to the whole batch step, and mean the job."""
        supervisor = os.getppid()
        while True:
            if signal.sigwaitinfo(_ENDING).si_pid == supervisor:
                self._tell()

    def _tell(self) -> None:
        """The supervisor wants the replica to end: hand it on to the step, which has its grace."""
        with self._starting:
            self._told.set()
        if self._srun is None:
            return  # it is not started any more
        step = read(self._note).get("step")
        if step is None:
            self._srun.terminate()  # nothing runs yet
            return
        with contextlib.suppress(OSError), open(self._note + TOLD, "w") as file:  # noqa: PTH123
            file.write("end")
        subprocess.run(["scancel", "--signal=TERM", step], capture_output=True, check=False)

    def _hold(self, patience: float) -> None:
        """Wait for the job's end where Slurm is ending it; no longer than that where it is not."""
        # Slurm kills the processes of the batch step one by one, and this one may be before the supervisor.
        from fray_slurm._readings import read_details  # few steps come here

        self._say_to_supervisor({"held": True})
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline and not self._told.wait(_LOOK):
            shown = ["scontrol", "show", "job", "-o", self._allocation.job_id]
            job = read_details(subprocess.run(shown, capture_output=True, text=True, check=False).stdout)
            if job is None:
                continue
            left = math.inf if job.ends_at is None else max(0.0, job.ends_at - time.time())
            if left < self._allocation.signalling.near_limit:
                deadline = time.monotonic() + left + patience
            elif job.preempted or job.state != "RUNNING":  # the partition's grace may be long
                deadline = time.monotonic() + patience


def _become_srun() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    die_with_parent()


def srun_command(allocation: Allocation, replica: int, gres: list[str], command: list[str]) -> list[str]:
    """Return the command that runs a replica's program on its node, with its share of it and no other's."""
    node = allocation.node_of(replica)
    cpus = allocation.variables.get("SLURM_CPUS_PER_TASK", "1")
    return [
        *("srun", "--nodes=1", "--ntasks=1", f"--nodelist={node}", "--exact", f"--cpus-per-task={cpus}"),
        *allocation.memory_option(node),
        *gres,
        *("--export=ALL", "--mpi=none", "--kill-on-bad-exit=1", f"--job-name=replica-{replica}"),
        # The word by which a supervisor knows what is not its own to signal.
        *("--comment", SUPERVISOR_MODULE),
        *command,
    ]


def step_environment(environ: dict[str, str], allocation: Allocation, replica: int) -> dict[str, str]:
    """Return the variables of a replica with those of its allocation, and where others reach its node."""
    node = allocation.node_of(replica)
    first, own = (allocation.addresses[each] for each in (allocation.nodes[0], node))
    found = environ | allocation.step_variables() | {HOST_ADDRESS: own}
    found[VARIABLE] = allocation.signalling.packed()
    if len(set(allocation.nodes)) > 1:
        for name in ("MASTER_ADDR", "FRAY_COORDINATOR_ADDRESS"):
            if name in found:
                found[name] = found[name].replace("127.0.0.1", first)
    if allocation.nodes[0] != node:
        found[PORTS_CHECKED] = "1"
    return found


def end_as(code: int) -> NoReturn:
    """End this process as another has ended."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the other has left its own
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
            # SIGTERM is blocked here, and another thread takes what the whole process gets.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [-code])
        signal.pthread_kill(threading.get_ident(), -code)
        time.sleep(1.0)
    sys.exit(code if code >= 0 else 128 - code)


def end_earlier_steps(record: str, replica: int, run: str) -> None:
    """End what is left of earlier attempts, and wait until Slurm knows that they have ended.

    Slurm has ended the steps of a run that it has requeued; the ids of those are other replicas' now.
    Where srun was killed itself, its step runs on. One that ended while slurmctld was away keeps its memory
    for a minute more.
    """
    begin, folder = f"replica-{replica}.", path_of(record, "")
    there = os.listdir(folder)  # noqa: PTH208
    names = [name for name in there if name.startswith(begin) and name.endswith(".json")]
    notes = [read(os.path.join(folder, name)) for name in names]  # noqa: PTH118
    for note in notes:
        if note.get("run") == run:
            _await_end(note["step"], is_over="code" in note)


def _await_end(step: str, *, is_over: bool) -> None:
    deadline = time.monotonic() + _GONE_WITHIN
    while time.monotonic() < deadline:
        if not is_over:
            subprocess.run(["scancel", "--signal=KILL", step], capture_output=True, check=False)
        shown = subprocess.run(
            ["scontrol", "show", "step", step], capture_output=True, text=True, check=False
        )
        if "not found" in shown.stdout:
            return
        if shown.returncode:  # slurmctld does not answer
            deadline = time.monotonic() + _GONE_WITHIN
        time.sleep(_PAUSE)


def main() -> None:
    """Run the replica that this process's variables name."""
    cut = sys.argv.index("--")
    own, program = sys.argv[1:cut], sys.argv[cut + 1 :]
    gres = [word for word in own if not word.startswith(GRACE_WORD)]
    record, replica = os.environ[JOB_VARIABLE], int(os.environ["FRAY_REPLICA_ID"])
    allocation = read_allocation(record)
    for word in own:
        if word not in gres:  # a plan of the release before has no such word
            grace = int(word.removeprefix(GRACE_WORD))
            allocation = allocation._replace(signalling=allocation.signalling._replace(grace=grace))
    if os.environ["FRAY_ATTEMPT"] != "1":
        end_earlier_steps(record, replica, run_id(allocation.variables))
    there = bare_command("fray_slurm._on_node", sys.path)

    def command(note: str) -> list[str]:
        return srun_command(allocation, replica, gres, [*there, note, *program])

    end_as(Step(allocation, command, step_environment(dict(os.environ), allocation, replica)).run())
