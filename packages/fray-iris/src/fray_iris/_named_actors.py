"""The named actors of a namespace: each a job of Iris, found by the name that this makes of the actor's."""

import contextlib
import hashlib
import json
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from pathlib import Path
from typing import Any

from fray import (
    ActorAlreadyExistsError,
    ActorDiedError,
    ActorNotFoundError,
    FrayError,
    JobNotFoundError,
    UnsupportedError,
)
from fray.backend import callable_name, dumps, is_generator_function, map_in_threads
from fray.cluster import (
    CpuConfig,
    Entrypoint,
    EnvironmentConfig,
    GpuConfig,
    JobId,
    JobRequest,
    ResourceConfig,
)
from fray.job import ActorOptions, Lifetime, actor_methods
from fray_iris._actor_host import OWNER_SILENT, Owner, host_actor
from fray_iris._actor_line import end_lines
from fray_iris._actors import IrisActor, found_actor
from fray_iris._cluster import IrisCluster
from fray_iris._connection import AlreadyThere, GoneError
from fray_iris._in_task.words import PLAN
from fray_iris._states import ENDED_JOBS

_AT_ONCE = 32  # actors that are notified, or ended, side by side
_RESERVED = frozenset({"CPU", "GPU", "memory"})  # by the job of an actor
_TRIES = 20  # generations of one name that are tried, where others make the same actor at the same time


class NamedActors:
    """Make named actors, find them, and end those that were made here.

    Args:
        cluster: Where their jobs run.
        namespace: Whose names these are.
        owns: Whether the actors that are made here end with `end`; a task's do not.
    """

    def __init__(self, cluster: IrisCluster, namespace: str, *, owns: bool) -> None:
        self.cluster, self.namespace = cluster, namespace
        self._owns = owns
        self._own: dict[str, IrisActor] = {}
        self._beating = False

    def make(
        self, cls: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: ActorOptions
    ) -> IrisActor:
        """Launch the job of an actor, or find that of its name."""
        assert options.name is not None
        _check_resources(options)
        label = f"{callable_name(cls)} {options.name!r}"
        methods = {name: is_generator_function(method) for name, method in actor_methods(cls).items()}
        made = dumps((cls, args, kwargs), f"an argument of {callable_name(cls)}()")
        inside = self.cluster.own_job()
        owner = _owner(options, inside)
        for _ in range(_TRIES):
            # One listing says both what lives and which number is next. If others have launched since, its
            # number is taken, and Iris refuses the name.
            jobs = self._jobs(options.name)
            latest = _living(jobs)
            if latest is not None:
                if not options.get_if_exists:
                    raise ActorAlreadyExistsError(options.name)
                return IrisActor(self.cluster.iris, latest, label, methods)
            job_id = JobId(f"{self._prefix(options.name)}{_next_generation(jobs)}")
            request = _request(
                options,
                [made, options, label, methods, owner, self.namespace],
                _environment(options, inside=inside is not None),
            )
            try:
                self.cluster.launch_as(request, job_id)
            except AlreadyThere:
                continue  # another was faster: the actor is its
            actor = IrisActor(self.cluster.iris, self.cluster.iris_name(job_id), label, methods)
            self._keep(actor, owner)
            return actor
        raise ActorDiedError(label, f"its job ended {_TRIES} times while others made it")

    def find(self, name: str) -> IrisActor:
        """Return the actor of a name; waits while its job is on its way.

        Raises:
            ActorNotFoundError: There is none.
        """
        latest = _living(self._jobs(name))
        found = None if latest is None else found_actor(self.cluster.iris, latest)
        if found is None:
            raise ActorNotFoundError(name)
        return found

    def kill(self, actor: IrisActor) -> None:
        """End an actor; its callers get the error at once."""
        self._own.pop(actor.job, None)
        _of_tasks.pop(actor.job, None)
        end_lines(actor.iris, actor.job, "it was killed")
        job_id = actor.job.partition("/")[2].partition("/")[2]
        with contextlib.suppress(JobNotFoundError, GoneError):  # it has ended, and Iris has removed it
            self.cluster.terminate(job_id, grace=0.0)

    def end(self, *, wait_for_calls: bool) -> None:
        """End the actors that were made here, but for detached ones.

        Raises:
            FrayError: One could not be ended; the others were.
        """
        own, self._own = list(self._own.values()), {}
        try:
            if wait_for_calls:
                wait([future for actor in own for future in actor.line.pending()])
        finally:
            # Side by side: a controller that is away holds up each.
            failures = map_in_threads(self._killed, own, _AT_ONCE, "fray-iris-kill")
        for failure in filter(None, failures):
            raise failure

    def _killed(self, actor: IrisActor) -> Exception | None:
        try:
            self.kill(actor)
        except (FrayError, ValueError) as error:  # with what Iris refuses
            return error
        return None

    def renew(self) -> None:
        """Let the actors that were made here know that this program lives."""
        _renew(self._own)

    def _prefix(self, name: str) -> str:
        digest = hashlib.sha256(f"{self.namespace}/{name}".encode()).hexdigest()[:12]
        return f"{JobId.new(f'actor-{name}').rpartition('-')[0][:60]}-{digest}-"

    def _jobs(self, name: str) -> list[Any]:
        prefix = self.cluster.iris_name(self._prefix(name))
        depth = prefix.count("/")
        return [job for job in self.cluster.iris.jobs(prefix) if job["job_id"].count("/") == depth]

    def _keep(self, actor: IrisActor, owner: Owner) -> None:
        """Let an actor live as long as its owner; a job is looked up in Iris by the actor itself."""
        if self._owns and (owner.program or owner.job):
            self._own[actor.job] = actor
        if owner.program and self._owns:
            self._beat()
        elif owner.program:
            _keep_for_tasks(actor)

    def _beat(self) -> None:
        """Let the actors of this program know that it lives."""
        if not self._beating:
            self._beating = True
            beat = threading.Thread(
                target=_beat, args=[weakref.ref(self)], name="fray-iris-alive", daemon=True
            )
            beat.start()


def _living(jobs: Sequence[Mapping[str, Any]]) -> str | None:
    """Return what Iris calls the one of an actor's jobs that lives."""
    for job in jobs:
        if job.get("state") not in ENDED_JOBS:
            return str(job["job_id"])
    return None


def _next_generation(jobs: Sequence[Mapping[str, Any]]) -> int:
    """Return a number behind those of all jobs of an actor: Iris has the name of a job once."""
    return 1 + max((int(job["job_id"].rpartition("-")[2]) for job in jobs), default=0)


def _owner(options: ActorOptions, job: str | None) -> Owner:
    """Return for whom an actor lives: a job of this Iris, or this program, which may be another's job."""
    if options.lifetime is Lifetime.DETACHED:
        return Owner()
    return Owner(program=True) if job is None else Owner(job)


def _environment(options: ActorOptions, *, inside: bool) -> EnvironmentConfig:
    """Return what an actor's job finds: as on Ray the environment of the job that makes the actor.

    Args:
        inside: Whether this is a job of the same Iris. Its plan says what was requested for it.
    """
    plan: dict[str, Any] = {}
    if inside:
        with contextlib.suppress(OSError, ValueError):
            plan = json.loads(Path(os.environ.get("IRIS_WORKDIR", ""), PLAN).read_bytes())
    # The job registers itself, which a controller that authenticates does for its users alone.
    names = {"IRIS_TOKEN", *plan.get("secrets", ())}
    own_image = "task_image" in options.backend.get("iris", {})
    return EnvironmentConfig(
        docker_image=None if own_image else plan.get("image"),
        pip_packages=plan.get("packages", ()),
        env_vars={name: os.environ[name] for name in sorted(names) if name in os.environ},
        extras=plan.get("extras", ()),
        python=plan.get("python"),
    )


def _request(options: ActorOptions, hosted: list[Any], environment: EnvironmentConfig) -> JobRequest:
    """Return the job of an actor.

    Args:
        hosted: The arguments of `host_actor`.
    """
    amounts = options.resources
    gpus = int(amounts.get("GPU", 0))
    resources = ResourceConfig(
        cpu=amounts.get("CPU") or 0.1,
        ram=int(amounts.get("memory", 512 << 20)),
        preemptible=options.preemptible,
        device=GpuConfig(count=gpus) if gpus else CpuConfig(),
    )
    return JobRequest(
        f"actor-{options.name}",
        Entrypoint.from_callable(host_actor, hosted),
        resources=resources,
        environment=environment,
        backend={name: given for name, given in options.backend.items() if name == "iris"},
        max_retries_failure=options.max_restarts,
        max_retries_preemption=options.max_restarts,
    )


def _check_resources(options: ActorOptions) -> None:
    """Refuse what the job of an actor cannot reserve.

    Raises:
        UnsupportedError: The message says what was asked, and what can be.
    """
    others = sorted(options.resources.keys() - _RESERVED)
    if others:
        raise UnsupportedError(
            f"the job of actor {options.name!r} cannot reserve {', '.join(others)} on Iris: "
            f"it has {', '.join(sorted(_RESERVED))}"
        )
    gpus = options.resources.get("GPU", 0)
    if gpus != int(gpus):
        raise UnsupportedError(f"actor {options.name!r} asks for {gpus:g} GPUs: Iris grants whole ones")


def _beat(actors: "weakref.ref[NamedActors]") -> None:
    while True:
        time.sleep(OWNER_SILENT / 6)
        alive = actors()
        if alive is None:
            return
        alive.renew()
        del alive


_of_tasks: dict[str, IrisActor] = {}  # by job, made by tasks of a program: they live as long as this process
_beating = False
_lock = threading.Lock()


def _keep_for_tasks(actor: IrisActor) -> None:
    """Let an actor live that a task made: the context that the task saw ends with it."""
    global _beating
    with _lock:
        _of_tasks[actor.job] = actor
        first, _beating = not _beating, True
    if first:
        threading.Thread(target=_beat_for_tasks, name="fray-iris-alive", daemon=True).start()


def _beat_for_tasks() -> None:
    global _beating
    while True:
        time.sleep(OWNER_SILENT / 6)
        _renew(_of_tasks)
        with _lock:
            if not _of_tasks:
                _beating = False
                return


def _renew(actors: dict[str, IrisActor]) -> None:
    map_in_threads(lambda actor: actor.line.renew(), list(actors.values()), _AT_ONCE, "fray-iris-renew")


def _forget() -> None:
    """In a forked child: the actors are its parent's."""
    global _of_tasks, _beating, _lock
    _of_tasks, _beating, _lock = {}, False, threading.Lock()


os.register_at_fork(after_in_child=_forget)
