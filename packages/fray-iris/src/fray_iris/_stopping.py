"""End jobs as Fray promises: SIGTERM and time to save for every tree, then Iris's own end, then its report.

Iris ends a task by SIGKILL, at once or half a minute later. So each replica is notified first, by a command
that Iris runs beside it in its container.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fray import ClusterUnavailableError
from fray.backend import map_in_threads
from fray_iris._connection import Iris
from fray_iris._ids import IrisTask
from fray_iris._in_task.words import place_of

_AT_ONCE = 16  # replicas that are notified side by side
_COMMAND = (
    20.0  # seconds that one command waits at most: controllers and proxies between have limits of their own
)
_AFTER_GRACE = 10.0
_SEEN_WITHIN = 8.0  # seconds in which a worker notices that a task has ended, of which it looks every five
_PAUSES = (0.5, 2.0)  # seconds before a replica that could not be notified is notified again
_LOOK = 0.1  # seconds that one look of `_AWAIT` takes at most, with what the shell itself needs
# Argument 1 is the folder of the replica, 2 how many seconds it has, 3 how often to look whether it has
# ended.
_TELL = """
mkdir -p -m 700 "$1" || exit 1
[ -e "$1/stop" ] || { echo "$2" > "$1/.stop" && mv "$1/.stop" "$1/stop"; }
"""
_AWAIT = """
n=0
while [ ! -e "$1/ended" ] && [ -d "$1" ] && [ "$n" -lt "$3" ]; do sleep 0.05; n=$((n+1)); done
[ -e "$1/ended" ] || [ ! -d "$1" ]
"""
_RELEASE = """
rm -rf "$1"
"""


def stop_replicas(iris: Iris, tasks: Iterable[Mapping[str, Any]], grace: float) -> None:
    """Let every replica that runs end its tree; returns when they have, or when their time is over.

    All are notified before one is waited for. A replica whose tree has ended keeps its task until all others
    have ended, too: Iris ends the others with it.
    """
    stops = [_Stop(iris, task, grace) for task in tasks if task.get("state") == "TASK_STATE_RUNNING"]
    _for_all(_Stop.tell, stops)
    _for_all(_Stop.await_end, stops)
    _for_all(_Stop.release, stops)


class _Stop:
    """The end of one replica that runs."""

    def __init__(self, iris: Iris, task: Mapping[str, Any], grace: float) -> None:
        parsed = IrisTask.parse(task["task_id"])
        self._job, self._name = parsed.job, parsed.name
        self._iris, self._grace, self._attempt = iris, grace, int(task.get("current_attempt_id", 0))
        self._deadline = time.monotonic() + grace + _AFTER_GRACE
        self._told = self._ended = False

    def tell(self) -> None:
        """Ask it to end; a replica that is just starting finds the word when it has started."""
        for pause in (*_PAUSES, None):
            self._told = self._run(_TELL, _COMMAND) == 0
            if self._told or pause is None or not self._runs():
                return
            time.sleep(pause)

    def await_end(self) -> None:
        """Wait until its tree has ended, or its time is over."""
        while self._told:
            left = self._deadline - time.monotonic()
            code = self._run(_AWAIT, max(0.0, min(left, _COMMAND)))  # it looks once in any case
            self._ended = code == 0
            if self._ended or left <= 0 or (code is None and not self._runs()):
                return
            if code is None:  # a proxy, or a worker that is busy: the replica uses its time all the same
                time.sleep(min(left, _PAUSES[0]))

    def release(self) -> None:
        """Let the task end."""
        if self._ended:
            self._run(_RELEASE, _COMMAND)

    def _run(self, script: str, patience: float) -> int | None:
        looks = max(1, round(patience / _LOOK))
        words = [place_of(self._name, self._attempt), f"{self._grace:g}", str(looks)]
        return self._iris.execute(self._name, ["sh", "-c", script, "sh", *words], patience + 1.0)

    def _runs(self) -> bool:
        """Whether the attempt may still run."""
        try:
            tasks = self._iris.tasks(self._job)
        except ClusterUnavailableError:
            return True
        except KeyError:
            return False
        return any(
            task.get("task_id") == self._name
            and task.get("state") == "TASK_STATE_RUNNING"
            and int(task.get("current_attempt_id", 0)) == self._attempt
            for task in tasks
        )


def _for_all(act: Callable[[_Stop], None], stops: Sequence[_Stop]) -> None:
    map_in_threads(act, stops, _AT_ONCE, "fray-terminate")


def await_ends(iris: Iris, names: Iterable[str]) -> None:
    """Wait until Iris has seen the ends of tasks that have ended, so that it counts their workers as free.

    It forgets to, for tasks that it is asked to end while their workers still call them running.
    """
    deadline = time.monotonic() + _SEEN_WITHIN
    while time.monotonic() < deadline:
        tasks = [task for name in names for task in iris.tasks(name)]
        if not any(task.get("state") == "TASK_STATE_RUNNING" for task in tasks):
            return
        time.sleep(0.1)
