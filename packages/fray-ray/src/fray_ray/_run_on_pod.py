"""Functions on TPU slices, for code that is inside a Ray job: no job of its own, the same gang."""

import asyncio
import contextlib
import logging
import os
import pickle
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from ray import cloudpickle

from fray import WorkerDiedError
from fray.backend import FAMILY, StopRequested, callable_name, check_count, unpack_exception
from fray.cluster import Entrypoint, ExitReason, JobStatus, ResourceConfig, TpuConfig
from fray_ray._connection import Connection
from fray_ray._context.captured import dumps_apart, loads_with
from fray_ray._head.job import new_machine
from fray_ray._head.job_board import JobBoard
from fray_ray._head.job_run import JobRun
from fray_ray._head.nodes import watch_draining
from fray_ray._head.output import Stdout
from fray_ray._head.record import JobRecord
from fray_ray._head.reservation_queue import ReservationQueue
from fray_ray._launcher.shipping import payload_of
from fray_ray._plan import Plan, hosts_of, labels_of, unit_counts
from fray_ray._ray_internals.environment import JOB_CONFIG

T = TypeVar("T")
_log = logging.getLogger("fray.ray")
# What makes the hosts part of the job that the caller is part of.
_OF_THE_JOB = (
    "FRAY_JOB_ID",
    "FRAY_CLUSTER_SPEC",
    "FRAY_CONTEXT_SPEC",
    FAMILY,
    JOB_CONFIG,
    "RAY_OVERRIDE_JOB_RUNTIME_ENV",
)
_RETURNED, _RAISED = map(pickle.dumps, ("returned", "raised"))  # what is before what a host has to say
_LOOK = 0.2  # seconds
_SAYS_EVERY = 3.0  # seconds between looks at what it waits for; a gang that finds room at once logs nothing
_GRACE = 10.0  # seconds from SIGTERM to SIGKILL where the caller goes away


def run_on_pod(
    fn: Callable[[], T],
    tpu_type: str,
    *,
    num_slices: int | Sequence[int] = 1,
    max_retries_preemption: int = 100,
    max_retries_failure: int = 0,
    cpu: float = 1,
    ram: str | int = "1g",
    env_vars: Mapping[str, str] | None = None,
) -> list[T]:
    """Run a function once on every host of TPU slices, each in a fresh process; return what each returned.

    Blocks until all have; the results are in the order of `FRAY_REPLICA_ID`. While it waits for slices, the
    logger `fray.ray` has a warning that says for which, and what the cluster has. The hosts start together;
    when one fails or is lost all are stopped and start again while the retries last. Nothing of it is
    left when this returns, is interrupted, or the driver that called it dies. Where a task or an actor
    called it and its worker is killed, Ray holds the slices until the job ends.

    Args:
        fn: Called without arguments; pickled, with what it refers to: references, handles of actors and
            contexts of the surrounding program too.
        tpu_type: Such as `v5litepod-16`.
        num_slices: How many slices; of several acceptable numbers, the largest that can be had now.
        cpu: CPUs of each host, for this function alone.
        ram: Memory of each host.
        env_vars: Variables to set on the hosts, beside those of the cluster's nodes.

    Raises:
        ValueError: The type or a number is wrong.
        WorkerDiedError: A host was lost, or ended without an exception, and no retry is left.
        Exception: What the function raised on the first host that failed, when no retry is left.
    """
    for name, retries in (("failure", max_retries_failure), ("preemption", max_retries_preemption)):
        check_count(f"max_retries_{name}", retries)
    replicas = num_slices if isinstance(num_slices, int) else tuple(num_slices)
    resources = ResourceConfig(cpu=cpu, ram=ram, device=TpuConfig(tpu_type), replicas=replicas)
    connection = Connection(None, None, local=False)
    connection.open()
    try:
        return _run(_plan(fn, resources, max_retries_preemption, max_retries_failure, dict(env_vars or {})))
    finally:
        connection.close()


def _run(plan: Plan) -> list[Any]:
    gang = _Gang(plan)
    try:
        gang.start()
        while not gang.ended.wait(_LOOK):
            pass  # a signal that another thread receives does not end a wait
    except BaseException:  # interrupted, maybe while the thread starts
        gang.stop(_GRACE)
        gang.ended.wait(2 * _GRACE)
        raise
    if gang.error is not None:
        raise gang.error
    status, _, message = gang.verdict
    if status is JobStatus.SUCCEEDED:
        return [_returned(host, result) for host, result in enumerate(gang.results)]
    raised = [result for result in gang.results if result is not None and result.startswith(_RAISED)]
    if raised:
        raise unpack_exception(pickle.loads(raised[0][len(_RAISED) :]))
    raise WorkerDiedError(message)


class _Gang(threading.Thread):
    """The gang of one call, on an event loop of its own: it ends with this process."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(name="run-on-pod", daemon=True)
        self._plan = plan
        self._lock = threading.Lock()  # the request to stop may come before there is a job
        self._loop: asyncio.AbstractEventLoop | None = None
        self._job: JobRun | None = None
        self._stop_request: StopRequested | None = None
        # In Python 3.11 a thread whose `join` was interrupted reads as ended while it runs.
        self.ended = threading.Event()
        self.error: Exception | None = None
        self.results: list[bytes | None] = []
        self.verdict: tuple[JobStatus, ExitReason, str | None] = (JobStatus.FAILED, ExitReason.LOST, None)

    def run(self) -> None:
        """Run it to its end."""
        try:
            asyncio.run(self._carry())
        except Exception as error:  # noqa: BLE001 - it is raised where the call waits
            self.error = error
        finally:
            self.ended.set()

    async def _carry(self) -> None:
        queue = ReservationQueue()
        board = JobBoard(self._plan, JobRecord(machine=new_machine(self._plan)), listed=False)
        job = JobRun(self._plan, board, queue, Stdout())
        with self._lock:
            self._loop, self._job = asyncio.get_running_loop(), job
            if self._stop_request is not None:
                job.request(self._stop_request)
        watching = watch_draining(lambda: [job], _LOOK)
        saying = _say_what_it_waits_for(self._plan.name, board)
        looking = [asyncio.create_task(each) for each in (queue.run(), watching, saying)]
        try:
            await job.run()
        finally:
            for task in looking:
                task.cancel()
        self.results = job.results
        self.verdict = board.machine.verdict or self.verdict

    def stop(self, grace: float) -> None:
        """End it, also where it has not begun."""
        with self._lock:
            self._stop_request = StopRequested(grace)
            if self._loop is not None and self._job is not None:
                with contextlib.suppress(RuntimeError):  # the loop is closed: the gang has ended by itself
                    self._loop.call_soon_threadsafe(self._job.request, self._stop_request)


async def _say_what_it_waits_for(name: str, board: JobBoard) -> None:
    """Log what a gang waits for, whenever that has changed: it is in no table that shows it."""
    said = None
    while True:
        await asyncio.sleep(_SAYS_EVERY)
        reason = board.info.pending_reason
        if reason is not None and reason != said:
            _log.warning("run_on_pod of %s: %s", name, reason)
        said = reason


def _returned(host: int, result: bytes | None) -> Any:
    """Return what a function returned.

    Raises:
        WorkerDiedError: It did not return: its process was ended with exit code 0.
    """
    if result is None or not result.startswith(_RETURNED):
        raise WorkerDiedError(f"host {host} ended without returning, with exit code 0")
    return pickle.loads(result.removeprefix(_RETURNED))


def _shipped(fn: Callable[[], Any]) -> Callable[[], Any]:
    """Return what the hosts call: the function, or one that joins the cluster before it unpickles it."""
    data, held = dumps_apart(fn, f"the function {callable_name(fn)}")
    if not held and b"ray." not in data:  # nor a context, or a function, placement group, ... of Ray's
        return fn
    owned: bytes = cloudpickle.dumps(held)  # type: ignore[no-untyped-call] # Ray's: with the owners of references
    return _Joined(data, owned)


class _Joined:
    """A function that refers to what only a process of the cluster can unpickle: references and handles."""

    def __init__(self, data: bytes, owned: bytes) -> None:
        self.data, self.owned = data, owned

    def __call__(self) -> Any:
        Connection(None, None, local=False).open()
        return loads_with(self.data, pickle.loads(self.owned))()


def _plan(
    fn: Callable[[], Any],
    resources: ResourceConfig,
    max_retries_preemption: int,
    max_retries_failure: int,
    env_vars: dict[str, str],
) -> Plan:
    name = getattr(fn, "__name__", type(fn).__name__)
    inherited = {key: os.environ[key] for key in _OF_THE_JOB if key in os.environ}
    return Plan(
        job_id=os.environ.get("FRAY_JOB_ID", name),
        submission=f"{name}-{secrets.token_hex(3)}",
        submitted_at=time.time(),
        name=name,
        choices=unit_counts(resources, gang=True),
        hosts=hosts_of(resources),
        gang=True,
        resources=resources,
        labels=labels_of(resources),
        command=None,
        payload=payload_of(Entrypoint.from_callable(_shipped(fn)), None),
        environ={**env_vars, **inherited},
        secrets=tuple(env_vars.values()),
        cwd=None,
        pip=(),
        max_retries_failure=max_retries_failure,
        max_retries_preemption=max_retries_preemption,
        timeout=None,
        placement_timeout=None,
        returns=True,
    )
