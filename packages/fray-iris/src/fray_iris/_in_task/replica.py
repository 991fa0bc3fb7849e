"""Run one replica inside a task of Iris: start it, end its whole tree, say how it ended."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time

from fray_iris._in_task.controller import Controller, CouldNotStart, last_said
from fray_iris._in_task.environment import (
    check_environment,
    environ_of,
    hidden_variables,
    make_executable,
)
from fray_iris._in_task.lines import Lines
from fray_iris._in_task.peers import Peers
from fray_iris._in_task.tree import PAUSE, Tree, oom_kills, signal_name
from fray_iris._in_task.words import END, PLAN, place_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

# Iris leaves a task that it has ended alone for the first 30 seconds of its life, so that it asks by itself
# then.
_ASKS_FOR, _ASKS_EVERY = 35.0, 0.5
_GRACE = 25.0  # of the 30 seconds that Kubernetes leaves
_LIMIT_GRACE = 5.0
_KEPT = 30.0  # seconds beyond its own grace for which a task that was stopped waits for the others
_LOOKS_EVERY = 2.0


def main(folder: str) -> "NoReturn":
    """Run the replica of the plan in a folder; ends as its program does."""
    with open(os.path.join(folder, PLAN)) as file:
        replica = Replica(json.load(file), folder)
    try:
        code = replica.run()
    finally:
        replica.close()
    sys.stderr.flush()
    os._exit(code)


class Replica:
    """One attempt of one replica."""

    def __init__(self, plan: "dict[str, Any]", folder: str) -> None:
        self.plan, self.folder = plan, folder
        task, _, attempt = os.environ["IRIS_TASK_ID"].partition(":")
        self.index = int(task.rpartition("/")[2])
        self.place = place_of(task, int(attempt or 0))
        self.lines = Lines()
        address = os.environ.get("IRIS_CONTROLLER_ADDRESS", "")
        self.controller = Controller(address, task, int(attempt or 0), self.lines.write)
        self.peers = Peers(plan, self.controller, self.index, self.stopping)
        self.terminated = False
        self._ended_there = threading.Event()
        self._pump: threading.Thread | None = None
        self.oom = oom_kills()

    def run(self) -> int:
        """Run the program to its end; returns the code that the task ends with."""
        self.tree = Tree()
        signal.signal(signal.SIGTERM, self._on_terminate)
        for number in (signal.SIGUSR1, signal.SIGUSR2):  # a user's, sent to all; an ignored one outlives exec
            signal.signal(number, lambda *_: None)
        try:
            code = self._run()
            grace = self._grace_of_stop()
            if code and grace is not None:
                self._keep_task(grace)
        except Exception as error:  # noqa: BLE001 - whatever fails here, nothing of the program stays
            self.tree.kill()
            if self._pump is not None:
                self._pump.join(5.0)
            message = f"replica {self.index} is lost, because what runs it failed: {error!r}"
            self.lines.write(END + json.dumps({"reason": "lost", "exit_code": None, "message": message}))
            return 1
        return code

    def _run(self) -> int:
        task = self.controller.look()
        if self.controller.has_ended(task):
            return self._ended_by_iris()
        said = last_said(task)
        if "code" in said:  # an attempt had ended for good, and Iris took its worker before all had ended
            return self._end_again(said["ended"], said["code"])
        try:
            self._pump = self._start()
        except CouldNotStart as error:
            if self.stopping():
                return self._stopped()
            return self._end("could_not_start", 127, str(error))
        reason = self._watch()
        self.tree.kill()
        self._pump.join(5.0)
        return self._ended(reason)

    def close(self) -> None:
        """Leave nothing on the worker but the report of the end, for the process that waits for it."""
        for name in ("stop", "notice"):
            try:
                os.unlink(os.path.join(self.place, name))
            except OSError:
                continue
        try:
            os.rmdir(self.place)
        except OSError:
            return

    def stopping(self) -> bool:
        """Whether the replica is to end."""
        return self.terminated or os.path.exists(os.path.join(self.place, "stop"))

    def _grace_of_stop(self) -> "float | None":
        """Return how many seconds a user gives it to end; None where none has asked it to."""
        try:
            with open(os.path.join(self.place, "stop")) as file:
                return float(file.read() or 0)
        except OSError:
            return None

    def _start(self) -> threading.Thread:
        check_environment(self.plan)
        make_executable(self.plan, self.folder)
        notice = os.path.join(self.place, "notice")
        environ = environ_of(self.plan, self.folder, notice, self.index, self.controller)
        if self.plan["gang"]:
            environ |= {name: str(value) for name, value in self.peers.ranks().items()}
        files = [os.path.join(self.folder, name) for name in self.plan["files"]]
        command = ["python", *files] if files else list(self.plan["command"])
        if command[0] in ("python", "python3"):
            command[0] = sys.executable
        workspace = self.plan["workspace"] or self.folder
        try:
            process = subprocess.Popen(
                command,
                cwd=workspace,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            raise CouldNotStart(f"{command[0]!r} could not be started in {workspace}: {error}") from error
        self.tree.main_pid, process.returncode = process.pid, 0  # the tree waits for it, and all it leaves
        pump = threading.Thread(target=self.lines.pump, args=[process.stdout], daemon=True)
        pump.start()
        return pump

    def _watch(self) -> str:
        """Wait until the program ends, or is ended; returns why."""
        limit = self.plan["timeout"]
        deadline = None if limit is None else time.monotonic() + limit
        threading.Thread(target=self._ask_iris, daemon=True).start()
        while True:
            self.tree.reap()
            if self.tree.status is not None:
                return "exited"
            grace = self._grace_of_stop()
            if grace is not None:
                self.tree.end(grace)
                return "stopped"
            if self.terminated:
                self._notice()
                self.tree.end(_GRACE)
                return "preempted"
            if deadline is not None and time.monotonic() >= deadline:
                self.tree.end(_LIMIT_GRACE)
                return "timed_out"
            if self._ended_there.is_set():
                self.tree.end(_LIMIT_GRACE)
                return "ended"
            time.sleep(PAUSE)

    def _ask_iris(self) -> None:
        """Look whether Iris has ended the attempt; on a thread, for a controller may not answer."""
        deadline = time.monotonic() + _ASKS_FOR
        while time.monotonic() < deadline:
            time.sleep(_ASKS_EVERY)
            if self.controller.has_ended(self.controller.look()):
                self._ended_there.set()
                return

    def _on_terminate(self, number: int, frame: "Any") -> None:
        self.terminated = True

    def _notice(self) -> None:
        # Only now: one that is ended by SIGKILL removes nothing. Without room for it SIGTERM still comes.
        with contextlib.suppress(OSError):
            os.makedirs(self.place, mode=0o700, exist_ok=True)
            with open(os.path.join(self.place, "notice"), "w") as file:
                file.write(str(time.time() + _GRACE))

    # --- how it ended ---

    def _ended(self, reason: str) -> int:
        status = self.tree.status or 0
        code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        if reason == "exited" and code == 0:
            return self._end("exited", 0, "")
        if reason == "stopped":
            return self._stopped()
        if reason == "ended":
            return self._ended_by_iris()
        if reason == "timed_out":
            return self._end(reason, code, f"ran longer than its timeout of {self.plan['timeout']:g} s", 124)
        if reason == "preempted":
            return self._end(reason, code, "its worker asked it to end", 143)
        if code == -9 and oom_kills() > self.oom:
            return self._end("out_of_memory", code, "was ended for want of memory", 137)
        if code < 0:
            return self._end("signalled", code, f"was ended by {signal_name(-code)}", 128 - code)
        return self._end("exited", code, f"exited with code {code}", code)

    def _ended_by_iris(self) -> int:
        self.controller.tell(ended={"reason": "stopped", "exit_code": None, "message": "Iris has ended it"})
        return 143

    def _stopped(self) -> int:
        """Report that the tree has ended because a user stopped it."""
        report = {"reason": "stopped", "exit_code": None, "message": f"replica {self.index} was stopped"}
        self.lines.write(END + json.dumps(report))
        self.controller.tell(ended=report, code=143)
        return 143

    def _keep_task(self, grace: float) -> None:
        """Keep the task when its tree has ended as a user wants it, until the launcher releases it.

        Iris ends the others of a gang, all tasks of a job without retries, and the jobs below it, when this
        task has ended. They use their time to save. Where there are retries Iris would start this one again,
        so that it stays until Iris ends it.
        """
        with contextlib.suppress(OSError), open(os.path.join(self.place, "ended"), "w"):
            pass
        stays = self.plan["max_retries_failure"] > 0
        looked_at = start = time.monotonic()
        while (stays or os.path.isdir(self.place)) and time.monotonic() - start < grace + _KEPT:
            if time.monotonic() - looked_at > _LOOKS_EVERY:
                if self.controller.has_ended(self.controller.look()):
                    return
                looked_at = time.monotonic()
            time.sleep(PAUSE)

    def _end_again(self, report: "dict[str, Any]", code: int) -> int:
        """End as an earlier attempt has, for good, before Iris took its worker."""
        if report["reason"] == "stopped":
            self.controller.tell(ended=report, code=code)
        else:
            self.peers.wait_for_ends(report, code)
        self.lines.write(END + json.dumps(report))
        return code

    def _end(self, reason: str, code: int, how: str, exit_code: "int | None" = None) -> int:
        """Describe how it ended; of a failure for good, when the others have ended too."""
        report: dict[str, Any] = {"reason": reason, "exit_code": code}
        if reason == "could_not_start":
            report |= {"exit_code": None, "message": f"replica {self.index} could not start: {how}"}
        elif how:
            report["message"] = f"replica {self.index} {how}{self.lines.last(self._secrets())}"
        if not how and self.index == 0 and self.plan["gang"] and self.plan["replicas"] > 1:
            self.peers.wait_until_met()
        exit_code = code if exit_code is None else exit_code
        if how and not self.plan["gang"] and self.plan["replicas"] > 1:
            self.peers.wait_for_ends(report, exit_code)
        self.lines.write(END + json.dumps(report))
        return exit_code

    def _secrets(self) -> "list[str]":
        found = {**os.environ, **hidden_variables()}
        return [found.get(name, "") for name in self.plan["secrets"]]
