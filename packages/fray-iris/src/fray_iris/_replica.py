"""Run one replica inside a task of Iris: start it, pass on its lines, end its whole tree, say how it ended.

This file is sent along with each job and run by its path, with the standard library alone: in the environment
that Iris has made for a task there need not be any Fray. Iris starts a task, ends it by SIGKILL, and keeps
its exit code and the last line on its stderr. What a replica of Fray is promised beside that is done here:

- SIGTERM, and time to save, before it ends: the folder `PLACE` takes the word, from a command that Iris runs
  in the container (`exec_in_container`);
- an end of the whole tree, children with sessions of their own included;
- ranks, and where a gang meets; ports; a limit of time for each attempt;
- independent replicas end one by one: Iris ends all tasks of a job when one has failed for good, so a replica
  that has failed for good keeps its task until the others have ended.
"""

import collections
import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

END = "fray-replica-ended "
STATE = "fray-replica-state "
FLUSH = "fray-replica-flush"
# Where a command that Iris runs beside the task looks, whatever TMPDIR is.
PLACE = "/tmp/fray-iris-"  # noqa: S108
PLAN = "_fray_plan.json"
_LAST_LINES, _LAST_BYTES = 20, 4096
_SHORTEST_SECRET = 6
_LONGEST_LINE = 1 << 20
_PAUSE = 0.02
_QUIET = 0.15  # seconds after a line until a reader that buffers is made to give it away
_MEETS_WITHIN = 300.0
_CANCELLED_WITHIN = (
    60.0  # seconds in which `terminate` tells Iris of the end of a task whose tree it has ended
)
# Iris leaves a task that it has ended alone for the first 30 seconds of its life, so that it asks by itself
# then.
_ASKS_FOR, _ASKS_EVERY = 35.0, 0.5
_GRACE = 25.0  # of the 30 seconds that Kubernetes leaves
_LIMIT_GRACE = 5.0
_SERVICE = "/iris.cluster.ControllerService/"
_OVER = ("TASK_STATE_SUCCEEDED", "TASK_STATE_FAILED", "TASK_STATE_KILLED", "TASK_STATE_WORKER_FAILED",
         "TASK_STATE_UNSCHEDULABLE", "TASK_STATE_PREEMPTED")  # fmt: skip


def main() -> "NoReturn":
    """Run the replica of the plan beside this file; ends as its program does."""
    folder = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(folder, PLAN)) as file:
        replica = Replica(json.load(file), folder)
    try:
        code = replica.run()
    finally:
        replica.close()
    sys.stderr.flush()
    os._exit(code)


class CouldNotStart(Exception):  # noqa: N818 - how an attempt ends
    """What a replica was to have is not there."""


class Replica:
    """One attempt of one replica."""

    def __init__(self, plan: "dict[str, Any]", folder: str) -> None:
        self.plan, self.folder = plan, folder
        wire = os.environ["IRIS_TASK_ID"]
        self.task, _, attempt = wire.partition(":")
        self.attempt, self.index = int(attempt or 0), int(self.task.rpartition("/")[2])
        self.controller = os.environ.get("IRIS_CONTROLLER_ADDRESS", "")
        self.place = place_of(self.task, self.attempt)
        self.ports: dict[str, int] = {}
        self.lines = Lines()
        self.main_pid, self.status = 0, None  # type: int, int | None
        self.terminated = False
        self.oom = oom_kills()

    # --- from start to end ---

    def run(self) -> int:
        """Run the program to its end; returns the code that the task ends with."""
        os.makedirs(self.place, mode=0o700, exist_ok=True)
        become_subreaper()
        signal.signal(signal.SIGTERM, self._on_terminate)
        if self._unwanted():
            self._tell(ended={"reason": "stopped", "exit_code": None, "message": "Iris has ended it"})
            return 143
        try:
            pump = self._start()
        except CouldNotStart as error:
            if self.stopping():
                return self._stopped()
            return self._end("could_not_start", 127, str(error))
        reason = self._watch()
        self._kill_all()
        pump.join(5.0)
        return self._ended(reason)

    def close(self) -> None:
        """Leave nothing on the worker but the word that it has ended, for who waits for that."""
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

    def _start(self) -> threading.Thread:
        self._check_environment()
        environ = self._environ()
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
        self.main_pid, process.returncode = process.pid, 0  # it is waited for here, with all that it leaves
        pump = threading.Thread(target=self.lines.pump, args=[process.stdout], daemon=True)
        pump.start()
        return pump

    def _watch(self) -> str:
        """Wait until the program ends, or is ended; returns why."""
        limit = self.plan["timeout"]
        begun = asked = time.monotonic()
        deadline = None if limit is None else begun + limit
        stop = os.path.join(self.place, "stop")
        while True:
            self._reap()
            if self.status is not None:
                return "exited"
            if os.path.exists(stop):
                with open(stop) as file:
                    self._end_tree(float(file.read() or 0))
                return "stopped"
            if self.terminated:
                self._notice()
                self._end_tree(_GRACE)
                return "preempted"
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                self._end_tree(_LIMIT_GRACE)
                return "timed_out"
            if now - begun < _ASKS_FOR and now - asked >= _ASKS_EVERY:
                asked = now
                if self._unwanted():
                    self._end_tree(_LIMIT_GRACE)
                    return "ended"
            time.sleep(_PAUSE)

    def _ended(self, reason: str) -> int:
        status = self.status or 0
        code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        if reason == "exited" and code == 0:
            return self._end("exited", 0, "")
        if reason == "stopped":
            return self._stopped()
        if reason == "ended":
            self._tell(ended={"reason": "stopped", "exit_code": None, "message": "Iris has ended it"})
            return 143
        if reason == "timed_out":
            return self._end(reason, code, f"ran longer than its timeout of {self.plan['timeout']:g} s", 124)
        if reason == "preempted":
            return self._end(reason, code, "its worker asked it to end", 143)
        if code == -9 and oom_kills() > self.oom:
            return self._end("out_of_memory", code, "was ended for want of memory", 137)
        if code < 0:
            return self._end("signalled", code, f"was ended by {signal_name(-code)}", 128 - code)
        return self._end("exited", code, f"exited with code {code}", code)

    def _stopped(self) -> int:
        """Say that the tree has ended because a user stopped it: to who waits here, and to Iris."""
        report = {"reason": "stopped", "exit_code": None, "message": f"replica {self.index} was stopped"}
        self.lines.write(END + json.dumps(report))
        self._tell(ended=report)
        with open(os.path.join(self.place, "ended"), "w"):
            pass
        return 143

    def _unwanted(self) -> bool:
        """Whether Iris has ended this attempt."""
        try:
            task = self._call("GetTaskStatus", taskId=self.task).get("task", {})
        except CouldNotStart:
            return False
        own: list[Any] = [
            each for each in task.get("attempts", ()) if int(each.get("attemptId", 0)) == self.attempt
        ]
        return task.get("state") in _OVER or any(each.get("state") in _OVER for each in own)

    def _end(self, reason: str, code: int, how: str, exit_code: "int | None" = None) -> int:
        """Say how it ended; of a failure for good, when the others have ended too."""
        report: dict[str, Any] = {"reason": reason, "exit_code": code}
        if reason == "could_not_start":
            report |= {"exit_code": None, "message": f"replica {self.index} could not start: {how}"}
        elif how:
            report["message"] = f"replica {self.index} {how}{self.lines.last(self._secrets())}"
        if not how and self.index == 0 and self.plan["gang"] and self.plan["replicas"] > 1:
            self._wait_until_met()
        if how and not self.plan["gang"] and self.plan["replicas"] > 1:
            self._wait_for_others(report)
        self.lines.write(END + json.dumps(report))
        return code if exit_code is None else exit_code

    # --- what it finds ---

    def _environ(self) -> "dict[str, str]":
        plan = self.plan
        bin_ = os.path.dirname(sys.executable)
        environ = {**os.environ, **plan["environ"]}
        environ["PATH"] = os.pathsep.join([bin_, environ.get("PATH") or os.defpath])
        environ |= {
            "FRAY_REPLICA_ID": str(self.index),
            "FRAY_ATTEMPT": str(self.attempt + 1),
            "FRAY_HOST_ADDRESS": host_address(),
            "FRAY_PREEMPTION_NOTICE": os.path.join(self.place, "notice"),
        }
        for name in ("FRAY_CLUSTER_SPEC", "FRAY_JOB_CONTEXT", "FRAY_CONTEXT_SPEC"):
            if name in plan["environ"] and self.controller:  # as it is reached from here
                environ[name] = with_controller(plan["environ"][name], self.controller)
        if plan["paths"] and not plan["workspace"]:
            paths = [os.path.join(self.folder, path) for path in plan["paths"]]
            environ["PYTHONPATH"] = os.pathsep.join([*paths, environ.get("PYTHONPATH", "")]).rstrip(
                os.pathsep
            )
        for name in plan["ports"]:
            given = int(os.environ.get(f"IRIS_PORT_{name.upper()}") or 0)
            self.ports[name] = given or free_port()
            environ["FRAY_PORT_" + name.upper().replace("-", "_")] = str(self.ports[name])
        if self.ports:
            self._tell(ports=self.ports)
        if plan["gang"]:
            environ |= {name: str(value) for name, value in self._ranks().items()}
        return environ

    def _check_environment(self) -> None:
        """Refuse to run without what was asked for: some workers of Iris install nothing."""
        from importlib.metadata import PackageNotFoundError, distribution

        wanted = self.plan["python"]
        if wanted and ".".join(map(str, sys.version_info[:3])).split(".")[: wanted.count(".") + 1] != (
            wanted.split(".")
        ):
            raise CouldNotStart(f"Python {wanted} was asked for, and the worker has {sys.version.split()[0]}")
        for requirement in self.plan["packages"]:
            name = distribution_name(requirement)
            try:
                distribution(name)
            except (PackageNotFoundError, ValueError):
                raise CouldNotStart(
                    f"{requirement!r} was asked for and is not installed in the task: this worker of Iris "
                    f"installs "
                    "no packages, as those of a local Iris do not"
                ) from None

    def _ranks(self) -> "dict[str, object]":
        plan = self.plan
        units, hosts, slices = plan["gang"]
        address, ports = self._meeting()
        found: dict[str, object] = {"FRAY_COORDINATOR_ADDRESS": f"{address}:{ports[0]}"}
        if slices:
            slice_, host = divmod(self.index, hosts)
            return found | {
                "FRAY_SLICE_ID": slice_,
                "FRAY_SLICE_COUNT": units,
                "FRAY_HOST_ID": host,
                "FRAY_HOST_COUNT": hosts,
            }
        return found | {
            "RANK": self.index,
            "WORLD_SIZE": plan["replicas"],
            "LOCAL_RANK": 0,
            "LOCAL_WORLD_SIZE": 1,
            "MASTER_ADDR": address,
            "MASTER_PORT": ports[0],
        }

    def _meeting(self) -> "tuple[str, list[int]]":
        """Return where the gang meets in this attempt; the first replica says so by an endpoint of Iris."""
        job = self.task.rpartition("/")[0]
        name = f"{job}/fray-meeting"
        if self.index == 0 or self.plan["replicas"] == 1:
            address, ports = host_address(), [free_port()]
            if self.plan["replicas"] > 1:
                self._call(
                    "RegisterEndpoint",
                    name=name,
                    address=f"{address}:{ports[0]}",
                    taskId=self.task,
                    attemptId=self.attempt,
                )
            return address, ports
        deadline = time.monotonic() + _MEETS_WITHIN
        while time.monotonic() < deadline:
            for endpoint in self._call("ListEndpoints", prefix=name, exact=True).get("endpoints", ()):
                address, _, port = endpoint["address"].rpartition(":")
                self._tell(met=True)
                return address, [int(port)]
            if self.stopping():
                raise CouldNotStart("it was stopped before its gang had met")
            time.sleep(0.1)
        raise CouldNotStart(f"the first replica said within {_MEETS_WITHIN:g} s nowhere where the gang meets")

    def _wait_until_met(self) -> None:
        """Keep the endpoint of the meeting, which ends with this task, until all others have read it."""
        deadline = time.monotonic() + _MEETS_WITHIN
        while not self.stopping() and time.monotonic() < deadline:
            try:
                tasks = self._call("ListTasks", jobId=self.task.rpartition("/")[0]).get("tasks", [])
            except CouldNotStart:
                return
            others = [task for task in tasks if task.get("taskId") != self.task]
            if all(over(task) or '"met"' in task.get("statusTextSummaryMd", "") for task in others):
                return
            time.sleep(0.1)

    # --- the controller ---

    def _call(self, method: str, **request: "Any") -> "dict[str, Any]":
        """Ask the controller, in the JSON form of its own protocol.

        Raises:
            CouldNotStart: It did not answer.
        """
        for pause in (0.2, 1.0, 3.0, None):
            try:
                asked = urllib.request.Request(
                    self.controller.rstrip("/") + _SERVICE + method,
                    json.dumps(request).encode(),
                    {"Content-Type": "application/json"},
                )
                with urllib.request.urlopen(asked, timeout=30) as answer:
                    found = json.load(answer)
                    return found if isinstance(found, dict) else {}
            except (OSError, ValueError) as error:
                if pause is None:
                    raise CouldNotStart(f"Iris's controller did not answer {method}: {error}") from error
                time.sleep(pause)
        raise AssertionError  # the loop returns or raises

    def _tell(self, **state: "Any") -> None:
        """Set the summary of the task's status; where that cannot be, it is only not seen."""
        said = STATE + json.dumps({"attempt": self.attempt, "ports": self.ports, **state})
        try:
            self._call("SetTaskStatusText", taskId=self.task, statusTextSummaryMd=said)
        except CouldNotStart as error:
            self.lines.write(f"[fray] {error}")

    def _wait_for_others(self, report: "dict[str, Any]") -> None:
        """Keep the task after a failure for good until the other replicas have ended: Iris would end them."""
        told = False
        while True:
            try:
                tasks = self._call("ListTasks", jobId=self.task.rpartition("/")[0]).get("tasks", [])
                own = self._call("GetTaskStatus", taskId=self.task).get("task", {})
            except CouldNotStart:
                return
            failed = [
                each
                for each in own.get("attempts", ())
                if each.get("state") == "TASK_STATE_FAILED" and int(each.get("attemptId", 0)) != self.attempt
            ]
            if len(failed) < self.plan["max_retries_failure"]:
                return  # it starts again
            if not told:
                self._tell(ended=report)
                told = True
            others = [task for task in tasks if task.get("taskId") != self.task]
            if all(over(task) for task in others) or self.stopping():
                return
            time.sleep(0.25)

    # --- the tree ---

    def _on_terminate(self, number: int, frame: "Any") -> None:
        self.terminated = True

    def _notice(self) -> None:
        with open(os.path.join(self.place, "notice"), "w") as file:
            file.write(str(time.time() + _GRACE))

    def _reap(self) -> bool:
        """Take what has ended; returns whether anything is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.main_pid:
                self.status = status

    def _end_tree(self, grace: float) -> None:
        """SIGTERM for every process of the tree, and `grace` seconds for them to end."""
        for pid in descendants():
            kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + grace
        while self._reap() and time.monotonic() < deadline:
            time.sleep(_PAUSE)

    def _kill_all(self) -> None:
        while self._reap():
            for pid in descendants():
                kill(pid, signal.SIGKILL)
            time.sleep(0.005)

    def _secrets(self) -> "list[str]":
        values = [os.environ.get(name, "") for name in self.plan["secrets"]]
        return [value for value in values if len(value) >= _SHORTEST_SECRET]


class Lines:
    """The lines that a replica writes, as Iris takes them: whole, text, on stderr."""

    def __init__(self) -> None:
        self._last: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)
        self._lock = threading.Lock()
        # Iris's runtime for processes reads a line at a time and may keep the next ones in its buffer until
        # more comes; so a line that is no one's follows when it is quiet. In containers it reads otherwise.
        self._buffered = os.environ.get("IRIS_WORKDIR") != "/app"
        self._written = threading.Event()

    def pump(self, source: "Any") -> None:
        """Pass on what a program writes until nobody can write there any more."""
        if self._buffered:
            threading.Thread(target=self._flush_when_quiet, daemon=True).start()
        rest = b""
        while data := os.read(source.fileno(), 1 << 16):
            rest += data
            if rest.endswith(b"\r"):  # half of a line's end, perhaps
                continue
            *lines, rest = re.split(rb"\r\n|\n|\r", rest)
            for line in lines:
                self._pass_on(line)
            while len(rest) > _LONGEST_LINE:
                self._pass_on(rest[:_LONGEST_LINE])
                rest = rest[_LONGEST_LINE:]
        if rest:
            self._pass_on(rest.removesuffix(b"\r"))

    def _pass_on(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace")
        self._last.append(text)
        self.write(text)
        self._written.set()

    def write(self, line: str) -> None:
        """Write one line of whoever it is."""
        data = line.encode("utf-8", "replace") + b"\n"
        with self._lock:
            while data:
                data = data[os.write(2, data) :]

    def last(self, secrets: "list[str]") -> str:
        """Return how a message goes on with the last lines, without what is secret."""
        text = "\n".join(f"  {line}" for line in self._last)
        text = masked(text, secrets)[-_LAST_BYTES:]
        return f"\nits last lines:\n{text}" if text else "; it wrote nothing"

    def _flush_when_quiet(self) -> None:
        while True:
            self._written.wait()
            self._written.clear()
            if not self._written.wait(_QUIET):
                self.write(FLUSH)


def masked(text: str, secrets: "list[str]") -> str:
    """Return a text with `***` for each secret; one may be part of another."""
    hidden = bytearray(len(text))
    for secret in secrets:
        at = text.find(secret)
        while at >= 0:
            hidden[at : at + len(secret)] = b"\1" * len(secret)
            at = text.find(secret, at + 1)
    shown, before = [], 0
    for character, secret_ in zip(text, hidden, strict=True):
        if secret_ and not before:
            shown.append("***")
        elif not secret_:
            shown.append(character)
        before = secret_
    return "".join(shown)


def over(task: "dict[str, Any]") -> bool:
    """Whether a replica has ended, or failed for good and waits for the others."""
    return task.get("state") in _OVER or '"ended"' in task.get("statusTextSummaryMd", "")


def place_of(task: str, attempt: int) -> str:
    """Return the folder by which an attempt is told to end."""
    return PLACE + re.sub(r"[^A-Za-z0-9]+", "-", f"{task}.{attempt}").strip("-")[-150:]


def with_controller(spec: str, address: str) -> str:
    """Return a spec of Iris with the address of its controller as it is here; any other as it is."""
    name, mark, query = spec.partition("?")
    if name != "iris":
        return spec
    pairs = [pair for pair in query.split("&") if mark and not pair.startswith("controller=")]
    return "iris?" + "&".join(
        [f"controller={urllib.parse.quote(address, safe=':/,@')}", *filter(None, pairs)]
    )


def distribution_name(requirement: str) -> str:
    """Return the name of the distribution that a requirement asks for."""
    name, at, _ = requirement.partition("@")
    if at and "/" not in name:
        return name.strip()
    if "://" in requirement or requirement.startswith((".", "/")):
        file = requirement.rstrip("/").rpartition("/")[2]
        return file.split("-")[0] if file.endswith(".whl") else file.removesuffix(".tar.gz")
    found = re.match(r"[A-Za-z0-9._-]+", requirement.strip())
    return found.group() if found else requirement


def host_address() -> str:
    """Return where others reach this host."""
    return os.environ.get("IRIS_ADVERTISE_HOST") or socket.gethostname()


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])


def signal_name(number: int) -> str:
    """Return `SIGKILL` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def kill(pid: int, number: int) -> None:
    """Send a signal to a process that may be gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def descendants() -> "list[int]":
    """Return the processes below this one; those whose parents have ended are its own children by now."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if state != b"Z":
            parents[int(name)] = int(parent)
    found, level = [], {os.getpid()}
    while level:
        level = {pid for pid, parent in parents.items() if parent in level}
        found += sorted(level)
    return found


def become_subreaper() -> None:
    """Let processes whose parents end become children of this one."""
    ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0)


def oom_kills() -> int:
    """Return how many processes of this container were ended for want of memory."""
    try:
        with open("/sys/fs/cgroup/memory.events") as file:
            rows = dict(line.split() for line in file)
    except (OSError, ValueError):
        return 0
    return int(rows.get("oom_kill", 0))


if __name__ == "__main__":
    main()
