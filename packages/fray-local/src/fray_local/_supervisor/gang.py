"""The hosts of a simulated TPU job: they start together, and when one goes all go and start again.

running    every host has its process
noticed    a host was told that it is preempted; its peers run on, as they may save with it
stopping   a host failed, or the time of those preempted is over: the others get SIGTERM, then SIGKILL
over       no process is left; the gang starts again, or its outcome is settled
"""

import signal
import time

from fray_local._supervisor.outcomes import Failure, Outcome, failure_of_exit, last_lines
from fray_local._supervisor.ports import free_ports
from fray_local._supervisor.replicas import after_failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fray_local._supervisor.mailbox import Mailbox
    from fray_local._supervisor.replicas import Replica
    from fray_local._supervisor.tree import Tree

_GRACE = 10.0  # seconds from SIGTERM to SIGKILL for the peers of a host that failed


class Gang:
    """All hosts of all slices of one job."""

    def __init__(
        self, hosts: "list[Replica]", plan: "dict[str, Any]", tree: "Tree", mailbox: "Mailbox"
    ) -> None:
        self._hosts, self._plan, self._tree, self._mailbox = hosts, plan, tree, mailbox
        self._failures = self._preemptions = 0
        self._outcome: Outcome | None = None
        self._begin_attempt()

    def _begin_attempt(self) -> None:
        self._culprit: Replica | None = None
        """The host for which this attempt ends."""
        self._noticed: set[int] = set()
        """The hosts that were preempted in this attempt, by number."""
        self._grace = _GRACE
        self._stopping = False
        self._kill_at: dict[int, float] = {}

    @property
    def finished(self) -> bool:
        return self._outcome is not None

    @property
    def due(self) -> float | None:
        """The next moment at which there is something to do without any process having ended."""
        if not self._running and self._hosts[0].due is None:
            return 0.0  # none could be started: to be settled now
        return min([*self._kill_at.values(), *(host.due for host in self._hosts if host.due)], default=None)

    def outcome(self) -> Outcome:
        assert self._outcome is not None
        return self._outcome

    def act(self, now: float) -> None:
        """Start the gang when its time has come; kill the hosts whose time to save is over."""
        if self._hosts[0].due is not None and now >= self._hosts[0].due:
            self._start()
        for host in self._running:
            if now >= self._kill_at.get(host.number, now + 1):
                self._tree.send_session(_pid(host), signal.SIGKILL)
                del self._kill_at[host.number]

    def settle(self, ended: dict[int, int]) -> None:
        """Book the hosts that have ended, deliver preemption notices, and do what follows from both."""
        for replica, attempt, grace in self._mailbox.notices():
            self._notice(self._hosts[replica], attempt, grace)
        for host in self._running:
            if host.pid in ended:
                self._book(host, ended[_pid(host)])
        if not self._running and self._hosts[0].due is None:
            self._conclude()
        elif self._culprit is not None and not self._saving:
            self._stop()

    @property
    def _running(self) -> "list[Replica]":
        return [host for host in self._hosts if host.pid is not None]

    @property
    def _saving(self) -> bool:
        return any(host.number in self._noticed for host in self._running)

    def _start(self) -> None:
        self._begin_attempt()
        gang, ports = self._plan["gang"], free_ports(2)
        for host in self._hosts:
            if self._culprit is None:
                host.start(variables(host.number, gang["slices"], gang["hosts"], ports))
            host.due = None
            if host.pid is None and self._culprit is None:
                self._culprit = host

    def _notice(self, host: "Replica", attempt: int, grace: float) -> None:
        if host.pid is None or host.task["attempt"] != attempt:
            return  # the host that was meant has ended meanwhile
        if self._culprit is None:
            self._culprit, self._grace = host, grace
        self._noticed.add(host.number)
        self._terminate(host, grace)

    def _terminate(self, host: "Replica", grace: float) -> None:
        moment = time.monotonic() + grace
        self._kill_at[host.number] = min(moment, self._kill_at.get(host.number, moment))
        self._tree.send_session(_pid(host), signal.SIGTERM)

    def _stop(self) -> None:
        if not self._stopping:
            self._stopping = True
            for host in self._running:
                self._terminate(host, self._grace)

    def _book(self, host: "Replica", code: int) -> None:
        self._tree.end_session(_pid(host))
        self._kill_at.pop(host.number, None)
        if host.number in self._noticed:
            host.ended(self._preempted(host, code))
        elif self._stopping:
            host.ended(Failure("stopped", code, f"stopped with its gang: {self._why()}"), "stopped")
        else:
            failure = failure_of_exit(host, code)
            host.ended(failure)
            if failure is not None and self._culprit is None:
                self._culprit = host

    def _preempted(self, host: "Replica", code: int) -> Failure:
        allowed = self._plan["gang"]["max_retries_preemption"]
        which = f"preemption {self._preemptions + 1}; max_retries_preemption={allowed}"
        lines = last_lines(host.log, self._plan)
        return Failure("preempted", code, f"replica {host.number} was preempted ({which}){lines}")

    def _why(self) -> str:
        assert self._culprit is not None
        message: str = self._culprit.task["error_message"]
        return message.partition("\n")[0]

    def _conclude(self) -> None:
        """No host runs any more: the gang is done, or starts again, or has no retries left."""
        self._tree.clear()
        if self._culprit is None:
            self._outcome = Outcome.of_tasks()
        elif (moment := self._next_attempt(self._culprit.task["reason"])) is None:
            self._outcome = Outcome("failed", None, self._culprit.task["error_message"])
        else:
            for host in self._hosts:
                host.failures = self._failures
                host.try_again(moment)

    def _next_attempt(self, reason: str) -> float | None:
        """Count the end of an attempt; return when to start the next, None where no retry is left."""
        if reason == "could_not_start":
            return None
        if reason == "preempted":
            self._preemptions += 1
            left = self._preemptions <= self._plan["gang"]["max_retries_preemption"]
            return time.monotonic() if left else None
        self._failures += 1
        return after_failure(self._failures) if self._failures <= self._plan["max_retries_failure"] else None


def variables(number: int, slices: int, hosts: int, ports: list[int]) -> dict[str, str]:
    """Return what a host finds in its environment: its place, and where its peers meet in this attempt."""
    slice_, host = divmod(number, hosts)
    found: dict[str, Any] = {
        "FRAY_SLICE_ID": slice_,
        "FRAY_SLICE_COUNT": slices,
        "FRAY_HOST_ID": host,
        "FRAY_HOST_COUNT": hosts,
        "FRAY_COORDINATOR_ADDRESS": f"127.0.0.1:{ports[0]}",
    }
    if slices > 1:
        found |= {
            "MEGASCALE_COORDINATOR_ADDRESS": "127.0.0.1",
            "MEGASCALE_PORT": ports[1],
            "MEGASCALE_NUM_SLICES": slices,
            "MEGASCALE_SLICE_ID": slice_,
        }
    return {name: str(value) for name, value in found.items()}


def _pid(host: "Replica") -> int:
    assert host.pid is not None
    return host.pid
