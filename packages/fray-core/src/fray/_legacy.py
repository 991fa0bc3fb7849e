"""The older spellings, in one table, and what serves it.

A door looks here for a name that it does not have. An older module is a file of a few lines that hands
on what `OLDER_MODULES` lists. `docs/older-names.md` is made of these tables; a test runs every row.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from fray._discovery.plugins import missing_plugin, public_name
from fray._values.older import warn_older

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec


class Call(NamedTuple):
    """An older way to make a call that works, and today's; both are expressions."""

    older: str
    today: str
    warns: bool = False


class Home(NamedTuple):
    """Where the names of an older module are today.

    Args:
        module: As a program imports them.
        names: The first part of their names in the entry-point group `fray.names`, for a module of a backend.
    """

    module: str
    names: str | None = None


_BACKENDS = {
    **dict.fromkeys(("SyncContext", "ThreadContext", "ProcessContext", "RayContext"), "fray.job"),
    **dict.fromkeys(("LocalCluster", "RayCluster", "LocalClusterConfig"), "fray.cluster"),
    **dict.fromkeys(("MemoryQueue", "FileQueue", "HttpQueue", "HttpQueueServer"), "fray.queue"),
}
_CONTEXTS = {
    "create_job_ctx": "fray.create_context",
    "fray_default_job_ctx": "fray.use_context",
    "fray_job_ctx": "fray.get_job_context",
    "get_default_job_ctx": "fray.get_job_context",
}

# Door -> older name -> today's. Using one warns.
OLDER_NAMES: dict[str, dict[str, str]] = {
    "fray": {**_CONTEXTS, **{name: f"{door}.{name}" for name, door in _BACKENDS.items()}},
    "fray.job": _CONTEXTS,
    "fray.cluster": {"device_flops_for_jax_device": "fray_resources.device_flops_for_jax_device"},
    "fray.queue": {},
    "fray.types": {},
}

# Older module -> where its names are. Importing a name from one warns, once for each module.
OLDER_MODULES: dict[str, Home] = {
    "fray.backend.ray.ray_deps": Home("fray_ray.deps", "cluster.ray.deps"),
    "fray.cluster.base": Home("fray.cluster"),
    "fray.cluster.device_flops": Home("fray_resources"),
    "fray.cluster.local_cluster": Home("fray.cluster"),
    "fray.cluster.ray": Home("fray.cluster"),
    "fray.cluster.ray.deps": Home("fray_ray.deps", "cluster.ray.deps"),
    "fray.cluster.ray.tpu": Home("fray_ray", "cluster.ray.tpu"),
    "fray.job.context": Home("fray.job"),
    "fray.queue.base": Home("fray.queue"),
    "fray.queue.file": Home("fray.queue"),
    "fray.queue.http": Home("fray.queue"),
}

# Names beside those of the doors that work as they are: the design keeps them.
ALIASES = {
    "fray.ExecutionContext": "fray.JobContext",
    "fray.job.ExecutionContext": "fray.JobContext",
    "fray.EnvironmentConfig.create": "fray.create_environment",
}

# `request`, `context`, `Counter`, `double` and `serve` stand for a program's own.
OLDER_CALLS = (
    Call('create_context(context_type="sync")', 'create_context("sync")'),
    Call('create_context("auto")', "get_job_context()"),
    Call("context.create_task(double, args=(4,))", "context.create_task(double, 4)"),
    Call(
        'context.run(double, 4, name="stage")',
        'context.create_task(double, 4, options=TaskOptions(name="stage"))',
    ),
    Call('context.create_actor(Counter, kwargs={"start": 5})', "context.create_actor(Counter, start=5)"),
    Call("actor.value.remote()", "actor.value()"),
    Call("actor.value.options(enable_task_events=False).remote()", "actor.value()"),
    Call(
        'Entrypoint(callable=serve, function_args={"model": "tiny"})',
        'Entrypoint.from_callable(serve, kwargs={"model": "tiny"})',
    ),
    Call('create_environment(extra_dependency_groups=["tpu"])', 'create_environment(extras=["tpu"])'),
    Call("EnvironmentConfig.create(extras=None)", "create_environment()"),
    Call("JobStatus.finished(JobStatus.FAILED)", "JobStatus.FAILED.finished", warns=True),
    Call("cluster.monitor(job_id).status", "cluster.wait(job_id).status"),
    Call(
        "LocalCluster(LocalClusterConfig(use_isolated_env=True)).spec",
        "LocalCluster(use_isolated_env=True).spec",
    ),
    Call('ResourceConfig.with_tpu("v4-8", slice_count=2)', 'ResourceConfig.with_tpu("v4-8", slices=2)'),
    Call('ResourceConfig.with_tpu(tpu_type="v4-8")', 'ResourceConfig.with_tpu("v4-8")'),
    Call('ResourceConfig.with_gpu(gpu_type="H100")', 'ResourceConfig.with_gpu("H100")'),
    Call("TpuConfig('v4-8').variant", "TpuConfig('v4-8').type"),
)

# What is gone, and what to use instead.
REPLACED: dict[str, str] = {
    "fray.backend.in_memory": "LocalClusterContext of fray for jobs, create_context('threadpool') for tasks",
    "fray.backend.ray.ray_cluster": "RayClusterContext of fray",
    "fray.cluster.FakeProcess": "LocalCluster, whose jobs are processes",
    "fray.cluster.TemporaryVenv": "create_environment(pip_packages=[...])",
    "fray.context": "get_job_context and use_context of fray",
    "fray.isolated_env": "create_environment(pip_packages=[...])",
    "fray.types.EntryPoint": "Entrypoint of fray, or a str or a callable",
    "fray.types.Resource": "TaskOptions(resources={...}) and ResourceConfig of fray",
}


def find_name(door: str, name: str) -> Any:
    """Answer `DOOR.NAME` for what the door does not have itself (PEP 562's `__getattr__`).

    Raises:
        AttributeError: There is no such name; the message names what replaced it, or which wheel has it.
    """
    today = OLDER_NAMES.get(door, {}).get(name)
    if today is None:
        try:
            return public_name(door.partition(".")[2], name)
        except AttributeError as error:
            raise _explained(door, name, error) from error.__cause__
    module, _, attribute = today.rpartition(".")
    found = getattr(import_module(module), attribute)
    warn_older(f"{door}.{name}", today)
    return found


def hand_on(older: str, name: str) -> Any:
    """Answer for a name of an older module.

    Raises:
        AttributeError: As `find_name`.
    """
    home = OLDER_MODULES[older]
    if name == "__all__" and home.names is None:
        return list(import_module(home.module).__all__)
    if name.startswith("_"):
        raise AttributeError(f"module {older!r} has no attribute {name!r}")
    try:
        found = public_name(home.names, name) if home.names else getattr(import_module(home.module), name)
    except AttributeError as error:
        raise _explained(older, name, error) from error.__cause__
    warn_older(older, home.module)
    return found


def _explained(module: str, name: str, error: AttributeError) -> AttributeError:
    replaced = REPLACED.get(f"{module}.{name}")
    return AttributeError(_gone(f"{module}.{name}", replaced), name=name) if replaced else error


def _gone(older: str, replaced: str) -> str:
    return f"there is no {older} any more; use {replaced}"


class OlderNamesFinder:
    """Explain why `from fray.cluster import NAME` cannot be answered.

    The import statement drops the message of an `AttributeError`, and then requests a submodule of that name;
    so `hasattr` can be False there, and the wheel to install is still named here.
    """

    def find_spec(
        self, fullname: str, path: "Sequence[str] | None" = None, target: object = None
    ) -> "ModuleSpec | None":
        """Find nothing.

        Raises:
            ImportError: A wheel is known that has, or had, that name.
        """
        if not fullname.startswith("fray."):
            return None
        if fullname in REPLACED:
            raise ImportError(_gone(fullname, REPLACED[fullname]), name=fullname)
        module, _, name = fullname.rpartition(".")
        error = _missing(module, name)
        if error is not None:
            raise error
        return None


def _missing(module: str, name: str) -> ImportError | None:
    if module in OLDER_MODULES:
        home = OLDER_MODULES[module]
        return missing_plugin(home.names, name) if home.names else _missing(home.module, name)
    today = OLDER_NAMES.get(module, {}).get(name)
    if today is not None:
        module, _, name = today.rpartition(".")
    if module != "fray" and module not in OLDER_NAMES:
        return None
    return missing_plugin(module.partition(".")[2], name)


def install_finder() -> None:
    """Have the finder asked after all others, whichever copy of this module was loaded before."""
    if not any(type(finder).__name__ == OlderNamesFinder.__name__ for finder in sys.meta_path):
        sys.meta_path.append(OlderNamesFinder())
