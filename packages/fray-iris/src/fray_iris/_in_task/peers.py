"""A replica and the others of its job: where a gang meets, its ranks, and what waits for what at the end."""

import os
import socket
import time

from fray_iris._in_task.controller import Controller, CouldNotStart, Refused, is_over, said_by

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_MEETS_WITHIN = 300.0
_AWAY = 600.0  # seconds that a controller may be away while others of the job run
# Seconds in which workers may come for replicas that wait for some. After that, the worker of one that has
# failed may be what they wait for.
_FREE_WITHIN = 600.0
_PAUSE = 0.1
_TELLS_EVERY = 60.0  # seconds: some controllers forget an endpoint that is not registered again


class Peers:
    """The other replicas of the job, as this one deals with them.

    Args:
        plan: What to run.
        controller: That of this attempt.
        index: Which replica this is.
        stopping: Whether this replica is to end.
    """

    def __init__(
        self, plan: "dict[str, Any]", controller: Controller, index: int, stopping: "Callable[[], bool]"
    ) -> None:
        self._plan, self._controller, self._index, self._stopping = plan, controller, index, stopping

    def ranks(self) -> "dict[str, object]":
        """Return the variables of this rank of a gang.

        Raises:
            CouldNotStart: It does not meet.
        """
        units, hosts, slices = self._plan["gang"]
        address, port = self._meeting()
        found: dict[str, object] = {"FRAY_COORDINATOR_ADDRESS": f"{address}:{port}"}
        if slices:
            slice_, host = divmod(self._index, hosts)
            return found | {
                "FRAY_SLICE_ID": slice_,
                "FRAY_SLICE_COUNT": units,
                "FRAY_HOST_ID": host,
                "FRAY_HOST_COUNT": hosts,
            }
        return found | {
            "RANK": self._index,
            "WORLD_SIZE": self._plan["replicas"],
            "LOCAL_RANK": 0,
            "LOCAL_WORLD_SIZE": 1,
            "MASTER_ADDR": address,
            "MASTER_PORT": port,
        }

    def _meeting(self) -> "tuple[str, int]":
        """Return where the gang meets in this attempt; the first replica says so by an endpoint of Iris."""
        task = self._controller.task
        name = f"{task.rpartition('/')[0]}/fray-meeting"
        until = time.monotonic() + _MEETS_WITHIN
        if self._index == 0 or self._plan["replicas"] == 1:
            address, port = host_address(), free_port()
            if self._plan["replicas"] > 1:
                said: dict[str, Any] = {"name": name, "address": f"{address}:{port}", "taskId": task}
                said |= {"attemptId": self._controller.attempt}
                self._asked(until, "RegisterEndpoint", **said)
            return address, port
        while time.monotonic() < until:
            for endpoint in self._asked(until, "ListEndpoints", prefix=name, exact=True).get("endpoints", ()):
                address, _, text = endpoint["address"].rpartition(":")
                self._controller.tell(met=True)
                return address, int(text)
            self._check_wanted()
            time.sleep(_PAUSE)
        raise CouldNotStart(f"the first replica said within {_MEETS_WITHIN:g} s nowhere where the gang meets")

    def _asked(self, until: float, method: str, **request: "Any") -> "dict[str, Any]":
        """Ask a controller that may be away until then.

        Raises:
            CouldNotStart: It did not answer, or the replica is to end.
        """
        while True:
            try:
                return self._controller.call(method, **request)
            except Refused:
                raise
            except CouldNotStart:
                self._check_wanted()
                if time.monotonic() >= until:
                    raise
                time.sleep(_PAUSE)

    def _check_wanted(self) -> None:
        if self._stopping():
            raise CouldNotStart("it was stopped before its gang had met")

    def wait_until_met(self) -> None:
        """Keep the endpoint of the meeting, which ends with this task, until all others have read it."""
        deadline = time.monotonic() + _MEETS_WITHIN
        self._controller.tell(met=True)  # which finds out how the others say it
        while not self._stopping() and time.monotonic() < deadline:
            try:
                others = self._controller.other_tasks()
            except Refused:
                return
            except CouldNotStart:
                continue
            if all(is_over(task) or "met" in said_by(task) for task in others):
                return
            time.sleep(_PAUSE)

    def wait_for_ends(self, report: "dict[str, Any]", code: int) -> None:
        """Keep the task after a failure for good until the other replicas have ended: Iris would end them.

        Args:
            report: How this one ended.
            code: What the task will end with.
        """
        told_at, answered_at, free_at = None, time.monotonic(), time.monotonic()
        while time.monotonic() - answered_at < _AWAY:
            try:
                others, own = self._controller.other_tasks(), self._controller.own_task()
            except Refused:
                return
            except CouldNotStart:
                if self._stopping():
                    return
                continue
            if self._starts_again(own):
                return
            answered_at = time.monotonic()
            if told_at is None or answered_at - told_at > _TELLS_EVERY:
                self._controller.tell(ended=report, code=code)
                told_at = answered_at
            if not all(is_over(task) or task.get("state") == "TASK_STATE_PENDING" for task in others):
                free_at = answered_at
            if all(map(is_over, others)) or self._stopping() or answered_at - free_at > _FREE_WITHIN:
                return
            time.sleep(0.25)

    def _starts_again(self, own: "dict[str, Any]") -> bool:
        """Whether Iris will start this replica again."""
        failed = [
            each
            for each in own.get("attempts", ())
            if each.get("state") == "TASK_STATE_FAILED"
            and int(each.get("attemptId", 0)) != self._controller.attempt
        ]
        return len(failed) < int(self._plan["max_retries_failure"])


def host_address() -> str:
    """Return where others reach this host."""
    return os.environ.get("IRIS_ADVERTISE_HOST") or socket.gethostname()


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])
