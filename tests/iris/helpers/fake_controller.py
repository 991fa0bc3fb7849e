"""A controller in this process, behind the modules that `fray_iris` imports of Iris.

Messages are dicts whose items are attributes too, so that their JSON form is what they are.
"""

import time
from collections.abc import Callable, Mapping
from enum import Enum
from itertools import islice
from types import ModuleType, SimpleNamespace
from typing import Any


class Code(Enum):
    """The codes of Connect that are read."""

    UNAVAILABLE = 1
    DEADLINE_EXCEEDED = 2
    NOT_FOUND = 3
    ALREADY_EXISTS = 4
    FAILED_PRECONDITION = 5
    INVALID_ARGUMENT = 6
    RESOURCE_EXHAUSTED = 7
    UNAUTHENTICATED = 8
    PERMISSION_DENIED = 9
    UNIMPLEMENTED = 10


class ConnectError(Exception):
    """What Iris's client raises."""

    def __init__(self, code: Code, message: str = "") -> None:
        super().__init__(code, message)
        self.code, self.message = code, message


class Message(dict[str, Any]):
    """A message of any kind; a field that is not set is an empty list, as one that repeats."""

    def __init__(self, **fields: Any) -> None:
        super().__init__((name, _message(value)) for name, value in fields.items())

    def __getattr__(self, name: str) -> Any:
        return self.get(name, [])

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def CopyFrom(self, other: "Message") -> None:
        """Be like another message."""
        self.clear()
        self.update(other)


class FakeController:
    """Keeps jobs, tasks, logs and endpoints, and does nothing with them."""

    def __init__(self) -> None:
        self.jobs: dict[str, Message] = {}
        self.requests: dict[str, Message] = {}
        self.tasks: dict[str, list[Message]] = {}
        self.logs: dict[str, list[str | tuple[int, str]]] = {}  # lines, each with its time in milliseconds
        self.served = 0  # lines
        self.lacks: set[str] = set()  # messages, fields and requests that the installed build has not
        self.endpoints: dict[str, Message] = {}
        self.lease: int | None = None  # milliseconds for which an endpoint is registered
        self.asked: list[str] = []
        self.timeouts: dict[str, float] = {}  # in seconds, of the latest request of each kind
        # Of each request, and of each that is done; what they raise is the answer.
        self.before: Callable[[str, Message], None] = lambda method, request: None
        self.after: Callable[[str, Message], None] = lambda method, request: None

    def call(self, method: str, request: Any, timeout_ms: int | None) -> Any:
        """Do what a request asks for."""
        self.asked.append(method)
        if timeout_ms is not None:
            self.timeouts[method] = timeout_ms / 1000
        self.before(method, request)
        answer = getattr(self, f"on_{method}")(request)
        self.after(method, request)
        return answer

    def add(self, name: str, state: str = "RUNNING", **task: Any) -> None:
        """Add a job of one task with one attempt."""
        states = {"state": f"TASK_STATE_{state}", "attempt_id": 0, **task}
        self.jobs[name] = Message(job_id=name, state=f"JOB_STATE_{state}")
        self.tasks[name] = [Message(task_id=f"{name}/0", state=states["state"], attempts=[states])]

    def on_launch_job(self, request: Message) -> Message:
        name = request.name
        if name in self.jobs:
            raise ConnectError(Code.ALREADY_EXISTS, name)
        self.requests[name] = request
        self.add(name)
        return Message(job_id=name)

    def on_get_job_status(self, request: Message) -> Message:
        if request.job_id not in self.jobs:
            raise ConnectError(Code.NOT_FOUND, request.job_id)
        return Message(job=self.jobs[request.job_id], request=self.requests.get(request.job_id, {}))

    def on_list_jobs(self, request: Message) -> Message:
        prefix = request.query.job_id_prefix
        found = [job for name, job in self.jobs.items() if name.startswith(prefix)]
        return Message(jobs=found, has_more=False)

    def on_list_tasks(self, request: Message) -> Message:
        if request.job_id not in self.tasks:
            raise ConnectError(Code.NOT_FOUND, request.job_id)
        return Message(tasks=self.tasks[request.job_id])

    def on_terminate_job(self, request: Message) -> Message:
        state = self.jobs[request.job_id].state
        if state == "JOB_STATE_RUNNING":
            self.add(request.job_id, "KILLED")
        return Message()

    def on_exec_in_container(self, request: Message) -> Message:
        for task in self.tasks[request.task_id.rpartition("/")[0]]:
            task.state = "TASK_STATE_FAILED"
        return Message(error="", exit_code=0)

    def on_list_endpoints(self, request: Message) -> Message:
        return Message(endpoints=[each for each in self.endpoints.values() if each.name == request.prefix])

    def on_register_endpoint(self, request: Message) -> Message:
        self.endpoints[request.endpoint_id] = request
        lease = {} if self.lease is None else {"lease_duration": {"milliseconds": str(self.lease)}}
        return Message(endpoint_id=request.endpoint_id, **lease)

    def on_unregister_endpoint(self, request: Message) -> Message:
        self.endpoints.pop(request.endpoint_id, None)
        return Message()

    def on_get_auth_info(self, request: Message) -> Message:
        return Message(provider="")

    def on_fetch_logs(self, request: Message) -> Message:
        log = self.logs.get(request.source, [])
        numbers = range(request.cursor, len(log))
        wanted = (
            (number, SimpleNamespace(data=line, timestamp=SimpleNamespace(epoch_ms=at)))
            for number in (reversed(numbers) if request.tail else numbers)
            for at, line in [_timed(log[number])]
            if not request.since_ms or at > request.since_ms
        )
        found = sorted(islice(wanted, request.max_lines), key=lambda each: each[0])
        self.served += len(found)
        cursor = found[-1][0] + 1 if found else request.cursor
        return Message(entries=[entry for _, entry in found], cursor=cursor)


class Outage:
    """A controller that is away for a while, by a clock that goes on in sleeps alone.

    Attributes:
        code: How requests fail meanwhile.
        request: Seconds that each of these takes.
    """

    def __init__(self, controller: FakeController) -> None:
        self._time = time.monotonic()
        self._until = self._time
        self.code, self.request = Code.UNAVAILABLE, 0.0
        controller.before = self.fail

    def begin(self, seconds: float) -> None:
        """Be away from now on."""
        self._until = self._time + seconds

    def now(self) -> float:
        """Be `time.monotonic`."""
        return self._time

    def sleep(self, seconds: float) -> None:
        """Be `time.sleep`."""
        self._time += seconds

    def fail(self, method: str, request: Message) -> None:
        """Be what comes before each request."""
        if self._time < self._until:
            self._time += self.request
            raise ConnectError(self.code, "away")


def modules(controller: FakeController) -> dict[str, ModuleType]:
    """Return the modules of Iris, by their names."""

    def client(**_: Any) -> Any:
        return _Client(controller)

    messages = _Messages(controller)
    entrypoint = SimpleNamespace(from_command=lambda *words: words)

    class EnvironmentSpec:
        def __init__(self, **fields: Any) -> None:
            self._fields = fields

        def to_proto(self) -> Message:
            fields = {**self._fields, "env_vars": {**self._fields["env_vars"], "HF_TOKEN": "of this machine"}}
            if "pip_packages" in controller.lacks:
                scripts = [f"install {fields.pop('pip_packages')} {fields.pop('extras')}"]
                return messages.EnvironmentConfig(**fields, setup_scripts=scripts)
            return messages.EnvironmentConfig(**fields)

    found: dict[str, dict[str, Any]] = {
        "connectrpc.errors": {"ConnectError": ConnectError},
        "connectrpc.code": {"Code": Code},
        "google.protobuf.json_format": {
            "ParseDict": _parsed,
            "ParseError": ValueError,
            "MessageToDict": lambda message, **_: message,
        },
        "iris.rpc.controller_pb2": {"Controller": messages},
        "iris.rpc.job_pb2": {"__getattr__": messages.__getattr__},
        "iris.rpc.controller_connect": {"ControllerServiceClientSync": client},
        "finelog.rpc.logging_connect": {"LogServiceClientSync": client},
        "finelog.rpc.logging_pb2": {"FetchLogsRequest": Message, "MATCH_SCOPE_EXACT": 1},
        "iris.version": {"client_revision_date": lambda: "2026-11-20"},
        "iris.cluster.types": {"Entrypoint": entrypoint, "EnvironmentSpec": EnvironmentSpec},
        "iris.cluster.client": {"resolve_job_user": lambda: "ada"},
        "iris.cluster.runtime.entrypoint": {
            "build_runtime_entrypoint": lambda *_: SimpleNamespace(setup_commands=[])
        },
    }
    made = {}
    for name, members in found.items():
        made[name] = ModuleType(name)
        vars(made[name]).update(members)
    return made


class _Messages:
    """All kinds of messages, with all fields but those that the build lacks."""

    def __init__(self, controller: FakeController) -> None:
        self._controller = controller

    def __getattr__(self, name: str) -> type[Message]:
        if name in self._controller.lacks:
            raise AttributeError(name)
        return type(name, (Message,), {"DESCRIPTOR": SimpleNamespace(fields_by_name=self)})

    def __contains__(self, field: str) -> bool:
        return field not in self._controller.lacks


class _Client:
    def __init__(self, controller: FakeController) -> None:
        self._controller = controller

    def __getattr__(self, method: str) -> Any:
        if method in self._controller.lacks:
            raise AttributeError(method)
        return lambda request, timeout_ms=None: self._controller.call(method, request, timeout_ms)

    def close(self) -> None:
        """Nothing is open."""


def _message(value: Any) -> Any:
    if isinstance(value, Mapping):
        return value if isinstance(value, Message) else Message(**value)
    return [_message(each) for each in value] if isinstance(value, list | tuple) else value


def _parsed(values: Mapping[str, Any], message: Message) -> Message:
    message.update(Message(**values))
    if "entrypoint" in message:  # what is set inside of it
        message.entrypoint.update(workdir_files={}, setup_commands=[])
        message.environment = Message()
    return message


def _timed(entry: Any) -> tuple[int, str]:
    """Return the time of a line, in milliseconds, and the line; one without a time has the first."""
    return entry if isinstance(entry, tuple) else (1, entry)
