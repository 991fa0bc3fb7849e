"""A replica and the others of its job: where a gang meets, its ranks, and what waits for what at the end."""

import os
import socket
import time

from fray_iris._in_task.controller import Controller, CouldNotStart, is_over, said_by

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_MEETS_WITHIN = 300.0


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
        if self._index == 0 or self._plan["replicas"] == 1:
            address, port = host_address(), free_port()
            if self._plan["replicas"] > 1:
                at = f"{address}:{port}"
                attempt = self._controller.attempt
                self._controller.call(
                    "RegisterEndpoint", name=name, address=at, taskId=task, attemptId=attempt
                )
            return address, port
        deadline = time.monotonic() + _MEETS_WITHIN
        while time.monotonic() < deadline:
            for endpoint in self._controller.call("ListEndpoints", prefix=name, exact=True).get(
                "endpoints", ()
            ):
                address, _, text = endpoint["address"].rpartition(":")
                self._controller.tell(met=True)
                return address, int(text)
            if self._stopping():
                raise CouldNotStart("it was stopped before its gang had met")
            time.sleep(0.1)
        raise CouldNotStart(f"the first replica said within {_MEETS_WITHIN:g} s nowhere where the gang meets")

    def wait_until_met(self) -> None:
        """Keep the endpoint of the meeting, which ends with this task, until all others have read it."""
        deadline = time.monotonic() + _MEETS_WITHIN
        while not self._stopping() and time.monotonic() < deadline:
            try:
                others = self._controller.other_tasks()
            except CouldNotStart:
                return
            if all(is_over(task) or "met" in said_by(task) for task in others):
                return
            time.sleep(0.1)

    def wait_for_ends(self, report: "dict[str, Any]") -> None:
        """Keep the task after a failure for good until the other replicas have ended: Iris would end them."""
        told = False
        while True:
            try:
                others, own = self._controller.other_tasks(), self._controller.own_task()
            except CouldNotStart:
                return
            failed = [
                each
                for each in own.get("attempts", ())
                if each.get("state") == "TASK_STATE_FAILED"
                and int(each.get("attemptId", 0)) != self._controller.attempt
            ]
            if len(failed) < self._plan["max_retries_failure"]:
                return  # it starts again
            if not told:
                self._controller.tell(ended=report)
                told = True
            if all(map(is_over, others)) or self._stopping():
                return
            time.sleep(0.25)


def host_address() -> str:
    """Return where others reach this host."""
    return os.environ.get("IRIS_ADVERTISE_HOST") or socket.gethostname()


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])
