"""One job from its plan to its final status, by the process that ends after the last one of the job.

The plan comes as JSON on stdin, so that the secrets in it are on no disk and no command line.

    pending   build the environment, wait for room
    running   start the replicas, start failed ones again while they have retries left
    finished  end what the replicas left behind, give back the room, write the final status
"""

import json
import os
import sys
import time

from fray_local._supervisor.crew import Crew
from fray_local._supervisor.ledger import Ledger, explain
from fray_local._supervisor.mailbox import Mailbox, StopRequested
from fray_local._supervisor.outcomes import Outcome, TimedOut, failure_of_start, job_error
from fray_local._supervisor.replicas import Replica
from fray_local._supervisor.status import StatusFile
from fray_local._supervisor.tree import Tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fray_local._supervisor.gang import Gang

_LAST_GRACE = 10.0  # seconds that a replica has after SIGTERM when its time is up
_SWEEP = 2.0  # seconds after which one who waits looks whether a holder died without giving back


class Supervisor:
    """One job, from its plan to its final status."""

    def __init__(self, plan: "dict[str, Any]") -> None:
        self._plan = plan
        self._dir: str = plan["dir"]
        self._status = StatusFile(self._dir, plan["status"])
        self._mailbox = Mailbox(self._dir)
        self._tree = Tree(self._dir, self._mailbox)
        self._ledger = Ledger(plan["state_dir"])
        self._replicas = [Replica(task, plan) for task in self._status.tasks]
        self._deadline: float | None = None

    def run(self) -> None:
        """Carry the job through its life; whatever happens, its tree is ended and its status final."""
        outcome = Outcome("failed", "lost", "its supervisor failed; see supervisor.log in its record")
        try:
            outcome = self._live()
        except StopRequested as stop:
            outcome = Outcome("stopped", "stopped", None)
            self._end(stop.grace)
        except TimedOut:
            outcome = Outcome(
                "failed", "timed_out", f"ran longer than its timeout of {self._plan['timeout']:g} s"
            )
            self._end(_LAST_GRACE)
        finally:
            self._finish(outcome)

    def _live(self) -> Outcome:
        if self._plan["build"] and (failure := self._build()):
            return failure
        gpus = self._wait_for_room()
        for replica in self._replicas:
            replica.prepare(gpus)
        if self._plan["timeout"] is not None:
            self._deadline = time.monotonic() + self._plan["timeout"]
        self._status.start()
        crew = self._crew()
        while not crew.finished:
            crew.act(time.monotonic())
            self._status.write()
            self._wait(crew)
        return crew.outcome()

    def _crew(self) -> "Crew | Gang":
        if self._plan["gang"] is None:
            return Crew(self._replicas, self._tree)
        from fray_local._supervisor.gang import Gang

        return Gang(self._replicas, self._plan, self._tree, self._mailbox)

    def _build(self) -> Outcome | None:
        """Build the environment in a child; its failure is the job's."""
        from fray_local._supervisor.environments import build
        from fray_local._supervisor.spawn import start_function

        plan, log = self._plan, os.path.join(self._dir, "logs", "environment.log")
        self._status.wait_for("building its environment; see environment.log")
        pid = start_function(lambda: build(plan), plan["cwd"], log)
        while (code := self._tree.reap().get(pid)) is None:
            self._mailbox.wait()
        return None if code == 0 else Outcome("failed", "could_not_start", failure_of_start(plan, log))

    def _wait_for_room(self) -> list[str]:
        """Return the GPUs that the job may use, when the machine has room for it."""
        claim = self._plan["claim"]
        if claim is None:
            return list(self._plan["gpu_ids"])
        while not (entered := self._ledger.enter(claim))["granted"]:
            self._status.wait_for(explain(entered, self._ledger.claims()))
            self._mailbox.wait(_SWEEP)
        return list(entered["gpus"])

    def _wait(self, crew: "Crew | Gang") -> None:
        """Wait for something to happen and settle it, or for a moment to come."""
        moments = [moment for moment in (crew.due, self._deadline) if moment is not None]
        self._mailbox.wait_until(min(moments, default=None))
        crew.settle(self._tree.reap())
        if self._deadline is not None and time.monotonic() >= self._deadline:
            raise TimedOut

    def _end(self, grace: float) -> None:
        """End every process of the job and every job below it."""
        self._tree.tell_children(grace)
        for pid, code in self._tree.end(grace).items():
            for replica in self._replicas:
                if replica.pid == pid:
                    replica.task["exit_code"] = code
        self._tree.wait_for_children(grace)

    def _finish(self, outcome: Outcome) -> None:
        # Nothing of the job is left when it reads finished, and its room is free for the next.
        self._tree.end(0.0)
        if self._plan["claim"] is not None:
            self._ledger.leave(self._dir)
        for task in self._status.tasks:
            outcome.settle(task)
        self._status.finish(outcome.status, job_error(outcome, self._status.tasks))


def main() -> None:
    """Read the plan and carry the job."""
    text = sys.stdin.read()
    os.setsid()
    if text:  # else the launcher died before it could say anything
        Supervisor(json.loads(text)).run()
