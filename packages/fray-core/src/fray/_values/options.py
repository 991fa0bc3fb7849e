"""What a task or an actor may request beyond its arguments."""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fray._values.checks import check_count, fits_a_program, plain_text

ASYNC_CONCURRENCY = 1_000  # calls of an async actor that run at the same time, by default


class Lifetime(enum.StrEnum):
    """How long an actor lives unless it is killed."""

    JOB = "job"
    """Until its context is shut down, or the job that made it ends."""
    DETACHED = "detached"
    """Until it is killed; on `sync` and `threadpool`, until the process ends."""


@dataclass(frozen=True)
class RuntimeEnv:
    """The environment that a task, an actor or a command needs.

    Args:
        package_requirements: Requirement strings, e.g. `["numpy>=2"]`.
        env: Environment variables to set; values are kept out of `repr`.
        container_image: An image reference, for backends that run containers.
    """

    package_requirements: Iterable[str] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    container_image: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.package_requirements, str):
            raise ValueError(
                f"package_requirements is a list of requirements, got the str {self.package_requirements!r}"
            )
        object.__setattr__(self, "package_requirements", tuple(self.package_requirements))
        object.__setattr__(self, "env", check_env("env", self.env))

    def __bool__(self) -> bool:
        return bool(self.package_requirements or self.env or self.container_image)


def check_env(what: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of environment variables; the values never appear in an error.

    Raises:
        ValueError: A name or a value is not text that an environment can hold.
    """
    if not isinstance(env, Mapping):
        raise ValueError(f"{what} must be a mapping of names to text, got a {type(env).__name__}")
    for name, value in env.items():
        if not isinstance(name, str) or not name or "=" in name or not fits_a_program(name):
            raise ValueError(f"{what}: {name!r} cannot be the name of an environment variable")
        if not isinstance(value, str) or not fits_a_program(value):
            kind = type(value).__name__
            raise ValueError(
                f"{what}[{name!r}] must be text without NUL or half of a character, got a {kind}"
            )
    return {plain_text(name): plain_text(value) for name, value in env.items()}


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """Options of one task.

    Args:
        resources: Amounts to reserve by name: `CPU`, `GPU`, `TPU` and custom names count units,
            `memory` counts bytes. A hint on `sync` and `threadpool`, enforced elsewhere.
        runtime_env: Environment of the task, if the backend can give it one of its own.
        name: Shown in logs and dashboards instead of the function's name.
        max_calls: Tasks of this function that a worker process runs before it is replaced.
        max_retries: How often the task runs again after its worker died; by default as often as its
            context says, which is 0 unless it was made with `max_retries`. An exception of the
            task's own is never retried.
        backend: Native options by the name of their backend, `{"ray": {...}}`; the others ignore them.
    """

    resources: Mapping[str, float] = field(default_factory=dict, hash=False)
    runtime_env: RuntimeEnv | None = None
    name: str | None = None
    max_calls: int | None = None
    max_retries: int | None = None
    backend: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "resources", _check_resources(self.resources))
        object.__setattr__(self, "backend", _check_backend(self.backend))
        if self.max_retries is not None:
            check_count("max_retries", self.max_retries, 0)
        if self.max_calls is not None:
            check_count("max_calls", self.max_calls, 1)


@dataclass(frozen=True, kw_only=True)
class ActorOptions:
    """Options of one actor.

    Args:
        name: Unique in the context's namespace; others find the actor by it.
        get_if_exists: Return the living actor of that name instead of raising; needs a name.
        lifetime: `Lifetime.JOB` or `Lifetime.DETACHED`.
        resources: As in `TaskOptions`, reserved as long as the actor lives. No CPU is reserved by default,
            because actors coordinate.
        preemptible: False keeps the actor off nodes that can be preempted.
        max_concurrency: Calls that may run at the same time; 1 runs them one by one, in order. By default
            1, and 1,000 for a class with an async method, whose calls share one event loop.
        max_restarts: How often it is constructed again, without its state, after its process died.
        backend: Native options by the name of their backend, `{"ray": {...}}`; the others ignore them.
    """

    name: str | None = None
    get_if_exists: bool = False
    lifetime: Lifetime = Lifetime.JOB
    resources: Mapping[str, float] = field(default_factory=dict, hash=False)
    preemptible: bool = True
    max_concurrency: int | None = None
    max_restarts: int = 0
    backend: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.name is not None and (not isinstance(self.name, str) or not self.name or "\0" in self.name):
            raise ValueError(f"an actor's name is non-empty text, got {self.name!r}")
        if self.get_if_exists and self.name is None:
            raise ValueError("get_if_exists=True needs a name to look for")
        try:
            object.__setattr__(self, "lifetime", Lifetime(self.lifetime))
        except ValueError:
            raise ValueError(f"lifetime must be 'job' or 'detached', got {self.lifetime!r}") from None
        object.__setattr__(self, "resources", _check_resources(self.resources))
        if self.max_concurrency is not None:
            check_count("max_concurrency", self.max_concurrency, 1)
        check_count("max_restarts", self.max_restarts, 0)
        object.__setattr__(self, "backend", _check_backend(self.backend))

    def concurrency(self, asynchronous: bool) -> int:
        """Return how many calls may run at the same time; `asynchronous`: the class has an async method."""
        return self.max_concurrency or (ASYNC_CONCURRENCY if asynchronous else 1)

    def merged(self, num_cpus: float | None = None, **given: Any) -> "ActorOptions":
        """Return these options with what was given as keywords winning over them; None means not given."""
        changes = {key: value for key, value in given.items() if value is not None}
        if num_cpus is not None:
            changes["resources"] = {**self.resources, "CPU": num_cpus}
        return replace(self, **changes) if changes else self


def _check_resources(resources: Mapping[str, float]) -> dict[str, float]:
    if not isinstance(resources, Mapping):
        raise ValueError(f"resources maps names to amounts, e.g. {{'CPU': 2}}, got {resources!r}")
    for name, amount in resources.items():
        number = isinstance(amount, int | float) and not isinstance(amount, bool)
        if not isinstance(name, str) or not name or not number or not 0 <= amount < float("inf"):
            raise ValueError(f"resources[{name!r}] must be a number of 0 or more, got {amount!r}")
    return dict(resources)


def _check_backend(options: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    fine = isinstance(options, Mapping) and all(
        isinstance(name, str) and isinstance(native, Mapping) for name, native in options.items()
    )
    if not fine:
        raise ValueError(f"backend maps a backend's name to its options, got {options!r}")
    return {name: dict(native) for name, native in options.items()}
