"""A replica on its node: `bare_command("fray_slurm._on_node")`, NOTE COMMAND..., started by srun.

It writes its step's id, runs COMMAND with all that descends from it, and leaves nothing behind. How the
program ended is in NOTE: srun's own exit code does not distinguish 137 from SIGKILL. What it uses over time
is in the job's record: the job's supervisor sees srun alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from fray.backend import become_subreaper, descendants, kill_until_gone, replace_file
from fray_slurm._allocation import PORTS_CHECKED, run_id, write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

    from fray_slurm._samples import Samples

NOTICE_VARIABLE = "FRAY_PREEMPTION_NOTICE"
_GRACE = 30.0  # Slurm's KillWait unless its administrator says otherwise
_NOT_FOUND = 127
_PAUSE = 1.0  # seconds between two tries to write the end
_EVERY = 1.0  # seconds between two samples of what it uses
_LATE = 0.05  # seconds in which a signal that has reached the program reaches this process too


class Program:
    """The replica's program and its tree."""

    def __init__(self, note: str, command: list[str]) -> None:
        self._note, self._command = note, command
        self._values: dict[str, object] = {
            "step": f"{os.environ['SLURM_JOB_ID']}.{os.environ['SLURM_STEP_ID']}",
            "run": run_id(os.environ),
            "node": os.environ.get("SLURMD_NODENAME"),
        }

    def run(self) -> None:
        """Run it to its end, and return how it ended: an exit code, a signal's number negative."""
        become_subreaper()
        signal.signal(signal.SIGTERM, self._note_signal)
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
        self._say()
        status, usage = _wait_for(program.pid)
        program.returncode = os.waitstatus_to_exitcode(status)
        self._say_end(code=program.returncode, **usage)
        kill_until_gone(self._left)
        time.sleep(_LATE)

    def _note_signal(self, number: int, frame: FrameType | None) -> None:
        # Slurm sends it to every process of a step, so that there is nothing to hand on. Where Fray itself
        # wants the end, it says so before it sends the signal.
        if not os.path.exists(f"{self._note}.told"):  # noqa: PTH110
            self._say(signalled=True)
            _give_notice(os.environ.get(NOTICE_VARIABLE))

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
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            write(self._note, self._values)
        except OSError:
            return False
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        return True


def _wait_for(program: int) -> tuple[int, dict[str, float | None]]:
    """Wait for the program's end, and measure it meanwhile; return its status, and what it used."""
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


def _give_notice(path: str | None) -> None:
    """Write when this node is likely to be taken, where `fray.job.preemption_notice()` looks."""
    if path is None:
        return
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)  # noqa: PTH103, PTH120
        replace_file(path, f"{time.time() + _GRACE}\n".encode())
    except OSError:
        return  # SIGTERM says it too


def main() -> None:
    """Run a program. How it ended is in the note alone: srun would write of an exit code into the log."""
    note, *command = sys.argv[1:]
    Program(note, command).run()
    os._exit(0)  # at once: a signal that comes while Python ends would be shown in the log
