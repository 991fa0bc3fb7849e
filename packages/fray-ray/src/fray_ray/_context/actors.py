"""Actors on Ray: made, found, called, ended."""

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakSet, ref

import ray
from ray import exceptions as rx

from fray import ActorAlreadyExistsError, ActorNotFoundError, SerializationError
from fray.backend import NoThreadError, is_async_class, start_thread
from fray.cluster import poll_delays
from fray.job import ActorEndpoint, ActorHandle, ActorOptions, Lifetime, actor_methods
from fray_ray._connection import cluster_resources
from fray_ray._context.actor_host import host_class
from fray_ray._context.calls import explain_unpicklable
from fray_ray._context.captured import Captured, dumps_apart
from fray_ray._context.payloads import Payloads
from fray_ray._options import Sender, actor_options, uses_accelerator
from fray_ray._ray_internals.calls import (
    actor_id,
    actor_sender,
    class_name,
    let_actors_be_made_in_signal_handlers,
    method_signatures,
    was_made_here,
)

_KEPT = 256
_GONE_WITHIN = 10.0  # seconds
_COUNTED: tuple[type, ...] = (Captured, ray.ObjectRef, ray.actor.ActorHandle, ActorHandle)

let_actors_be_made_in_signal_handlers()


class RayEndpoint(ActorEndpoint):
    """Carries calls to one actor through Ray's own handle.

    Ray counts the handles: an actor without a name ends with the last of them.

    Args:
        needs: What a restart of the actor needs. Ray 2.60 keeps the references in a constructor's arguments
            only until it has run (ray issue #53727), so they are kept by those who can call the actor.
    """

    def __init__(self, context: Any, handle: Any, name: str | None, needs: Sequence[Any] = ()) -> None:
        self._context, self.handle, self.name, self._needs = context, handle, name, needs
        self._methods = {method: None for method in method_signatures(handle) if not method.startswith("__")}
        self._senders: dict[str, tuple[Sender, str]] = {}
        kind = class_name(handle)
        self._label = f"{kind}({name!r})" if name else kind

    @property
    def methods(self) -> Mapping[str, Any]:
        return self._methods

    @property
    def label(self) -> str:
        return self._label

    def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """See `ActorEndpoint.call`."""
        sender = self._senders.get(method)
        if sender is None:
            sender = self._senders[method] = actor_sender(self.handle, method), f"{self._label}.{method}()"
        return self._context._send(*sender, args, kwargs)

    def call_with(
        self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], native: Mapping[str, Any]
    ) -> Any:
        """See `ActorEndpoint.call_with`."""
        remote = getattr(self.handle, method).options(**native).remote
        send = lambda args, kwargs: remote(*args, **kwargs)  # noqa: E731
        return self._context._send(send, f"{self._label}.{method}()", args, kwargs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RayEndpoint) and bool(actor_id(other.handle) == actor_id(self.handle))

    def __hash__(self) -> int:
        return hash(actor_id(self.handle))

    def __reduce__(self) -> tuple[Any, ...]:
        return RayEndpoint, (self._context, self.handle, self.name, self._needs)


class Actors:
    """The actors of one context."""

    def __init__(self, context: Any, base: Mapping[str, Any]) -> None:
        self._context, self._base = context, base
        self._classes: dict[Any, tuple[Callable[[], Any], Any]] = {}
        self._payloads = Payloads(context)
        # Those that this context made, and ends. Ray ends a named actor whose maker dropped its handle; here
        # it lives as long as the context.
        self._named: list[RayEndpoint] = []
        self._unnamed: WeakSet[RayEndpoint] = WeakSet()
        self._detached: list[RayEndpoint] = []  # those that need something of this process to restart

    def create(
        self, cls: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: ActorOptions
    ) -> ActorHandle:
        """Make an actor, or find it by name; see `JobContext.create_actor`."""
        resources = {} if options.preemptible else cluster_resources()
        ray_options = actor_options(
            self._base, options, self._context.namespace, resources, asynchronous=is_async_class(cls)
        )
        payload = self._payloads.of(cls, uses_accelerator(ray_options))
        try:
            remote_class = self._remote_class(cls, ray_options.pop("concurrency_groups", {}))
            handle = remote_class.options(**ray_options).remote(*payload, *args, **kwargs)
        except rx.ActorAlreadyExistsError:
            raise ActorAlreadyExistsError(str(options.name)) from None
        except Exception:
            explain_unpicklable(cls, args, kwargs)
            raise
        needs = _needs_of(payload, args, kwargs) if ray_options.get("max_restarts") else ()
        endpoint = RayEndpoint(self._context, handle, options.name, needs)
        if options.name is None and options.lifetime is Lifetime.JOB:
            self._unnamed.add(endpoint)
        elif options.lifetime is Lifetime.JOB and was_made_here(handle):
            self._named.append(endpoint)
        elif needs and was_made_here(handle):
            self._detached.append(endpoint)
        return ActorHandle(endpoint)

    def find(self, name: str) -> ActorHandle:
        """Return a handle to the living actor of that name."""
        try:
            handle = ray.get_actor(name, namespace=self._context.namespace)
        except ValueError:
            known = ray.util.list_named_actors(all_namespaces=True)
            raise ActorNotFoundError(
                name,
                sorted(actor["name"] for actor in known if actor["namespace"] == self._context.namespace),
            ) from None
        return ActorHandle(RayEndpoint(self._context, handle, name))

    def kill(self, endpoint: RayEndpoint) -> None:
        """End an actor; its calls fail and its name is free when this returns."""
        ray.kill(endpoint.handle)
        _await_death(endpoint)
        if endpoint.name is not None:
            self._named = [one for one in self._named if one != endpoint]
            self._detached = [one for one in self._detached if one != endpoint]
            _await_free_names([endpoint], self._context.joined_namespace())

    def end(self, *, wait: bool) -> None:
        """End those made here that live no longer than their context.

        Args:
            wait: Return when their names are free; where none has a name, at once.
        """
        named, self._named = self._named, []
        for endpoint in [*named, *self._unnamed]:
            ray.kill(endpoint.handle)
        if wait and named:
            # On a thread: a head that does not answer holds a look for a minute.
            names = named, self._context.joined_namespace()
            looks = threading.Thread(target=_await_free_names, args=names, name="fray-names", daemon=True)
            with contextlib.suppress(NoThreadError):  # the program has ended, and Ray ends its actors
                start_thread(looks)
                looks.join(_GONE_WITHIN)

    def _remote_class(self, cls: Callable[..., Any], groups: Mapping[str, int]) -> Any:
        """Return what hosts `cls`; its concurrency groups are Ray's, and no option of one actor there.

        The class itself is not kept: references that it holds would be.
        """
        key = id(cls), *groups.items()
        known = self._classes.get(key)
        if known is None or known[0]() is not cls:
            if len(self._classes) >= _KEPT:
                self._classes.clear()
            hosted = host_class(cls, actor_methods(cls))
            make: Any = ray.remote
            known = (_weakly(cls), make(concurrency_groups=dict(groups))(hosted) if groups else make(hosted))
            self._classes[key] = known
        return known[1]


def _await_free_names(endpoints: list[RayEndpoint], namespace: str) -> None:
    """Wait until no actor is found that was killed, for all of them together."""
    deadline = time.monotonic() + _GONE_WITHIN
    for delay in poll_delays():
        endpoints = [endpoint for endpoint in endpoints if _is_found(endpoint, namespace)]
        if not endpoints or time.monotonic() > deadline:
            return
        time.sleep(delay)


def _is_found(endpoint: RayEndpoint, namespace: str) -> bool:
    try:
        found = ray.get_actor(str(endpoint.name), namespace=namespace)
    except (ValueError, rx.RayError):  # it is free, or the head is lost
        return False
    return bool(actor_id(found) == actor_id(endpoint.handle))


def _needs_of(payload: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return the references and handles in what makes an actor, however deep they are in its arguments."""
    given = *args, *kwargs.values()
    try:
        _, held = dumps_apart(given, "the arguments")
    except SerializationError:  # Ray has a way to pickle them that we do not know
        held = [arg for arg in given if isinstance(arg, _COUNTED)]
    return *(part for part in payload if isinstance(part, _COUNTED)), *held


def _weakly(cls: Any) -> Callable[[], Any]:
    """Return what returns a class as long as it exists."""
    try:
        return ref(cls)
    except TypeError:  # a callable object without a place for weak references
        return lambda: cls


def _await_death(endpoint: RayEndpoint) -> None:
    """Wait until calls fail: `ray.kill` requests the end of a process, which answers until it comes."""
    deadline = time.monotonic() + _GONE_WITHIN
    for delay in poll_delays():
        left = deadline - time.monotonic()
        if left <= 0:
            return
        try:
            ray.get(endpoint.handle.__ray_ready__.remote(), timeout=left)
        except rx.ActorUnavailableError:
            pass  # it does not answer now, and may again
        except (rx.RayActorError, rx.GetTimeoutError):
            return
        time.sleep(delay)
