"""Which context and which cluster are "the current one".

One order for both: set explicitly (`use_context`, `use_cluster`; then `set_job_ctx`,
`set_current_cluster`), then the
environment (`FRAY_CONTEXT_SPEC`, `FRAY_CLUSTER_SPEC`), then `ray` inside a Ray
driver or worker, then the default of this machine. What is found below the
first is made once per spec and kept for the life of the process, or until it is shut down.
"""

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from fray._contracts.current_context import current_context_var
from fray._discovery.plugins import CLUSTERS, CONTEXTS, load
from fray._discovery.specs import Spec, bind_options
from fray._values.errors import SpecError

if TYPE_CHECKING:
    from fray._contracts.cluster import Cluster
    from fray._contracts.context import JobContext

JOB_CONTEXT = "FRAY_JOB_CONTEXT"  # the variable that clusters give their jobs a default by
AUTO = "auto"  # the spec of what is the current one


class _Current:
    """One kind of "current" thing: its variable, its environment variable, its default."""

    def __init__(self, chosen: ContextVar[Any], group: str, kind: str, variable: str, default: str) -> None:
        self.chosen = chosen
        self._group, self._kind, self._variable, self._default = group, kind, variable, default
        self._made: dict[str, Any] = {}
        self._preset: Any = None
        self._told = False
        self._lock = threading.RLock()

    def create(self, spec: str, options: dict[str, Any]) -> Any:
        said = {name: value for name, value in options.items() if value is not None}
        parsed = Spec.parse(spec)
        if parsed.name == AUTO:
            if self._explicit() is not None or not (said or parsed.options):
                return self.get()
            current = Spec.parse(self._current_text())
            parsed = Spec(current.name, {**current.options, **parsed.options})
        factory = load(self._group, parsed.name)
        return factory(**bind_options(factory, f"{self._kind} {parsed.name!r}", parsed.options, said))

    def get(self) -> Any:
        explicit = self._explicit()
        if explicit is not None:
            return explicit
        spec = self._current_text()
        with self._lock:
            # One that was shut down is replaced: the next caller gets a new one.
            known = self._made.get(spec)
            if known is None or getattr(known, "_closed", False):
                made = self.create(spec, {})
                if self._made.get(spec) is known:  # and no finalizer has made one meanwhile, in this thread
                    self._made[spec] = made
            return self._made[spec]

    def chosen_by_program(self) -> bool:
        """Whether the program or its environment says what is current."""
        return self._explicit() is not None or os.environ.get(self._variable, AUTO) not in ("", AUTO)

    def of_environment(self) -> str | None:
        """What the environment says is current; None where it says nothing, or the program chose."""
        text = os.environ.get(self._variable, AUTO)
        return None if text in ("", AUTO) or self._explicit() is not None else text

    def _explicit(self) -> Any:
        chosen = self.chosen.get(None)
        return self._preset if chosen is None else chosen

    def _current_text(self) -> str:
        text = os.environ.get(self._variable)
        if text and text != AUTO:
            return text
        if _inside_ray():
            return "ray"
        return self._default_of_job() or self._default

    def _default_of_job(self) -> str | None:
        """The context of a job by default; its cluster names it, and its log reports it once."""
        spec = os.environ.get(JOB_CONTEXT) if self._kind == "context" else None
        if spec and not self._told and os.environ.get("FRAY_REPLICA_ID", "0") == "0":
            self._told = True
            sys.stderr.write(
                f"fray: the context of this job is {spec!r}: tasks run in worker processes, and the jobs of "
                f"one program share named actors; {self._variable} chooses another\n"
            )
        return spec

    def preset(self, thing: Any, setter: str) -> None:
        self._refuse_a_spec(thing, setter)
        self._preset = thing

    def _refuse_a_spec(self, thing: Any, setter: str) -> None:
        if isinstance(thing, str):
            raise ValueError(
                f"{setter} takes a {self._kind}, got the str {thing!r}; create_{self._kind} makes one"
            )

    @contextlib.contextmanager
    def use(self, thing: Any) -> Iterator[Any]:
        self._refuse_a_spec(thing, f"use_{self._kind}")
        token = self.chosen.set(thing)
        try:
            yield thing
        finally:
            self.chosen.reset(token)

    def close_made(self) -> None:
        with self._lock:
            made, self._made = list(self._made.values()), {}
        with contextlib.ExitStack() as shutdowns:  # each is called, although another one raises
            for thing in made:
                shutdown = getattr(thing, "shutdown", None)
                # One that is closed has ended, or is not to be waited for: the program has failed, say.
                if shutdown is not None and not getattr(thing, "_closed", False):
                    shutdowns.callback(shutdown)

    def free_lock(self) -> None:
        """In a forked child: another thread may have held the lock."""
        self._lock = threading.RLock()

    def forget_made(self) -> None:
        """In a forked child: what was made is the parent's, and is made again when it is first used."""
        self.free_lock()
        self._made = {}


def _inside_ray() -> bool:
    # A process that never imported ray is inside no Ray; importing it to ask would cost 250 ms.
    ray = sys.modules.get("ray")
    return ray is not None and bool(getattr(ray, "is_initialized", bool)())


current_cluster_var: ContextVar[Any] = ContextVar("fray_cluster")
_contexts = _Current(current_context_var, CONTEXTS, "context", "FRAY_CONTEXT_SPEC", "threadpool")
_clusters = _Current(current_cluster_var, CLUSTERS, "cluster", "FRAY_CLUSTER_SPEC", "local")
atexit.register(_contexts.close_made)
os.register_at_fork(after_in_child=_contexts.forget_made)
os.register_at_fork(after_in_child=_clusters.free_lock)


def close_made() -> None:
    """Shut down the contexts and clusters that were made because they were current."""
    try:
        _contexts.close_made()
    finally:
        _clusters.close_made()


def create_context(
    spec: str | None = None,
    *,
    type: str | None = None,  # noqa: A002 - another name of `spec`
    context_type: str | None = None,
    **options: Any,
) -> "JobContext":
    """Make a context from a type name or a whole spec; keyword options win over the spec's.

    The caller owns it: leave its `with` block or call `shutdown`.

    Args:
        spec: `"threadpool"`, `"threadpool?max_workers=8"`; `"auto"` (the default) is the current context or,
            if options are given, a new one of the current one's type.
        type: Another name of `spec`.
        context_type: Another name of `spec`.
        options: Those of the type. Every type takes `max_workers`, `num_cpus`, `memory`, `max_retries` and
            `namespace`. None means that an option is not given.

    Raises:
        PluginNotFoundError: No installed wheel provides the type.
        SpecError: The spec or an option cannot be read.
    """
    context: JobContext = _contexts.create(_one_spec(spec, type=type, context_type=context_type), options)
    return context


def create_cluster(
    spec: str | None = None,
    *,
    type: str | None = None,  # noqa: A002 - another name of `spec`
    **options: Any,
) -> "Cluster":
    """Open a cluster from a type name or a whole spec; see `create_context`."""
    cluster: Cluster = _clusters.create(_one_spec(spec, type=type), options)
    return cluster


def _one_spec(spec: str | None, **others: str | None) -> str:
    given = [text for text in (spec, *others.values()) if text is not None]
    if len(set(given)) > 1:
        names = ", ".join(f"{name}={text!r}" for name, text in {"spec": spec, **others}.items() if text)
        raise SpecError(f"one type was asked for by several names: {names}")
    return given[0] if given else AUTO


def get_job_context() -> "JobContext":
    """Return the current context: inside a task, the one that runs it; if none is set, a thread pool."""
    context: JobContext = _contexts.get()
    return context


def current_cluster() -> "Cluster":
    """Return the current cluster; inside a job, the one that runs it; if none is set, `local`."""
    cluster: Cluster = _clusters.get()
    return cluster


def cluster_is_chosen() -> bool:
    """Whether the program or its environment says which cluster is the current one."""
    return _clusters.chosen_by_program()


def cluster_of_environment() -> str | None:
    """Return the text of `FRAY_CLUSTER_SPEC`; None where there is none, or the program chose a cluster."""
    return _clusters.of_environment()


def use_context(context: "JobContext") -> "contextlib.AbstractContextManager[JobContext]":
    """Make a context the current one inside the `with` block; its owner shuts it down."""
    return _contexts.use(context)


def use_cluster(cluster: "Cluster") -> "contextlib.AbstractContextManager[Cluster]":
    """Make a cluster the current one inside the `with` block."""
    return _clusters.use(cluster)


def set_job_ctx(context: "JobContext | None") -> None:
    """Make a context the current one until the process ends; None undoes this.

    `use_context` wins over it inside its block. The context's owner shuts it down. Prefer `use_context`: what
    is set here stays for all threads, and for the tests that run next.
    """
    _contexts.preset(context, "set_job_ctx")


def set_current_cluster(cluster: "Cluster | None") -> None:
    """Make a cluster the current one until the process ends; None undoes this. See `set_job_ctx`."""
    _clusters.preset(cluster, "set_current_cluster")
