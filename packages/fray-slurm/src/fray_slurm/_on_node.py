"""A replica on its node: `bare_command("fray_slurm._on_node")`, NOTE COMMAND..., started by srun.

It writes its step's id, runs COMMAND with all that descends from it, and leaves nothing behind. How the
program ended is in NOTE: srun's own exit code does not distinguish 137 from SIGKILL. What it uses over time
is in the job's record: the job's supervisor sees srun alone.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time

from fray.backend import (
    SUPERVISOR_MODULE,
    become_subreaper,
    descendants,
    kill_until_gone,
    process_tree,
    replace_file,
)
from fray_slurm._allocation import PORTS_CHECKED, TOLD, array_id, read, run_id, write
from fray_slurm._signalling import VARIABLE, Signalling, signalling_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from fray_slurm._samples import Samples

NOTICE_VARIABLE = "FRAY_PREEMPTION_NOTICE"
_SENT = tuple(signal.Signals[f"SIG{name}"] for name in ("TERM", "INT", "HUP", "QUIT", "USR1", "USR2"))
_ANSWERS_WITHIN = 2.0  # seconds for which a program waits to learn how long it has
_SENDS_WITHIN = 3.0  # seconds in which Slurm sends a signal, unless slurmctld is away
_NOT_FOUND = 127
_PAUSE = 1.0  # seconds between two tries to write the end
_EVERY = 1.0  # seconds between two samples of what it uses
_LATE = 0.05  # seconds in which a signal that has reached the program reaches this process too


class Program:
    """The replica's program and its tree."""

    def __init__(self, note: str, command: list[str]) -> None:
        self._note, self._command = note, command
        packed = os.environ.pop(VARIABLE, None)
        self._signalling = Signalling() if packed is None else signalling_in(packed)
        self._program: int | None = None
        self._early: list[int] = []  # signals that came before it ran
        self._told_at: float | None = None  # when it was seen first that Fray wants the end, monotonic
        self._is_ending = False  # whether the program has been signalled for that
        self._noticed_at = -math.inf  # when Slurm wanted the end last, monotonic
        self._values: dict[str, object] = {
            "step": f"{os.environ['SLURM_JOB_ID']}.{os.environ['SLURM_STEP_ID']}",
            "run": run_id(os.environ),
            "node": os.environ.get("SLURMD_NODENAME"),
        }

    def run(self) -> None:
        """Run it to its end, and note how it ended: an exit code, a signal's number negative."""
        become_subreaper()
        for number in _SENT:
            signal.signal(number, self._take)
        taken = _taken_ports() if os.environ.pop(PORTS_CHECKED, None) else None
        if taken is not None:
            # Another attempt has other ports; a program that is missing would be missing again.
            self._say_end(code=_NOT_FOUND, failure=taken, reason="exited")
            return
        try:
            program = subprocess.Popen(self._command, start_new_session=True)
        except OSError as error:
            where = " on the job's PATH" if "/" not in self._command[0] else ""
            self._say_end(
                code=_NOT_FOUND, failure=f"could not start {self._command[0]!r}: {error.strerror}{where}"
            )
            return
        self._program = program.pid
        for early in self._early:
            _send(program.pid, early)
        self._say()
        status, usage = _wait_for(program.pid, self._look)
        program.returncode = os.waitstatus_to_exitcode(status)
        self._say_end(code=program.returncode, **usage)
        kill_until_gone(self._left)
        time.sleep(_LATE)

    def _take(self, number: int, frame: FrameType | None) -> None:
        """Take a signal of Slurm's, and hand it on where Slurm has not sent it to the program itself."""
        told = self._is_asked()
        if number == signal.SIGTERM and not told:
            self._noticed_at = time.monotonic()
            self._say(signalled=True)
            if self._signalling.reaches_tree:  # then the program may ask for it now
                self._give_notice(self._signalling.kill_wait)
            self._give_notice(_seconds_left(self._signalling))
        if self._signalling.reaches_tree:
            self._is_ending |= told and number == signal.SIGTERM
        elif number == signal.SIGTERM and told:
            self._end()
        else:
            self._hand_on(number)

    def _end(self) -> None:
        """Signal the program for Fray, once; not while it may be ending by a signal of Slurm's."""
        if not self._is_ending and time.monotonic() - self._noticed_at > self._signalling.kill_wait:
            self._is_ending = True
            self._hand_on(signal.SIGTERM)

    def _hand_on(self, number: int) -> None:
        if self._program is None:
            self._early.append(number)
        else:
            _send(self._program, number)

    def _is_asked(self) -> bool:
        """Whether Fray itself wants the end, which it says before it asks Slurm for the signal."""
        try:
            with open(self._note + TOLD) as file:  # noqa: PTH123
                return file.read() != ""
        except OSError:
            return False

    def _look(self) -> None:
        """End the program where Fray wants that and Slurm does not do it: its controller may be away."""
        if not self._is_asked():
            return
        now = time.monotonic()
        self._told_at = self._told_at or now
        if now - self._told_at > _SENDS_WITHIN:
            self._end()
        record = os.path.dirname(os.path.dirname(self._note))  # noqa: PTH120
        if read(os.path.join(record, "status.json")).get("status") in ("succeeded", "failed", "stopped"):  # noqa: PTH118
            kill_until_gone(lambda: descendants(os.getpid()))  # nobody else does: its supervisor has ended

    def _give_notice(self, seconds: float) -> None:
        """Write when this node is likely to be taken, where `fray.job.preemption_notice()` looks."""
        path = os.environ.get(NOTICE_VARIABLE)
        if path is None:
            return
        try:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)  # noqa: PTH103, PTH120
            replace_file(path, f"{time.time() + seconds}\n".encode())
        except OSError:
            return  # SIGTERM says it too

    def _left(self) -> list[int]:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return []
        return descendants(os.getpid(), dead=True)

    def _say_end(self, **values: object) -> None:
        # A disk that is full or away for a while delays the end, and does not change it.
        while not self._say(**values):
            time.sleep(_PAUSE)

    def _say(self, **values: object) -> bool:
        """Write the note; whether the file system took it."""
        self._values |= values
        # A signal whose handler writes it too comes before or after.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _SENT)
        try:
            # Before the note, from which on a word may be in it. A host goes on for a minute without a file
            # of another host that it has missed once; what is in one NFS shows whenever it is opened.
            with open(self._note + TOLD, "a"):  # noqa: PTH123
                pass
            write(self._note, self._values)
        except OSError:
            return False
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        return True


def _send(program: int, number: int) -> None:
    """Signal what descends from this process: by SIGTERM all of it, by others what takes them.

    They would end others, such as Fray's own processes there. Jobs that were launched there have signals of
    their own; and what is meant to end a program does so, as where Slurm sends it.
    """
    is_last = number == signal.SIGTERM
    try:
        found = descendants(os.getpid(), None if is_last else SUPERVISOR_MODULE)
    except OSError:  # no file can be opened, say
        found = [program]
    if not is_last:
        ends = number not in (signal.SIGUSR1, signal.SIGUSR2)
        found = [pid for pid in found if _takes(pid, number) or (ends and pid == program)]
    process_tree.send(found, number)


def _takes(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal, or blocks it, as where a thread waits for it."""
    try:
        with open(f"/proc/{pid}/status", errors="replace") as file:  # noqa: PTH123
            lines = [line.split() for line in file if line.startswith(("SigBlk:", "SigCgt:"))]
    except OSError:  # it has ended
        return False
    return any(int(mask, 16) >> (number - 1) & 1 for _, mask in lines)


def _seconds_left(signalling: Signalling) -> float:
    """Return for how long a job goes on that has got its notice, as far as Slurm says it in time.

    Of one that is to make room, Slurm moves the end to the moment at which its partition's grace is over.
    """
    from fray_slurm._readings import read_details  # few steps come here

    command = ["scontrol", "show", "job", "-o", array_id(os.environ)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_ANSWERS_WITHIN)
    except (OSError, subprocess.TimeoutExpired):
        return signalling.kill_wait
    job = read_details(done.stdout)
    if job is None or job.ends_at is None:
        return signalling.kill_wait
    left = job.ends_at - time.time()
    means_it = job.preempted or left < signalling.near_limit  # a partition's grace may be long
    return left if left > 0 and means_it else signalling.kill_wait


def _wait_for(program: int, look: Callable[[], None]) -> tuple[int, dict[str, float | None]]:
    """Wait for the program's end; return its status, and what it used.

    Args:
        look: Called each second, as it is measured.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})  # kept for sigtimedwait
    samples: Samples | None = None
    due = time.monotonic() + _EVERY
    while True:
        pid, status, used = os.wait4(program, os.WNOHANG)
        if pid and samples is not None:
            return status, samples.end(used)
        if pid:
            # Of the program and the children that it has waited for; the kernel counts memory in KiB.
            return status, {"peak_memory": used.ru_maxrss * 1024, "cpu_time": used.ru_utime + used.ru_stime}
        signal.sigtimedwait({signal.SIGCHLD}, max(0.0, due - time.monotonic()))
        if time.monotonic() < due:
            continue  # a child ended, and it need not be the program
        look()
        if samples is None:
            from fray_slurm._samples import Samples  # a short program does not wait for it

            samples = Samples()
        samples.take()
        due = time.monotonic() + _EVERY


def _taken_ports() -> str | None:
    """Return the ports of the replica on which a program listens, on this node."""
    from fray.backend import port_is_free

    for name, value in os.environ.items():
        if name.startswith("FRAY_PORT_") and not port_is_free(int(value)):
            return f"could not start: port {value} ({name}) is taken on node {os.environ['SLURMD_NODENAME']}"
    return None


def main() -> None:
    """Run a program. How it ended is in the note alone: srun would write of an exit code into the log."""
    note, *command = sys.argv[1:]
    Program(note, command).run()
    os._exit(0)  # at once: a signal that comes while Python ends would be shown in the log
