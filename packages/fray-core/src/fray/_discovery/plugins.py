"""Find what is installed: entry points are read by name first and imported one at a time.

Listing reads metadata only; loading imports the one plugin that was requested. Fray's own
backends register exactly like those of other authors.
"""

import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fray._values.errors import PluginConflictError, PluginError, PluginLoadError, PluginNotFoundError

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint

CONTEXTS, CLUSTERS, QUEUES, COMMANDS, LISTENERS, NAMES, GANG_RUNTIMES = (
    f"fray.{group}"
    for group in ("contexts", "clusters", "queues", "commands", "listeners", "names", "gang_runtimes")
)
KINDS = {
    CONTEXTS: "context type",
    CLUSTERS: "cluster type",
    QUEUES: "queue scheme",
    COMMANDS: "command",
    LISTENERS: "listener",
    NAMES: "name",
    GANG_RUNTIMES: "engine for the nodes of a job",
}

# Which known distribution would provide a name that is not installed. Text only: nothing here is imported.
_PROVIDERS = {
    CONTEXTS: {
        "sync": "fray-local",
        "threadpool": "fray-local",
        "process": "fray-local",
        "ray": "fray-ray",
        "iris": "fray-iris",
    },
    CLUSTERS: {"local": "fray-local", "ray": "fray-ray", "slurm": "fray-slurm", "iris": "fray-iris"},
    QUEUES: {
        "memory": "fray-queue",
        "sqlite": "fray-queue",
        "file": "fray-queue",
        "gs": "fray-queue[gcs]",
        "s3": "fray-queue[s3]",
        "abfs": "fray-queue[azure]",
        "http": "fray-queue[http]",
        "https": "fray-queue[http]",
        "redis": "fray-queue[redis]",
        "rediss": "fray-queue[redis]",
        "postgresql": "fray-queue[postgres]",
    },
    COMMANDS: {"queue": "fray-queue", "actors": "fray-local"},
    LISTENERS: {},
    GANG_RUNTIMES: {"ray": "fray-ray"},
    NAMES: {
        "job.SyncContext": "fray-local",
        "job.ThreadContext": "fray-local",
        "job.ProcessContext": "fray-local",
        "job.RayContext": "fray-ray",
        "job.IrisContext": "fray-iris",
        "cluster.LocalCluster": "fray-local",
        "cluster.LocalClusterConfig": "fray-local",
        "cluster.RayCluster": "fray-ray",
        "cluster.SlurmCluster": "fray-slurm",
        "cluster.IrisCluster": "fray-iris",
        "cluster.ray.deps.build_runtime_env_for_packages": "fray-ray",
        "cluster.ray.tpu.run_on_pod": "fray-ray",
        "LocalClusterContext": "fray-local",
        "RayClusterContext": "fray-ray",
        "queue.MemoryQueue": "fray-queue",
        "queue.SqliteQueue": "fray-queue",
        "queue.FileQueue": "fray-queue",
        "queue.HttpQueue": "fray-queue[http]",
        "queue.HttpQueueServer": "fray-queue[server]",
        "queue.RedisQueue": "fray-queue[redis]",
        "queue.PostgresQueue": "fray-queue[postgres]",
    },
}


@dataclass(frozen=True)
class Plugin:
    """One name that an installed distribution offers."""

    group: str
    name: str
    distribution: str
    version: str
    entry_point: "EntryPoint"

    def load(self) -> Any:
        """Import it.

        Raises:
            PluginLoadError: The import failed, for whatever cause; the cause is chained.
        """
        try:
            return self.entry_point.load()
        except (Exception, SystemExit) as error:
            raise PluginLoadError(
                KINDS[self.group],
                self.name,
                self.distribution,
                self.entry_point.value,
                f"{type(error).__name__}: {error}",
            ) from error


_lock = threading.RLock()  # a finalizer that makes a context may interrupt its own thread in here
_found: dict[str, dict[str, tuple[Plugin, ...]]] | None = None


def _in_child() -> None:
    global _lock
    _lock = threading.RLock()  # another thread may have held it


os.register_at_fork(after_in_child=_in_child)


def plugins(group: str) -> dict[str, tuple[Plugin, ...]]:
    """Return what is installed of a group by name; more than one Plugin under a name is a conflict.

    The environment is read once and kept; `forget_plugins` makes the next call read it again.
    """
    global _found
    with _lock:
        if _found is None:
            _found = _discover()
        return _found.get(group, {})


def forget_plugins() -> None:
    """Read the installed distributions again at the next look-up, for one installed meanwhile."""
    global _found
    with _lock:
        _found = None


def _discover() -> dict[str, dict[str, tuple[Plugin, ...]]]:
    from importlib.metadata import distributions  # 20 ms: imported only when a plugin is looked up

    found: dict[str, dict[str, dict[str, Plugin]]] = {group: {} for group in KINDS}
    for distribution in distributions():
        try:
            entries = distribution.entry_points
        except Exception as error:  # noqa: BLE001 - one that is damaged hides no other
            _report_damaged(distribution, error)
            continue
        for entry in entries:
            if entry.group in found:
                # A distribution that is on sys.path twice (an editable install, say) is one claimant.
                owner = distribution.metadata["Name"]
                claims = found[entry.group].setdefault(entry.name, {})
                claims.setdefault(owner, Plugin(entry.group, entry.name, owner, distribution.version, entry))
    return {
        group: {name: tuple(claims.values()) for name, claims in sorted(names.items())}
        for group, names in found.items()
    }


def _report_damaged(distribution: "Distribution", error: Exception) -> None:
    import logging

    try:
        name = distribution.metadata["Name"]
    except Exception:  # noqa: BLE001 - that is damaged as well
        name = None
    logging.getLogger("fray.plugins").warning(
        "the plugins of the distribution %r in %s are left out, because its entry_points.txt cannot be read "
        "(%r); install it again",
        name,
        distribution.locate_file(""),
        error,
    )


def find(group: str, name: str) -> Plugin:
    """Return the one plugin of that name.

    Raises:
        PluginNotFoundError: None is installed; the message says what is, and what to install.
        PluginConflictError: More than one distribution claims the name.
    """
    known = plugins(group)
    if name not in known:
        raise PluginNotFoundError(KINDS[group], name, tuple(known), provider(group, name))
    claimants = known[name]
    if len(claimants) > 1:
        raise PluginConflictError(KINDS[group], name, [plugin.distribution for plugin in claimants])
    return claimants[0]


def provider(group: str, name: str) -> str | None:
    """Return which known distribution would provide a name, installed or not."""
    return _PROVIDERS[group].get(name)


def load(group: str, name: str) -> Any:
    """Import and return what the plugin of that name offers; errors as `find` and `Plugin.load`."""
    return find(group, name).load()


def public_name(door: str, attribute: str) -> Any:
    """Return a public name that some wheel provides: `RayCluster` of the door `cluster`.

    Raises:
        AttributeError: Nothing is called that, its wheel is not installed, or it cannot be imported.
    """
    module = f"fray.{door}" if door else "fray"
    if not attribute.startswith("_"):
        try:
            return load(NAMES, _qualified(door, attribute))
        except PluginNotFoundError as error:
            if error.install:
                raise AttributeError(_comes_with(module, attribute, error.install), name=attribute) from None
        except PluginError as error:
            raise AttributeError(str(error), name=attribute) from error
    raise AttributeError(f"module {module!r} has no attribute {attribute!r}", name=attribute)


def missing_plugin(door: str, attribute: str) -> ImportError | None:
    """Return why a public name cannot be imported; None where no wheel is known to have it."""
    module = f"fray.{door}" if door else "fray"
    try:
        load(NAMES, _qualified(door, attribute))
    except PluginNotFoundError as error:
        if error.install is None:
            return None
        return ImportError(_comes_with(module, attribute, error.install), name=module)
    except PluginLoadError as error:
        return error
    except PluginConflictError as error:
        return ImportError(str(error), name=module)
    return None


def _qualified(door: str, attribute: str) -> str:
    return f"{door}.{attribute}" if door else attribute


def _comes_with(module: str, attribute: str, install: str) -> str:
    return f"{module}.{attribute} comes with {install}: pip install {install}"
