"""The process that keeps one attempt of a replica: starts it, ends its whole tree, and says how it ended.

    python _keeper.py < lifeline > output 2> verdict

The first line of stdin is the plan as JSON; later lines are `stop SECONDS`. When stdin ends, whoever
started this is gone, and so is the replica a moment later: after its `orphan_grace`, in seconds. Output
of the replica goes to stdout, the verdict, one line of JSON, to stderr. It is nobody's child: Ray kills
the children of its workers, and then nobody would be left to end what the replica started. Standard
library only.
"""

import base64
import ctypes
import json
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_LIFELINE = 0
_LOOK = 0.02  # seconds between looks at processes whose end is not told


def main() -> None:
    """Keep one attempt from start to end."""
    with open(_LIFELINE, "rb", buffering=0, closefd=False) as lifeline:
        plan = json.loads(lifeline.readline())  # unbuffered: the lines that follow are read by the tree
    if os.fork():
        os._exit(0)
    os.setsid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wake, wakened = os.pipe()
    os.set_blocking(wakened, False)
    signal.set_wakeup_fd(wakened)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the lifeline says when it is over
    killed_before = oom_kills()
    try:
        pid = start(plan)
    except OSError as error:
        verdict: dict[str, Any] = {"not_started": error.strerror}
    else:
        code = Tree(pid, wake, plan["orphan_grace"]).keep()
        verdict = {"exit_code": code, "oom": code in (-9, 137) and oom_kills() > killed_before}
        if plan["result"] and os.path.exists(plan["result"]):  # noqa: PTH110 - a name, from JSON
            verdict["result"] = base64.b64encode(Path(plan["result"]).read_bytes()).decode()
    if plan["private"]:  # made by who started this, and may be gone
        shutil.rmtree(plan["private"], ignore_errors=True)
    sys.stderr.write(json.dumps(verdict))


class Tree:
    """The processes below this one."""

    def __init__(self, pid: int, wake: int, orphan_grace: float) -> None:
        self._pid, self._wake, self._orphan_grace = pid, wake, orphan_grace
        self._code: int | None = None
        self._deadline: float | None = None
        self._lifeline = [_LIFELINE]

    def keep(self) -> int:
        """Return the exit code of the main process when no process of the tree is left."""
        while self._code is None:
            self._wait(None if self._deadline is None else max(0.0, self._deadline - time.monotonic()))
            if self._deadline is not None and time.monotonic() >= self._deadline:
                self._signal(signal.SIGKILL)
        # What the main process left behind has the rest of a grace period, if it was asked to stop.
        while members := self._members():
            if self._deadline is None or time.monotonic() >= self._deadline:
                send(members, signal.SIGKILL)
            self._wait(_LOOK)
        return self._code

    def _wait(self, timeout: float | None) -> None:
        told, _, _ = select.select([self._wake, *self._lifeline], [], [], timeout)
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
        send(self._members(), number)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._pid:
                self._code = os.waitstatus_to_exitcode(status)

    def _members(self) -> list[int]:
        self._reap()
        return list(descendants(os.getpid()))


def start(plan: dict[str, Any]) -> int:
    """Start the program in a session of its own, signals as a program expects them.

    Raises:
        OSError: It could not be started.
    """
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            signal.set_wakeup_fd(-1)
            for number in range(1, signal.NSIG):
                if signal.getsignal(number) not in (signal.SIG_DFL, None) and number not in (9, 19):
                    signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            os.setsid()
            os.chdir(plan["cwd"])
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(1, 2)
            os.execvpe(plan["command"][0], plan["command"], plan["environ"])  # noqa: S606 - no shell is the point
        except OSError as error:
            os.write(tell, str(error.errno).encode())
        os._exit(127)
    os.close(tell)
    failure = os.read(told, 64)
    os.close(told)
    if failure:
        os.waitpid(pid, 0)
        raise OSError(int(failure), os.strerror(int(failure)))
    os.close(1)  # the output ends when those who write it have ended
    return pid


def descendants(root: int) -> Iterator[int]:
    """Yield the living processes below one, from the parents that each has now."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:  # it has just ended
                continue
            if state not in "ZX":
                children.setdefault(int(parent), []).append(int(entry.name))
    below = [root]
    while below:
        found = children.get(below.pop(), [])
        yield from found
        below.extend(found)


def send(pids: list[int], number: int) -> None:
    """Send a signal to each that is still there."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def oom_kills() -> int:
    """Return how often the system has killed for memory: in this control group, else on this machine."""
    for path, key in (("/sys/fs/cgroup/memory.events", "oom_kill"), ("/proc/vmstat", "oom_kill")):
        try:
            counters = dict(line.split() for line in Path(path).read_text().splitlines())
        except (OSError, ValueError):
            continue
        if key in counters:
            return int(counters[key])
    return 0


if __name__ == "__main__":
    main()
