"""Jobs on an Iris controller: its jobs, tasks, attempts, logs and endpoints, under Fray's names."""

import contextlib
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from fray import ClusterUnavailableError, FrayError
from fray.backend import (
    FAMILY,
    ClusterCapabilities,
    Finding,
    Health,
    LogSource,
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
    ResourceConfig,
)
from fray_iris._connection import AlreadyThere, Iris, RefusedError
from fray_iris._endpoints import found, registration
from fray_iris._ids import IrisTask, iris_name, keyed_id, root_of
from fray_iris._reading import JobReader
from fray_iris._requests import IrisLaunch, check_request, launch_of
from fray_iris._stopping import await_ends, stop_replicas

_INTERVAL = 0.25
_ARRIVES_WITHIN = (0.5, 1.5, 3.0)  # seconds between looks for a job whose launch was not answered


class IrisCluster(ClusterBase):
    """Jobs on an Iris controller: spec `iris?controller=http://10.0.0.5:10000`.

    A request is one job of Iris, with a task for each replica. The controller keeps its state, its attempts,
    its log and its endpoints; nothing of it is kept where it was launched.

    Args:
        controller: The address of the controller; else that of the task that this runs in
            (`IRIS_CONTROLLER_ADDRESS`).
        user: Whose jobs these are; else the user that the controller, or this machine, reports.
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
        self._given_user, self._shared = user, shared_files
        self._longest_pause = self._log_pause = poll_interval
        self._found_user: str | None = None
        self._agreed: set[str] = set()  # ids that others may make too
        self._launches: dict[str, tuple[JobRequest, Mapping[str, str]]] = {}
        self._reader = JobReader(self.iris, lambda: self.user)

    def __reduce__(self) -> tuple[Any, ...]:
        opened = partial(
            IrisCluster,
            controller=self._spec.options["controller"],
            user=self._given_user,
            shared_files=self._shared,
            poll_interval=self._longest_pause,
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

    def own_job(self) -> str | None:
        """Return what Iris calls the job of this process; None outside of jobs, and in another cluster's."""
        inside = self._parent()
        return None if inside is None else self.iris_name(inside)

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
            # The answer to a first try may have been lost; who made an id alone need not ask.
            if plan.job_id in self._agreed and not self._has_launched(made.request):
                raise
        except RefusedError:
            raise
        except ClusterUnavailableError as error:
            if not self._arrived(made.request, error):
                raise

    def _arrived(self, request: Mapping[str, Any], error: ClusterUnavailableError) -> bool:
        """Whether a launch that was not answered has arrived all the same.

        Args:
            error: What it raised; notes what to do where this cannot be found out.
        """
        try:
            for pause in _ARRIVES_WITHIN:
                if self._has_launched(request):
                    return True
                time.sleep(pause)
            return self._has_launched(request)
        except ClusterUnavailableError:
            error.add_note(f"Whether it launched {request['name']} is not known: look for it with fray list")
            return False

    def _has_launched(self, request: Mapping[str, Any]) -> bool:
        """Whether the job of a name is that of this very request, which is noted with a word of its own."""
        answer = self.iris.status(request["name"])
        return answer is not None and list(answer[1].get("submit_argv", ())) == request["submit_argv"]

    # --- reading ---

    def _info(self, job_id: str) -> JobInfo | None:
        return self._reader.info(job_id)

    def _described(self, info: JobInfo) -> JobInfo:
        return self._reader.described(info)

    def _ids(self, below: str | None = None) -> Iterable[JobId]:
        return self._reader.ids(below)

    def _all_jobs(self, parent: str | None) -> Iterable[JobInfo]:
        if parent is not None:
            self.poll(parent)
        return self._reader.all(parent)

    def _read_log(self, job_id: str, replica: int | None, attempt: int, offset: int) -> bytes:
        data: bytes = self._log(job_id, replica, attempt).read(offset)[0]
        return data

    def _log(self, job_id: str, replica: int | None, attempt: int) -> LogSource:
        return self._reader.log(job_id, replica, attempt)

    # --- the end ---

    def terminate(self, job_id: str, grace: float = 10.0) -> None:
        """See `Cluster.terminate`. The jobs that it launched are stopped with it."""
        check_seconds("grace", grace, zero=True)
        if self.poll(job_id).finished:
            return
        self._stop(job_id, grace)
        for pause in poll_delays(longest=self._longest_pause):
            family = [job_id, *self._ids(job_id)]
            if all(info is None or info.finished for info in map(self._info, family)):
                return
            time.sleep(pause)

    def _stop(self, job_id: str, grace: float) -> None:
        """End a job and those below it: their trees first, then what Iris has of them."""
        names = [self.iris_name(each) for each in (job_id, *self._ids(job_id))]
        tasks = {name: self.iris.tasks(name) for name in names}
        stop_replicas(self.iris, (task for name in names for task in tasks[name]), grace)
        await_ends(self.iris, [name for name in names if tasks[name] and not self._starts_again(name)])
        self.iris.terminate(names[0])

    def _starts_again(self, name: str) -> bool:
        """Whether Iris may start a task of a job again that has ended."""
        answer = self.iris.status(name)
        return answer is not None and bool(answer[1].get("max_retries_failure"))

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
