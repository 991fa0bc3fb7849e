"""What a backend can do: values that programs read, base classes refuse by, and the contracts test by.

A backend's class has `capabilities`, the most that it can do; an instance's own has what it can do as it is
configured. What is declared is tested by the contract; what is not declared is refused with
`UnsupportedError`, where it can be requested.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from fray._values.errors import UnsupportedError

Value = bool | int | str | None


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What the three types have in common."""

    def but(self, **changes: Value) -> Self:
        """Return these with some changed."""
        return replace(self, **changes)

    def to_dict(self) -> Mapping[str, Value]:
        """Return them by name, in the order in which they are declared."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def check(self, name: str, asked: str, instead: str) -> None:
        """Refuse what is not declared.

        Args:
            name: The capability that it needs.
            asked: What was requested, as the beginning of a sentence: `RayContext: max_retries`.
            instead: What the caller can do.

        Raises:
            UnsupportedError: The capability is not declared.
        """
        if not getattr(self, name):
            raise UnsupportedError(f"{asked} is not supported by this backend; {instead}")

    @classmethod
    def of(cls, backend: Any) -> Self | None:
        """Return what a backend's class or instance declares; None where it declares nothing."""
        declared = getattr(backend, "capabilities", None)
        return declared if isinstance(declared, cls) else None


@dataclass(frozen=True, kw_only=True)
class ContextCapabilities(Capabilities):
    """What a context can do.

    Attributes:
        inline: A task runs inside the call that submits it, so nothing is pending or concurrent.
        serializes: Arguments and results are pickled on their way, so what cannot be is refused.
        max_workers: `max_workers` says how many tasks run at the same time; else it is a hint.
        isolation: Tasks and actors run in processes of their own, which may die alone.
        streams: Generator functions are streaming tasks.
        run_ahead: Items that a producer may be ahead of its consumer, at the most.
        parked_streams: A producer that waits for its consumer holds no worker.
        nested_tasks: Tasks may run tasks and wait for them, to any depth.
        nested_threads: A task may wait for threads of its own that wait for tasks, on one worker too.
        actors: Actors can be made.
        named_actors: Actors can have a name, and be found by it.
        shared_actors: Named actors are shared by the programs of one namespace, and by the jobs of a family.
        detached_actors: Actors may outlive the context that made them.
        concurrent_actors: `max_concurrency` lets calls of one actor run at the same time.
        async_actors: An actor with async methods has one event loop for its life.
        interrupting_cancel: `cancel` stops a function that runs.
        enforced_resources: What a task reserves is not given to another meanwhile; else it is a hint.
        at_most_once: A task runs at most once, unless `max_retries` says otherwise.
        retries: `max_retries` runs a task again after the death of its worker.
        max_restarts: `max_restarts` constructs an actor again after the death of its process.
        runtime_env: A task may have environment variables, packages or a container of its own.
        reentrant: Calls may be made from finalizers, signal handlers and callbacks.
        program_end: A program that ends without `with` waits for its tasks, unless it failed.
        executor: `as_executor` and futures.
    """

    inline: bool = False
    serializes: bool = False
    max_workers: bool = False
    isolation: bool = False
    streams: bool = False
    run_ahead: int = 64
    parked_streams: bool = False
    nested_tasks: bool = False
    nested_threads: bool = False
    actors: bool = False
    named_actors: bool = False
    shared_actors: bool = False
    detached_actors: bool = False
    concurrent_actors: bool = False
    async_actors: bool = False
    interrupting_cancel: bool = False
    enforced_resources: bool = False
    at_most_once: bool = False
    retries: bool = False
    max_restarts: bool = False
    runtime_env: bool = False
    reentrant: bool = False
    program_end: bool = False
    executor: bool = True


@dataclass(frozen=True, kw_only=True)
class ClusterCapabilities(Capabilities):
    """What a cluster can do.

    Attributes:
        environments: `pip_packages` and extras are installed for the job.
        python_versions: `python=` and `requires-python` choose the interpreter.
        containers: `docker_image` is run.
        gpus: `GpuConfig` is granted, and enforced.
        tpus: `TpuConfig` is granted.
        multislice: A job may have several TPU slices.
        gangs: Replicas of a gang start, fail and are retried together, with rank variables.
        ports: A job may request ports.
        replicas: A job may have several replicas.
        retries: Failed and preempted replicas are started again, under two budgets.
        preemptible: `preemptible=False` keeps a job off nodes that can be preempted.
        tree_kill: How every process of a job is found when it ends: `cgroup`, `pid_namespace`, `subreaper`,
            or None where a child that left the tree may survive.
        enforced_memory: A job that takes more memory than it requested is ended.
        admission: Requests are counted against what there is, and wait.
        dependencies: `after=` other jobs.
        sweeps: `launch_many` makes many jobs that are followed, stopped and retried as one.
        endpoints: Replicas register servers by name, and `endpoints` finds them.
        retry: A job that has failed can be run again under its id.
        restart: A replica that runs can be ended and started again.
        snapshots: `snapshot=True` runs a copy of the workspace.
        usage: `JobInfo` says what a job used.
        log_limit: A log can be bounded.
        shared_between_machines: Programs on other machines see the same jobs.
        removal: Finished jobs can be removed.
        keys: A launch with a key happens once.
        labels: Jobs have labels, and are found by them.
        on_exit: A command is run when a job has ended, also if no program follows it.
    """

    environments: bool = False
    python_versions: bool = False
    containers: bool = False
    gpus: bool = False
    tpus: bool = False
    multislice: bool = False
    gangs: bool = False
    ports: bool = False
    replicas: bool = True
    retries: bool = False
    preemptible: bool = False
    tree_kill: str | None = None
    enforced_memory: bool = False
    admission: bool = False
    dependencies: bool = False
    sweeps: bool = False
    endpoints: bool = False
    retry: bool = False
    restart: bool = False
    snapshots: bool = False
    usage: bool = False
    log_limit: bool = False
    shared_between_machines: bool = False
    removal: bool = False
    keys: bool = False
    labels: bool = False
    on_exit: bool = False


@dataclass(frozen=True, kw_only=True)
class QueueCapabilities(Capabilities):
    """What a queue can do.

    Attributes:
        durable: What `push` has stored outlives the process, and a crash of the machine. Such a crash may
            bring an item back that was done just before.
        shared_between_processes: Several processes of a machine may use it.
        shared_between_machines: Several machines may use it.
        priorities: `push(priority=)`.
        delays: `push(delay=)`.
        ttl: `push(ttl=)`.
        keys: `push(key=)` stores an item once.
        replies: `push(reply=True)` returns a ticket.
        max_size: The number of items can be bounded.
        max_attempts: Items that fail too often go to the dead letters.
        waiting: `pop(wait=)` returns as soon as there is an item, without polling.
        steady_clock: Leases run on a clock that no step of the wall clock moves.
        exact_order: First in, first out, whatever the number of producers.
        purge: All items can be dropped at once.
        give_back: Items that were taken and not worked on go back without counting an attempt.
    """

    durable: bool = False
    shared_between_processes: bool = False
    shared_between_machines: bool = False
    priorities: bool = False
    delays: bool = False
    ttl: bool = False
    keys: bool = False
    replies: bool = False
    max_size: bool = False
    max_attempts: bool = True
    waiting: bool = False
    steady_clock: bool = False
    exact_order: bool = True
    purge: bool = True
    give_back: bool = False
