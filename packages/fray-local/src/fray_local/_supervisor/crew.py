"""Replicas that know nothing of each other: each ends, and is started again, alone."""

from fray_local._supervisor.outcomes import Outcome, failure_of_exit
from fray_local._supervisor.replicas import after_failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fray_local._supervisor.replicas import Replica
    from fray_local._supervisor.tree import Tree


class Crew:
    """The replicas of a job, each with its own retries."""

    def __init__(self, replicas: "list[Replica]", tree: "Tree") -> None:
        self._replicas, self._tree = replicas, tree

    @property
    def finished(self) -> bool:
        return all(replica.finished for replica in self._replicas)

    @property
    def due(self) -> float | None:
        """The next moment at which there is something to do without any process having ended."""
        return min((replica.due for replica in self._replicas if replica.due is not None), default=None)

    def outcome(self) -> Outcome:
        return Outcome.of_tasks()

    def act(self, now: float) -> None:
        """Start the attempts whose time has come."""
        for replica in self._replicas:
            if replica.due is not None and now >= replica.due:
                replica.start()

    def settle(self, ended: dict[int, int]) -> None:
        """Book the processes that have ended and, where retries are left, plan the next attempt."""
        for replica in self._replicas:
            if replica.pid in ended:
                pid = replica.pid
                self._tree.end_session(pid)
                failure = failure_of_exit(replica, ended[pid])
                replica.ended(failure)
                if failure is not None and replica.failures < replica.plan["max_retries_failure"]:
                    replica.failures += 1
                    replica.try_again(after_failure(replica.failures))
