"""Jobs on an Iris controller: its jobs, tasks, attempts, logs and endpoints, under Fray's names."""

import contextlib
import os
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

from fray import FrayError, JobNotFoundError
from fray.backend import (
    FAMILY,
    ClusterCapabilities,
    Finding,
    Health,
    Spec,
    check_key,
    check_seconds,
    invalid,
    plan_of,
    poll_delays,
    refuse_other_python,
)
from fray.cluster import (
    ClusterBase,
    Endpoint,
    EnvironmentConfig,
    JobId,
    JobInfo,
    JobPlan,
    JobRequest,
    LogStream,
    ResourceConfig,
    follow_logs,
    wait_for_jobs,
)
from fray_iris._connection import AlreadyThere, Iris
from fray_iris._endpoints import found, registration
from fray_iris._ids import IrisTask, iris_name, is_job_id, job_id_of, keyed_id, root_of
from fray_iris._logs import IrisLog
from fray_iris._requests import IrisLaunch, about_of, check_request, launch_of
from fray_iris._states import job_info, seconds_of
from fray_iris._stopping import await_ends, stop_replicas

_INTERVAL = 0.25
_AT_ONCE = 8  # jobs that are asked for side by side
_FORGETS = 4096  # jobs whose requests are remembered here


class IrisCluster(ClusterBase):
    """Jobs on an Iris controller: spec `iris?controller=http://10.0.0.5:10000`.

    A request is one job of Iris, with a task for each replica. The controller keeps its state, its attempts,
    its log and its endpoints; nothing of it is kept where it was launched.

    Args:
        controller: The address of the controller; else that of the task that this runs in
            (`IRIS_CONTROLLER_ADDRESS`).
        user: Whose jobs these are; else who the controller, or this machine, says this is.
        shared_files: Whether the workers see the files of this machine at the same paths, as those of a local
            Iris do. Then jobs run in the workspace itself; else in a copy of it that Iris takes along, and in
            which it makes their environment.
        poll_interval: Seconds between two questions to the controller while a job is waited for or followed.
    """

    capabilities = ClusterCapabilities(
        environments=True,
        python_versions=True,
        containers=True,
        gpus=True,
        tpus=True,
        gangs=True,
        ports=True,
        retries=True,
        preemptible=True,
        tree_kill="subreaper",
        admission=True,
        endpoints=True,
        snapshots=True,
        shared_between_machines=True,
        keys=True,
        labels=True,
    )
    _SUPPORTED = frozenset({"ports", "snapshot", "labels"})

    def __init__(
        self,
        *,
        controller: str | None = None,
        user: str | None = None,
        shared_files: bool = False,
        poll_interval: float = _INTERVAL,
    ) -> None:
        check_seconds("poll_interval", poll_interval)
        address = controller or os.environ.get("IRIS_CONTROLLER_ADDRESS")
        if not address:
            raise invalid(
                "controller",
                "the address of an Iris controller, e.g. iris?controller=http://10.0.0.5:10000",
                None,
            )
        address = address if "://" in address else f"http://{address}"
        options = {"controller": address}
        if user is not None:
            options["user"] = user
        if shared_files:
            options["shared_files"] = "true"
        if poll_interval != _INTERVAL:
            options["poll_interval"] = f"{poll_interval:g}"
        self._spec = Spec("iris", options)
        super().__init__(str(self._spec))
        self.iris = Iris(address)
        self._given_user, self._shared, self._interval = user, shared_files, poll_interval
        self._found_user: str | None = None
        self._agreed: set[str] = set()  # ids that others may make too
        self._launches: dict[str, tuple[JobRequest, Mapping[str, str]]] = {}
        self._abouts: dict[str, tuple[float | None, Mapping[str, Any]]] = {}
        self._ended: set[tuple[str, int, int]] = set()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        opened = partial(
            IrisCluster,
            controller=self._spec.options["controller"],
            user=self._given_user,
            shared_files=self._shared,
            poll_interval=self._interval,
        )
        return opened, ()

    @property
    def user(self) -> str:
        """Whose jobs these are: the first part of their names in Iris."""
        if self._given_user is not None:
            return self._given_user
        if self._found_user is None:
            inside = os.environ.get("IRIS_TASK_ID", "")
            self._found_user = inside.split("/")[1] if inside.startswith("/") else self.iris.user()
        return self._found_user

    def iris_name(self, job_id: str) -> str:
        """Return what Iris calls a job: for its own program, and its page."""
        return iris_name(self.user, job_id)

    def diagnose(self) -> list[Finding]:
        """Check that the controller answers, and has workers; for `fray doctor`."""
        try:
            workers = self.iris.workers()
        except (FrayError, ImportError) as error:
            return [Finding(check="iris", health=Health.ERROR, found=str(error))]
        healthy = sum(bool(worker.get("healthy")) for worker in workers)
        found_ = f"{self.iris.controller} answers; {healthy} of its {len(workers)} workers are healthy"
        return [Finding(check="iris", health=Health.OK, found=found_)]

    # --- launch ---

    def _check_supported(self, request: JobRequest) -> None:
        resources, environment = request.resources, request.environment or EnvironmentConfig()
        check_request(request)
        if environment.python is not None:
            refuse_other_python(request, environment.python)
        # The base refuses devices, containers and environments, which Iris has.
        plain = ResourceConfig(cpu=resources.cpu, ram=resources.ram, replicas=1)
        super()._check_supported(replace(request, resources=plain, environment=None, gang=None))

    def launch_request(self, request: JobRequest) -> IrisLaunch:
        """Return what `launch` would send to Iris, without sending it; the id is made up."""
        self._check_supported(request)
        job_id = JobId.new(request.name)
        plan = plan_of(request, job_id, self.spec)
        return launch_of(request, plan, self.iris_name(job_id), self._spec, shared_files=self._shared)

    def launch(self, request: JobRequest, /, *, key: str | None = None) -> JobId:
        """See `Cluster.launch`. A key is held by the controller: the id of the job is made of it."""
        if key is None:
            return super().launch(request)
        check_key(key)
        if not isinstance(request, JobRequest):
            raise invalid("request", "a JobRequest", request)
        self._check_supported(request)
        job_id = keyed_id(key, self._parent())
        if self._info(job_id) is None:
            with contextlib.suppress(AlreadyThere):  # another launch with this key came first
                self.launch_as(request, job_id)
        return job_id

    def launch_as(self, request: JobRequest, job_id: JobId) -> None:
        """Launch a job under an id that the caller has made.

        Raises:
            AlreadyThere: Iris has a job of that name.
        """
        self._check_supported(request)
        self._agreed.add(job_id)
        self._launch(request, job_id)

    def _plan(self, request: JobRequest, job_id: JobId, variables: Mapping[str, str]) -> JobPlan:
        plan = plan_of(request, job_id, self.spec, variables)
        self._launches[job_id] = request, variables
        return plan

    def _submit(self, plan: JobPlan) -> None:
        request, variables = self._launches.pop(plan.job_id)
        name = self.iris_name(plan.job_id)
        made = launch_of(request, plan, name, self._spec, variables, shared_files=self._shared)
        try:
            self.iris.launch(made.request, made.files, made.bundle)
        except AlreadyThere:
            if plan.job_id in self._agreed:
                raise
            # Nobody else has made this id: the answer to a first try was lost.

    # --- reading ---

    def _info(self, job_id: str) -> JobInfo | None:
        if not is_job_id(job_id):
            return None
        name = self.iris_name(job_id)
        answer = self.iris.status(name)
        if answer is None:
            return None
        job, request = answer
        return self._read(JobId(job_id), job, about_of(request))

    def _read(self, job_id: JobId, job: Mapping[str, Any], about: Mapping[str, Any]) -> JobInfo:
        tasks = self.iris.tasks(self.iris_name(job_id), whole=True)
        info = job_info(job_id, job, tasks, about)
        for task in info.tasks:
            latest = task.attempt + (info.finished or task.status.finished)
            self._ended.update((job_id, task.replica, attempt) for attempt in range(1, latest))
        return info

    def _described(self, info: JobInfo) -> JobInfo:
        answer = self.iris.status(self.iris_name(info.job_id))
        if answer is None:
            return info
        about = about_of(answer[1])
        resources = about.get("resources")
        return replace(
            info,
            command=about.get("entrypoint"),
            directory=about.get("directory"),
            resources=None if resources is None else ResourceConfig.from_dict(resources),
            environment=about.get("environment", {}),
            user=about.get("user") or self.user,
            commit=about.get("commit"),
            dirty=about.get("dirty"),
            children=tuple(sorted(child for child in self._ids(info.job_id) if child.parent == info.job_id)),
        )

    def _ids(self, below: str | None = None) -> Iterable[JobId]:
        prefix = f"/{self.user}/" if below is None else f"{self.iris_name(below)}/"
        found_ids = (job_id_of(self.user, job["job_id"]) for job in self.iris.jobs(prefix))
        return [job_id for job_id in found_ids if job_id is not None]

    def _all_jobs(self, parent: str | None) -> Iterable[JobInfo]:
        if parent is not None:
            self.poll(parent)
        prefix = f"/{self.user}/" if parent is None else f"{self.iris_name(parent)}/"
        jobs = [
            (job_id, job)
            for job in self.iris.jobs(prefix)
            if (job_id := job_id_of(self.user, job["job_id"])) is not None
            and (parent is None or job_id.parent == parent)
        ]
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="fray-iris") as threads:
            return list(threads.map(lambda each: self._read(each[0], each[1], self._about(*each)), jobs))

    def _about(self, job_id: JobId, job: Mapping[str, Any]) -> Mapping[str, Any]:
        """What was noted at a job's launch, which does not change: asked for once."""
        submitted = seconds_of(job.get("submitted_at"))
        known = self._abouts.get(job_id)
        if known is None or known[0] != submitted:  # another job of the same name
            answer = self.iris.status(self.iris_name(job_id))
            known = submitted, about_of(answer[1] if answer is not None else {})
            with self._lock:
                if len(self._abouts) >= _FORGETS:
                    self._abouts.clear()
                self._abouts[job_id] = known
        return known[1]

    def _read_log(self, job_id: str, replica: int | None, attempt: int, offset: int) -> bytes:
        data: bytes = self._log(job_id, replica, attempt).read(offset)[0]
        return data

    def _log(self, job_id: str, replica: int | None, attempt: int) -> Any:
        if replica is None or attempt < 1:
            return _EmptyLog()
        key = IrisTask(self.iris_name(job_id), replica, attempt - 1).log_key
        return IrisLog(self.iris, key, lambda: (job_id, replica, attempt) in self._ended)

    def monitor(
        self,
        job_id: str,
        /,
        *,
        replica: int | None = None,
        tail: int | None = None,
        since: float | None = None,
        grep: str | None = None,
        follow: bool = True,
    ) -> LogStream:
        """See `Cluster.monitor`."""
        self.poll(job_id)
        return follow_logs(
            partial(self._state_of, job_id),
            open_log=partial(self._log, job_id),
            replica=replica,
            tail=tail,
            since=since,
            grep=grep,
            follow=follow,
            interval=self._interval,
        )

    def _state_of(self, job_id: str) -> JobInfo:
        info = self._info(job_id)
        if info is None:
            raise JobNotFoundError(job_id, f"the cluster {self.spec!r}")
        return info

    def wait(self, job_id: Any, /, **options: Any) -> Any:
        """See `Cluster.wait`."""
        return wait_for_jobs(self, job_id, interval=self._interval, **options)

    # --- the end ---

    def terminate(self, job_id: str, grace: float = 10.0) -> None:
        """See `Cluster.terminate`. The jobs that it launched are stopped with it."""
        check_seconds("grace", grace, zero=True)
        if self.poll(job_id).finished:
            return
        self._stop(job_id, grace)
        for pause in poll_delays(longest=self._interval):
            family = [job_id, *self._ids(job_id)]
            if all(info is None or info.finished for info in map(self._info, family)):
                return
            time.sleep(pause)

    def _stop(self, job_id: str, grace: float) -> None:
        """End a job and those below it: their trees first, then what Iris has of them."""
        names = [self.iris_name(each) for each in (job_id, *self._ids(job_id))]
        tasks = [task for name in names for task in self.iris.tasks(name)]
        stop_replicas(self.iris, tasks, grace)
        answer = self.iris.status(names[0])
        if answer is not None and not answer[1].get("max_retries_failure"):  # else it would start again
            await_ends(self.iris, names)
        self.iris.terminate(names[0])

    # --- endpoints ---

    def endpoints(self, prefix: str = "", *, everywhere: bool | None = None) -> list[Endpoint]:
        """See `Cluster.endpoints`: what Iris's own registry has of this user's jobs."""
        inside = os.environ.get("FRAY_JOB_ID")
        own = inside is not None if everywhere is None else not everywhere
        family = os.environ.get(FAMILY) if own and inside else None
        job = root_of(inside) if inside else None
        return found(self.user, self.iris.endpoints(f"/{self.user}/"), prefix, family, job)

    def _register(self, endpoint: Endpoint) -> None:
        task = IrisTask.parse(os.environ.get("IRIS_TASK_ID", ""))
        asked = registration(self.user, endpoint, task)
        for each in self.iris.endpoints(asked["name"], exact=True):  # a second call replaces the first
            if each.get("task_id") == task.name:
                self.iris.unregister(each["endpoint_id"])
        self.iris.register(asked)


class _EmptyLog:
    """What a job writes before its replicas start: Iris writes that into the log of each task."""

    def read(self, offset: int) -> tuple[bytes, int]:
        return b"", offset

    def read_before(self, offset: int, size: int) -> tuple[bytes, int]:
        return b"", offset

    def end(self) -> int:
        return 0

    def since(self, time: float) -> int:
        return 0
