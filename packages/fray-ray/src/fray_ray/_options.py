"""Fray's options in Ray's words. Pure: nothing here needs Ray."""

from collections.abc import Callable, Mapping
from typing import Any

from fray import ResourceConfig, UnsupportedError
from fray.backend import check_count, did_you_mean
from fray.job import ActorOptions, Lifetime, RuntimeEnv, TaskOptions

STREAM_BUFFER = 64
"""Items that a generator task may be ahead of its consumer."""

PREEMPTION_PROOF = "head_node"
"""The resource by which clusters mark nodes that stay; Ray's own mark of the head node is the fallback."""
RAY_HEAD = "node:__internal_head__"
A_LITTLE = 0.001
"""The amount of a resource that only selects a node."""

Sender = Callable[[tuple[Any, ...], dict[str, Any]], Any]
"""Makes one call of positional and keyword arguments, and returns what Ray's `remote` would."""

# What `@ray.remote` takes for tasks and actors alike, and means as a default of a whole context.
CONTEXT_OPTIONS = frozenset(
    {
        "accelerator_type",
        "enable_task_events",
        "fallback_strategy",
        "label_selector",
        "max_calls",
        "max_retries",
        "memory",
        "num_cpus",
        "num_gpus",
        "resources",
        "retry_exceptions",
        "runtime_env",
        "scheduling_strategy",
    }
)
_TASKS_ONLY = {"max_calls", "max_retries", "retry_exceptions"}
_NAMES = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}


def check_context_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a context that are Ray's own.

    Raises:
        ValueError: Ray has no such option, or it makes no sense for every task of a context.
    """
    for name, value in options.items():
        if name not in CONTEXT_OPTIONS:
            hint = did_you_mean(name, CONTEXT_OPTIONS)
            raise ValueError(
                f"context 'ray' has no option {name!r} (given {value!r}); accepted: address, local, "
                f"max_workers, namespace, placement_group, {', '.join(sorted(CONTEXT_OPTIONS))}"
                + (f"; {hint}" if hint else "")
            )
    said = {name: value for name, value in options.items() if value is not None}
    if "memory" in said:
        # Ray takes bytes, other contexts "8g" too.
        said["memory"] = ResourceConfig(ram=said["memory"]).ram_bytes
    if "max_retries" in said:
        check_count("max_retries", said["max_retries"], -1)  # Ray's own -1 is: as often as it takes
    return said


def ray_resources(amounts: Mapping[str, float]) -> dict[str, Any]:
    """Split amounts by name into Ray's options: CPUs, GPUs and memory have their own, the rest is custom."""
    known = {_NAMES[name]: amount for name, amount in amounts.items() if name in _NAMES}
    custom = {name: amount for name, amount in amounts.items() if name not in _NAMES and amount}
    if "memory" in known:
        known["memory"] = int(known["memory"])
    return {**known, **({"resources": custom} if custom else {})}


def ray_runtime_env(environment: RuntimeEnv | None) -> dict[str, Any]:
    """Return a task's environment as Ray's `runtime_env`.

    Raises:
        UnsupportedError: Packages are to be installed into a container image, which Ray does not do.
    """
    if not environment:
        return {}
    if environment.container_image and environment.package_requirements:
        raise UnsupportedError(
            f"Ray installs no packages into a container: put {list(environment.package_requirements)} "
            f"into the image {environment.container_image!r}"
        )
    parts = {
        "pip": list(environment.package_requirements),
        "env_vars": dict(environment.env),
        "image_uri": environment.container_image,
    }
    return {name: part for name, part in parts.items() if part}


def task_options(base: Mapping[str, Any], options: TaskOptions) -> dict[str, Any]:
    """Merge a task's options over those of its context."""
    merged = _merged(base, options.resources)
    # Ray would run a task four times whose worker dies; here nothing runs twice unless that was requested.
    said = options.max_retries
    merged["max_retries"] = base.get("max_retries", 0) if said is None else said
    if options.max_calls is not None:
        merged["max_calls"] = options.max_calls
    merged |= options.backend.get("ray", {})
    return _with_environment(merged, ray_runtime_env(options.runtime_env))


def actor_options(
    base: Mapping[str, Any],
    options: ActorOptions,
    namespace: str,
    cluster_resources: Mapping[str, float],
    *,
    asynchronous: bool = False,
) -> dict[str, Any]:
    """Merge an actor's options over those of its context.

    Args:
        cluster_resources: What the cluster has; looked at for `preemptible=False` only.
        asynchronous: Whether the class has an async method.
    """
    shared = {name: value for name, value in base.items() if name not in _TASKS_ONLY}
    # A context's CPUs and memory are what each task takes; actors coordinate, and take what they request.
    for name in ("num_cpus", "memory"):
        shared.pop(name, None)
    merged = {"num_cpus": 0, **_merged(shared, options.resources)}
    if not options.preemptible:
        merged["resources"] = {**stable_node(cluster_resources), **merged.get("resources", {})}
    if options.name is not None:
        merged |= {"name": options.name, "namespace": namespace, "get_if_exists": options.get_if_exists}
    if options.lifetime is Lifetime.DETACHED:
        merged["lifetime"] = "detached"
    concurrency = options.concurrency(asynchronous)
    merged |= {"max_concurrency": concurrency, "max_restarts": options.max_restarts}
    merged |= options.backend.get("ray", {})
    return _with_environment(merged, {})


def stable_node(cluster_resources: Mapping[str, float]) -> dict[str, float]:
    """Return the resource that keeps work on a node that is not preempted."""
    return {PREEMPTION_PROOF if PREEMPTION_PROOF in cluster_resources else RAY_HEAD: A_LITTLE}


def uses_accelerator(options: Mapping[str, Any]) -> bool:
    """Whether work under these Ray options requests a GPU, a TPU or another accelerator."""
    custom = options.get("resources", {})
    return bool(
        options.get("num_gpus")
        or options.get("accelerator_type")
        or any(name.startswith("TPU") for name in custom)
    )


def _merged(base: Mapping[str, Any], amounts: Mapping[str, float]) -> dict[str, Any]:
    asked = ray_resources(amounts)
    merged = {**base, **asked}
    if "resources" in base and "resources" in asked:
        merged["resources"] = {**base["resources"], **asked["resources"]}
    return merged


def _with_environment(merged: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    base = merged.get("runtime_env") or {}
    environment = {**base, **own}
    variables = {**base.get("env_vars", {}), **own.get("env_vars", {})}
    if uses_accelerator(merged):
        # Workers are reused, and one in which JAX was imported for the CPU must not get this task: Ray
        # keeps workers with different variables apart.
        variables.setdefault("FRAY_ACCELERATOR", "1")
    if variables:
        environment["env_vars"] = variables
    if environment:
        merged["runtime_env"] = environment
    return merged
