"""The only file that imports Iris: its controller, called with Iris's messages, answered with plain values.

Messages are handed over and taken in their JSON form, with the names of Iris's `.proto` files. So what is
requested and what is answered can be read without Iris, and a field that another version of it has does no
harm.
"""

import importlib
import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
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
            UnsupportedError: Iris says that no worker it could ever have fits.
        """
        messages = _load("iris.rpc.controller_pb2").Controller
        message = _parsed(request, messages.LaunchJobRequest())
        for name, data in files.items():
            message.entrypoint.workdir_files[name] = data
        _add_setup(message)
        if bundle is not None:
            message.bundle_blob = bundle
        message.client_revision_date = _revision_date()
        size = sum(map(len, files.values())) + len(bundle or b"")
        timeout = self._timeout + size / _BYTES_A_SECOND
        return str(self._ask("launch_job", message, timeout=timeout).job_id)

    def status(self, name: str) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
        """Return a job's status and the request that it was launched with; None where there is none."""
        messages = _load("iris.rpc.controller_pb2").Controller
        try:
            answer = self._ask("get_job_status", messages.GetJobStatusRequest(job_id=name))
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
        messages = _load("iris.rpc.controller_pb2").Controller
        listed = self._ask("list_tasks", messages.ListTasksRequest(job_id=name)).tasks
        found = []
        for task in listed:
            if whole and any(attempt.attempt_id for attempt in task.attempts):
                request = messages.GetTaskStatusRequest(task_id=task.task_id)
                task = self._ask("get_task_status", request).task
            found.append(_plain(task))
        return found

    def jobs(self, prefix: str) -> list[Mapping[str, Any]]:
        """Return the status of every job whose name begins so, without its tasks."""
        messages = _load("iris.rpc.controller_pb2").Controller
        found: list[Mapping[str, Any]] = []
        while True:
            query = messages.JobQuery(job_id_prefix=prefix, offset=len(found), limit=_PAGE)
            answer = self._ask("list_jobs", messages.ListJobsRequest(query=query))
            found += [_plain(job) for job in answer.jobs]
            if not answer.has_more or not answer.jobs:
                return found

    def terminate(self, name: str) -> None:
        """End a job and all below it, at once."""
        messages = _load("iris.rpc.controller_pb2").Controller
        self._ask("terminate_job", messages.TerminateJobRequest(job_id=name))

    def execute(self, task: str, command: Sequence[str], timeout: float) -> int | None:
        """Run a command in the container of a task; None where that was not possible."""
        messages = _load("iris.rpc.controller_pb2").Controller
        request = messages.ExecInContainerRequest(
            task_id=task, command=list(command), timeout_seconds=max(1, round(timeout))
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
        messages = _load("iris.rpc.controller_pb2").Controller
        message = _parsed(endpoint, messages.RegisterEndpointRequest())
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
        messages = _load("iris.rpc.controller_pb2").Controller
        self._ask("unregister_endpoint", messages.UnregisterEndpointRequest(endpoint_id=endpoint_id))

    def endpoints(self, prefix: str, *, exact: bool = False, patient: bool = True) -> list[Mapping[str, Any]]:
        """Return the endpoints whose names begin so, or are this.

        Args:
            patient: Whether to wait for a controller that has answered before, and is away.
        """
        messages = _load("iris.rpc.controller_pb2").Controller
        request = messages.ListEndpointsRequest(prefix=prefix, exact=exact)
        answer = self._ask("list_endpoints", request, patient=patient)
        return [_plain(endpoint) for endpoint in answer.endpoints]

    def workers(self) -> list[Mapping[str, Any]]:
        """Return the workers that the controller knows."""
        messages = _load("iris.rpc.controller_pb2").Controller
        return [_plain(worker) for worker in self._ask("list_workers", messages.ListWorkersRequest()).workers]

    def user(self) -> str:
        """Return the user: as the controller reports it, where it authenticates; else as Iris finds it."""
        job_pb2 = _load("iris.rpc.job_pb2")
        provider = self._ask("get_auth_info", job_pb2.GetAuthInfoRequest()).provider
        if provider:
            return str(self._ask("get_current_user", job_pb2.GetCurrentUserRequest()).user_id)
        return str(_load("iris.cluster.client").resolve_job_user())

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
        return self._called(method, lambda: getattr(controller, method)(request, **limit), patient=patient)

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
        raise ImportError(f"{_INSTALL} [{error}]") from error


def _parsed(values: Mapping[str, Any], message: Any) -> Any:
    return _load("google.protobuf.json_format").ParseDict(dict(values), message)


def _plain(message: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = _load("google.protobuf.json_format").MessageToDict(
        message, preserving_proto_field_name=True
    )
    return found


def _revision_date() -> str:
    """The date of this build of Iris, which its controller requests."""
    return str(_load("iris.version").client_revision_date())


def _add_setup(message: Any) -> None:
    """Add what Iris runs in a container before the command: it makes the environment of the bundle."""
    types = _load("iris.cluster.types")
    made = _load("iris.cluster.runtime.entrypoint").build_runtime_entrypoint(
        types.Entrypoint.from_command(*message.entrypoint.run_command.argv), message.environment
    )
    message.entrypoint.setup_commands[:] = made.setup_commands
