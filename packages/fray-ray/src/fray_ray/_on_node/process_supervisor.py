"""The process that keeps one attempt of a replica: starts it, ends its whole tree, and says how it ended.

    python -c "... main()" < lifeline > output 2> verdict

The first line of stdin is the plan as JSON; later lines are `stop SECONDS`. When stdin ends, the
process that started this one is gone. The replica is ended, too, after its `orphan_grace`, in seconds. Output
of the replica goes to stdout, the verdict to stderr. It is no child of the worker: Ray
kills those, and then nobody would be left to end what the replica started. Its own parent is a guardian,
which does so when this process is killed. The plan names the descriptors of two files that are in no folder:
the payload, and what the entry point returns.
"""

import base64
import contextlib
import json
import os
import shutil
import signal
import time
from typing import Any

from fray.backend import (
    SUPERVISORS_IGNORE,
    UsageHistory,
    UsageMeter,
    become_subreaper,
    kill_until_gone,
    oom_kills,
    process_tree,
    readable,
    start_program,
)
from fray_ray._on_node.memory_file import whole_file
from fray_ray._on_node.usage_samples import samples_of
from fray_ray._on_node.verdict import write_verdict

_LIFELINE = 0
_LOOK = 0.02  # seconds between looks at processes whose end is not told
_SAMPLE = 0.5  # seconds between looks at what the processes use


def main() -> None:
    """Keep one attempt from start to end."""
    for number in SUPERVISORS_IGNORE:
        signal.signal(number, signal.SIG_IGN)  # the lifeline says when it is over
    with open(_LIFELINE, "rb", buffering=0, closefd=False) as lifeline:
        plan = json.loads(lifeline.readline())  # unbuffered: the lines that follow are read by the tree
    if os.fork():
        os._exit(0)
    _leave_a_guardian(plan["private"], [plan["payload"], plan["result"]])
    become_subreaper()
    wake, wakened = os.pipe()
    os.set_blocking(wakened, False)
    signal.set_wakeup_fd(wakened)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    killed_before = oom_kills()
    try:
        pid = start_program(tuple(plan["command"]), plan["environ"], plan["cwd"], output=1)
    except OSError as error:
        verdict: dict[str, Any] = {"not_started": error.strerror}
    else:
        _close([plan["payload"]])
        os.close(1)  # the output ends when those who write it have ended
        tree = Tree(pid, wake, plan["orphan_grace"], UsageHistory(plan["private"], 0, 0))
        code = tree.keep()
        verdict = {"exit_code": code, "oom": code in (-9, 137) and oom_kills() > killed_before}
        verdict |= {"peak_memory": tree.usage.peak_memory, "cpu_time": tree.usage.cpu_time}
        verdict["samples"] = samples_of(plan["private"])
        if plan["result"] is not None and (result := whole_file(plan["result"])):
            verdict["result"] = base64.b64encode(result).decode()
    if plan["private"]:  # made by who started this, and may be gone
        shutil.rmtree(plan["private"], ignore_errors=True)
    write_verdict(verdict)


def _close(files: list[int | None]) -> None:
    """Close files that others have open: their bytes are freed when nobody has."""
    for file in files:
        if file is not None:
            os.close(file)


def _leave_a_guardian(private: str, files: list[int | None]) -> None:
    """Go on in a child; this process ends what that leaves behind when it is killed, and says so."""
    become_subreaper()
    child = os.fork()
    if not child:
        return
    _close([_LIFELINE, 1, *files])
    status = 0
    while True:
        pid, ended = os.wait()
        if pid == child:
            status = os.waitstatus_to_exitcode(ended)
            break
    if status:  # else it saw that nothing is left
        kill_until_gone(_below)
        if private:
            shutil.rmtree(private, ignore_errors=True)
    if status < 0:
        words = f"the process that kept it was ended by signal {-status}, and its processes with it"
        write_verdict({"lost": words})
    os._exit(0)


def _below() -> list[int]:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    return process_tree.descendants(os.getpid(), dead=True)


class Tree:
    """The processes below this one."""

    def __init__(self, pid: int, wake: int, orphan_grace: float, history: UsageHistory) -> None:
        self._pid, self._wake, self._orphan_grace = pid, wake, orphan_grace
        self._history = history
        self._code: int | None = None
        self._deadline: float | None = None
        self._lifeline = [_LIFELINE]
        self.usage = UsageMeter()

    def keep(self) -> int:
        """Return the exit code of the main process when no process of the tree is left."""
        while self._code is None:
            left = _SAMPLE if self._deadline is None else max(0.0, self._deadline - time.monotonic())
            self._wait(min(left, _SAMPLE))
            if self.usage.due():
                self.usage.sample(self._members())
                self._note()
            if self._deadline is not None and time.monotonic() >= self._deadline:
                self._signal(signal.SIGKILL)
        # What the main process left behind has the rest of a grace period, if it was asked to stop.
        while members := self._members():
            if self._deadline is None or time.monotonic() >= self._deadline:
                process_tree.send(members, signal.SIGKILL)
            self._wait(_LOOK)
        self._note(last=True)
        return self._code

    def _note(self, *, last: bool = False) -> None:
        self._history.note(time.time(), self.usage.memory, self.usage.cpu_time or 0.0, last=last)

    def _wait(self, timeout: float) -> None:
        told = readable([self._wake, *self._lifeline], timeout)
        if self._wake in told:
            os.read(self._wake, 4096)
        if _LIFELINE in told:
            self._obey(os.read(_LIFELINE, 4096).decode())
        self._reap()

    def _obey(self, words: str) -> None:
        if not words:  # the lifeline is cut
            self._lifeline.clear()
        grace = float(words.split()[-1]) if words else self._orphan_grace
        deadline = time.monotonic() + grace
        self._deadline = deadline if self._deadline is None else min(self._deadline, deadline)
        self._signal(signal.SIGTERM if grace else signal.SIGKILL)

    def _signal(self, number: int) -> None:
        process_tree.send(self._members(), number)

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._pid:
                self.usage.reaped(usage)
                self._code = os.waitstatus_to_exitcode(status)

    def _members(self) -> list[int]:
        self._reap()
        return process_tree.descendants(os.getpid(), dead=True)
