"""End jobs as Fray promises: SIGTERM and time to save for every tree, then Iris's own end, then its report.

Iris ends a task by SIGKILL, at once or half a minute later. So each replica is notified first, by a command
that Iris runs beside it in its container.
"""

import time
from collections.abc import Iterable, Mapping
from typing import Any

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
# Argument 1 is the folder of the replica, 2 how many seconds it has, 3 how often to look whether it has
# ended.
_TELL = """
mkdir -p -m 700 "$1" || exit 1
[ -e "$1/stop" ] || { echo "$2" > "$1/.stop" && mv "$1/.stop" "$1/stop"; }
n=0
while [ ! -e "$1/ended" ] && [ -d "$1" ] && [ "$n" -lt "$3" ]; do sleep 0.05; n=$((n+1)); done
[ -e "$1/ended" ] || [ ! -d "$1" ] || exit 1
rm -rf "$1"
"""


def stop_replicas(iris: Iris, tasks: Iterable[Mapping[str, Any]], grace: float) -> None:
    """Let every replica that runs end its tree; returns when they have, or when their time is over."""
    running = [task for task in tasks if task.get("state") == "TASK_STATE_RUNNING"]
    map_in_threads(lambda task: _stop(iris, task, grace), running, _AT_ONCE, "fray-terminate")


def _stop(iris: Iris, task: Mapping[str, Any], grace: float) -> None:
    name = IrisTask.parse(task["task_id"]).name
    place = place_of(name, int(task.get("current_attempt_id", 0)))
    deadline = time.monotonic() + grace + _AFTER_GRACE
    while (left := deadline - time.monotonic()) > 0:
        patience = min(left, _COMMAND)
        code = iris.execute(name, tell_command(place, grace, patience), patience + 1.0)
        if code is None or code == 0:
            return


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


def tell_command(place: str, grace: float, patience: float) -> list[str]:
    """Return the command that stops a replica, and waits until it has; 0 where it has.

    A replica that is just starting finds the word when it has started.
    """
    words = [place, f"{grace:g}", str(max(1, round(patience / 0.05)))]
    return ["sh", "-c", _TELL, "sh", *words]
