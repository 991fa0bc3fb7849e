"""The only file that imports Iris: its controller, called with Iris's messages, answered with plain values.

Messages are handed over and taken in their JSON form, with the names of Iris's `.proto` files. So what is
requested and what is answered can be read without Iris. Builds of Iris differ: a field that only the answers
of another build have does no harm, and a field without a value is left out of a request where the installed
build has none of its name. What a request needs and the build lacks is refused before anything is sent.
"""

import contextlib
import importlib
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from typing import Any

from fray import ClusterUnavailableError, FrayError, UnsupportedError
from fray_iris._endpoint_leases import EndpointLeases, lease_of

_INSTALL = (
    "fray-iris needs Iris (the distribution marin-iris) in this environment, of a build that your controller "
    "accepts: install the one that its owner gives out, or Iris from its source: the folders lib/rigging, "
    "lib/finelog and lib/iris of the repository marin-community/marin (pip install lib/rigging lib/finelog "
    "lib/iris)"
)
_TOO_OLD = "client is too old"
_PAGE = 500
_PAUSES = (0.1, 0.3, 1.0, 2.0)  # before a controller that is away is asked again, seconds
_OUTAGE, _LONGEST_PAUSE = 120.0, 5.0
"""Seconds for which a controller that has answered before may be away, and between two requests meanwhile."""
_READS = ("get_", "list_", "fetch_")  # how the requests begin that change nothing
_BYTES_A_SECOND = 1 << 19  # that a launch is given time for, beside what every request has
LINES = 5000
"""Of a log that are requested at once."""


class GoneError(KeyError):
    """Iris has nothing of this name: there was none, or it has removed it."""


class AlreadyThere(Exception):  # noqa: N818 - an answer, and no fault
    """Iris has a job of this name."""


class RefusedError(ClusterUnavailableError):
    """The controller answers, and does nothing for this process: to ask again is of no use."""


class Iris:
    """A connection to a controller; it connects at its first use, and any thread may use it.

    A controller that never answered is reported after a few seconds, because its address may be wrong. One
    that has answered is requested to read for two minutes more, so that its restart ends nobody who waits.

    Args:
        controller: The address, e.g. `http://10.0.0.5:10000`.
        token: What the controller knows its user by; None for the variable IRIS_TOKEN, if there is one.
        timeout: Seconds that one request may take.
    """

    def __init__(self, controller: str, token: str | None = None, timeout: float = 30.0) -> None:
        self.controller, self._token, self._timeout = controller, token, timeout
        self._lock = threading.Lock()
        self._made: tuple[Any, Any] | None = None
        self._answered = False
        self._leases = EndpointLeases()

    def __reduce__(self) -> tuple[Any, ...]:
        return Iris, (self.controller, self._token, self._timeout)

    # --- jobs ---

    def launch(self, request: Mapping[str, Any], files: Mapping[str, bytes], bundle: bytes | None) -> str:
        """Submit a job; returns the name that it has there.

        Raises:
            AlreadyThere: There is one of that name.
            UnsupportedError: Iris says that no worker it could ever have fits, or the installed build of it
                cannot request this.
        """
        message = _launch_request(request)
        for name, data in files.items():
            message.entrypoint.workdir_files[name] = data
        if bundle is not None:
            message.bundle_blob = bundle
        size = sum(map(len, files.values())) + len(bundle or b"")
        timeout = self._timeout + size / _BYTES_A_SECOND
        return str(self._ask("launch_job", message, timeout=timeout).job_id)

    def status(self, name: str) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
        """Return a job's status and the request that it was launched with; None where there is none."""
        try:
            answer = self._ask("get_job_status", _message("GetJobStatusRequest", job_id=name))
        except GoneError:
            return None
        return _plain(answer.job), _plain(answer.request)

    def tasks(self, name: str, *, whole: bool = False) -> Sequence[Mapping[str, Any]]:
        """Return the status of each task of a job, with its latest attempt.

        Args:
            whole: With all attempts: Iris returns these for one task at a time.

        Raises:
            GoneError: There is no such job.
        """
        listed = self._ask("list_tasks", _message("ListTasksRequest", job_id=name)).tasks
        found = []
        for task in listed:
            if whole and any(attempt.attempt_id for attempt in task.attempts):
                request = _message("GetTaskStatusRequest", task_id=task.task_id)
                task = self._ask("get_task_status", request).task
            found.append(_plain(task))
        return found

    def jobs(self, prefix: str) -> list[Mapping[str, Any]]:
        """Return the status of every job whose name begins so, without its tasks."""
        found: list[Mapping[str, Any]] = []
        while True:
            query = _message("JobQuery", job_id_prefix=prefix, offset=len(found), limit=_PAGE)
            answer = self._ask("list_jobs", _message("ListJobsRequest", query=query))
            found += [_plain(job) for job in answer.jobs]
            if not answer.has_more or not answer.jobs:
                return found

    def terminate(self, name: str) -> None:
        """End a job and all below it, at once."""
        self._ask("terminate_job", _message("TerminateJobRequest", job_id=name))

    def execute(self, task: str, command: Sequence[str], timeout: float) -> int | None:
        """Run a command in the container of a task; None where that was not possible."""
        request = _message(
            "ExecInContainerRequest",
            task_id=task,
            command=list(command),
            timeout_seconds=max(1, round(timeout)),
        )
        try:
            answer = self._ask("exec_in_container", request, timeout=timeout + self._timeout)
        except (FrayError, KeyError, ValueError):  # it has ended, its worker is gone, or Iris may not
            return None
        return None if answer.error else int(answer.exit_code)

    # --- logs ---

    def log(
        self, key: str, cursor: int = 0, *, since: int = 0, last: int = 0
    ) -> tuple[list[tuple[int, str]], int]:
        """Return lines of a log, each with its time in milliseconds, and the cursor behind them.

        Args:
            cursor: Only lines behind it.
            since: Only lines of a later time, in milliseconds; 0 for all.
            last: So many lines before the end of the log; 0 for the first ones.
        """
        logging_pb2 = _load("finelog.rpc.logging_pb2")
        _, logs = self._clients()
        request = logging_pb2.FetchLogsRequest(
            source=key,
            match_scope=logging_pb2.MATCH_SCOPE_EXACT,
            cursor=cursor,
            since_ms=since,
            max_lines=last or LINES,
            tail=bool(last),
        )
        answer = self._called("fetch_logs", lambda: logs.fetch_logs(request))
        lines = [(int(entry.timestamp.epoch_ms), str(entry.data)) for entry in answer.entries]
        return lines, max(cursor, int(answer.cursor))

    # --- endpoints ---

    def register(self, endpoint: Mapping[str, Any]) -> str:
        """Register an endpoint of a task's attempt for as long as this process lives; returns its id."""
        message = _parsed("RegisterEndpointRequest", endpoint)
        if hasattr(message, "endpoint_id"):  # older versions of Iris have no such field
            message.endpoint_id = str(uuid.uuid4())  # so that a second try registers it no second time
        answer = self._ask("register_endpoint", message)
        endpoint_id, seconds = str(answer.endpoint_id), lease_of(_plain(answer))
        if seconds is not None:
            self._leases.keep(endpoint_id, seconds, lambda: self._ask("register_endpoint", message))
        return endpoint_id

    def unregister(self, endpoint_id: str) -> None:
        """Remove an endpoint."""
        self._leases.drop(endpoint_id)
        self._ask("unregister_endpoint", _message("UnregisterEndpointRequest", endpoint_id=endpoint_id))

    def endpoints(self, prefix: str, *, exact: bool = False, patient: bool = True) -> list[Mapping[str, Any]]:
        """Return the endpoints whose names begin so, or are this.

        Args:
            patient: Whether to wait for a controller that has answered before, and is away.
        """
        request = _message("ListEndpointsRequest", prefix=prefix, exact=exact)
        answer = self._ask("list_endpoints", request, patient=patient)
        return [_plain(endpoint) for endpoint in answer.endpoints]

    def workers(self) -> list[Mapping[str, Any]]:
        """Return the workers that the controller knows."""
        return [
            _plain(worker) for worker in self._ask("list_workers", _message("ListWorkersRequest")).workers
        ]

    def user(self) -> str:
        """Return the user: as the controller reports it, where it authenticates; else as Iris finds it.

        Later builds of Iris have no such request, and name jobs by the user that Iris finds.
        """
        auth_info = getattr(_load("iris.rpc.job_pb2"), "GetAuthInfoRequest", None)
        if auth_info is not None and self._ask("get_auth_info", auth_info()).provider:
            request = _named("iris.rpc.job_pb2", "GetCurrentUserRequest")()
            return str(self._ask("get_current_user", request).user_id)
        return str(_named("iris.cluster.client", "resolve_job_user")())

    # --- requests ---

    def _clients(self) -> tuple[Any, Any]:
        with self._lock:
            if self._made is None:
                self._made = self._connected()
            return self._made

    def _connected(self) -> tuple[Any, Any]:
        connect = _load("iris.rpc.controller_connect")
        logging_connect = _load("finelog.rpc.logging_connect")
        interceptors = []
        token = self._token or os.environ.get("IRIS_TOKEN")
        if token:
            auth = _load("iris.rpc.auth")
            interceptors = [auth.AuthTokenInjector(auth.StaticTokenProvider(token))]
        milliseconds = int(self._timeout * 1000)
        controller = connect.ControllerServiceClientSync(
            address=self.controller, timeout_ms=milliseconds, interceptors=interceptors
        )
        logs = logging_connect.LogServiceClientSync(
            address=self.controller, timeout_ms=milliseconds, interceptors=interceptors
        )
        return controller, logs

    def close(self) -> None:
        """Release the connection; it is made again when it is needed."""
        with self._lock:
            made, self._made = self._made, None
        for client in made or ():
            client.close()

    def __del__(self) -> None:
        if self._made is not None:
            for client in self._made:
                client.close()

    def _ask(self, method: str, request: Any, timeout: float | None = None, *, patient: bool = True) -> Any:
        controller, _ = self._clients()
        limit = {} if timeout is None else {"timeout_ms": int(timeout * 1000)}
        send = getattr(controller, method, None)
        if send is None:
            raise _lacks(f"no request {method}")
        return self._called(method, lambda: send(request, **limit), patient=patient)

    def _called(self, method: str, call: Callable[[], Any], *, patient: bool = True) -> Any:
        errors, code = _load("connectrpc.errors"), _load("connectrpc.code").Code
        began = time.monotonic()
        for failed in count():
            try:
                answer = call()
            except errors.ConnectError as error:
                # These two come from a controller of Iris alone; others come from any server.
                self._answered = self._answered or error.code in (code.NOT_FOUND, code.ALREADY_EXISTS)
                waited = time.monotonic() - began if patient else _OUTAGE
                pause = None
                if error.code in (code.UNAVAILABLE, code.DEADLINE_EXCEEDED):
                    late = error.code is code.DEADLINE_EXCEEDED
                    pause = self._pause(method, failed, waited, late=late)
                if pause is None:
                    raise self._translated(method, error, code) from error
                time.sleep(pause)
            else:
                self._answered = True
                return answer
        raise AssertionError  # the last try returns or raises

    def _pause(self, method: str, failed: int, waited: float, *, late: bool) -> float | None:
        """Return the seconds after which a request that failed is sent again; None if it is not.

        Args:
            failed: How often it has failed before.
            waited: Seconds since it was sent first.
            late: Whether its answer did not come in time; else the controller was not reached.
        """
        # What registers is a task, which has the address of its controller from Iris itself.
        known = (self._answered and method.startswith(_READS)) or method == "register_endpoint"
        if known and waited < _OUTAGE:
            return _PAUSES[failed] if failed < len(_PAUSES) else _LONGEST_PAUSE
        # The controller passes on requests for logs, and gives its log server ten seconds.
        repeated = method != "exec_in_container" and (not late or method == "fetch_logs")
        return _PAUSES[failed] if repeated and failed < len(_PAUSES) else None

    def _translated(self, method: str, error: Any, code: Any) -> Exception:
        message = str(error.message)
        if error.code is code.NOT_FOUND:
            return GoneError(message)
        if error.code is code.ALREADY_EXISTS:
            return AlreadyThere(message)
        if _TOO_OLD in message:
            return RefusedError(
                f"the Iris controller {self.controller} refuses this marin-iris, because it was built too "
                f"long ago "
                f"({_revision_date() or 'no date of build is known'}): {message} Install the marin-iris that "
                f"its "
                "owner gives out now; jobs launched by a running job are let through"
            )
        if error.code is code.FAILED_PRECONDITION and "unschedulable" in message:
            return UnsupportedError(f"no worker of {self.controller} could ever run this: {message}")
        if error.code is code.UNIMPLEMENTED and self._answered:  # else it may be no controller of Iris
            return UnsupportedError(
                f"the Iris controller {self.controller} does not know the request {method}: it is of another "
                f"date than {_build()}, which is installed: install the one that its owner gives out now"
            )
        if error.code in (code.INVALID_ARGUMENT, code.RESOURCE_EXHAUSTED):
            return ValueError(f"Iris refuses this ({method}): {message}")
        if error.code in (code.UNAUTHENTICATED, code.PERMISSION_DENIED):
            return RefusedError(
                f"the Iris controller {self.controller} does not let this user ({method}): {message}; "
                "set IRIS_TOKEN, or log in as Iris says"
            )
        if error.code is code.FAILED_PRECONDITION:
            return FrayError(f"the Iris controller {self.controller} refuses this ({method}): {message}")
        return ClusterUnavailableError(
            f"the Iris controller {self.controller} cannot be asked ({method}): {message or error.code}; "
            f"check "
            "controller=, and that it runs"
        )


def _load(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        top = module.partition(".")[0]
        if error.name == module and sys.modules.get(top) is not None:  # Iris is there, and has it no more
            raise _lacks(f"no module {module}") from error
        raise ImportError(f"{_INSTALL} [{error}]") from error


def _named(module: str, name: str) -> Any:
    """Return what a module of Iris calls so.

    Raises:
        UnsupportedError: The installed build of Iris has none such.
    """
    found = getattr(_load(module), name, None)
    if found is None:
        raise _lacks(f"no {name} in {module}")
    return found


def _message(kind: str, /, **fields: Any) -> Any:
    """Make a message of the controller.

    Raises:
        UnsupportedError: The installed build of Iris has no such message, or lacks one of the fields.
    """
    make = getattr(_named("iris.rpc.controller_pb2", "Controller"), kind, None)
    if make is None:
        raise _lacks(f"no message {kind}")
    _check_fields(make, kind, fields)
    return make(**fields)


def _parsed(kind: str, values: Mapping[str, Any]) -> Any:
    """Make a message of its JSON form; a field without a value is left out where the build has none.

    Raises:
        UnsupportedError: The installed build of Iris lacks a field that has a value.
    """
    json_format, message = _load("google.protobuf.json_format"), _message(kind)
    _check_fields(message, kind, (name for name, value in values.items() if value))
    known = {name: value for name, value in values.items() if _has_field(message, name)}
    try:
        return json_format.ParseDict(known, message)
    except json_format.ParseError as error:
        raise _lacks(f"no {kind} as it is requested ({error})") from error


def _check_fields(message: Any, kind: str, names: Iterable[str]) -> None:
    for name in names:
        if not _has_field(message, name):
            raise _lacks(f"no field {name} in {kind}")


def _has_field(message: Any, name: str) -> bool:
    """Whether the installed build has a field, by a message of its kind, or by the kind itself."""
    return name in message.DESCRIPTOR.fields_by_name


def _launch_request(request: Mapping[str, Any]) -> Any:
    """Make the request of a launch, with the environment and its setup as the installed build has them."""
    rest = {name: value for name, value in request.items() if name != "environment"}
    message = _parsed("LaunchJobRequest", rest)
    message.environment.CopyFrom(_environment(request["environment"]))
    command = _named("iris.cluster.types", "Entrypoint").from_command(*message.entrypoint.run_command.argv)
    made = _named("iris.cluster.runtime.entrypoint", "build_runtime_entrypoint")(command, message.environment)
    message.entrypoint.setup_commands[:] = made.setup_commands
    if _has_field(message, "client_revision_date"):
        message.client_revision_date = _revision_date()
    return message


def _environment(wanted: Mapping[str, Any]) -> Any:
    """Make the environment of a job by Iris's own builder: each build renders it in fields of its own.

    The builder adds variables of this machine, tokens among them; a job gets those of its request alone.
    """
    variables, python = wanted["env_vars"], wanted["python_version"]
    spec = _named("iris.cluster.types", "EnvironmentSpec")(
        pip_packages=wanted["pip_packages"], env_vars=variables, extras=wanted["extras"]
    )
    if not hasattr(spec, "to_proto"):
        raise _lacks("no EnvironmentSpec.to_proto, which makes the environment of a job")
    made = spec.to_proto()
    made.env_vars.clear()
    made.env_vars.update(variables)
    if _has_field(made, "python_version"):
        made.python_version = python
    elif python != f"{sys.version_info.major}.{sys.version_info.minor}":
        raise _lacks(
            f"no environments of another Python than the launcher's, and python={python!r} is requested"
        )
    return made


def _lacks(what: str) -> UnsupportedError:
    return UnsupportedError(
        f"{_build()}, which is installed, has {what}: request no such thing, or install a build that has it, "
        "and that your controller accepts"
    )


def _build() -> str:
    """Name the installed build of Iris."""
    number = date = ""
    with contextlib.suppress(PackageNotFoundError):
        number = version("marin-iris")
    with contextlib.suppress(ImportError, AttributeError):
        date = importlib.import_module("iris.version").client_revision_date()
    return f"marin-iris {number or 'of no known version'} (built {date or 'on no known date'})"


def _plain(message: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = _load("google.protobuf.json_format").MessageToDict(
        message, preserving_proto_field_name=True
    )
    return found


def _revision_date() -> str:
    """The date of this build of Iris, which its controller requests."""
    return str(_load("iris.version").client_revision_date())
