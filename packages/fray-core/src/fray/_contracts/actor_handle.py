"""Handles to actors, and what a backend implements to carry their calls."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any


class ActorEndpoint(ABC):
    """The backend's side of a handle: it carries calls to one actor."""

    @property
    @abstractmethod
    def methods(self) -> Mapping[str, Any]:
        """The names that can be called; the values are the backend's own."""

    @property
    @abstractmethod
    def label(self) -> str:
        """The actor in messages: its class and its name."""

    @abstractmethod
    def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Queue a call and return its reference or stream."""

    def call_with(
        self,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        native: Mapping[str, Any],
    ) -> Any:
        """Queue a call under options of Ray; a backend that is not Ray queues it as it is."""
        return self.call(method, args, kwargs)


class ActorHandle:
    """An actor as its callers see it: `handle.method(...)` returns a reference."""

    def __init__(self, endpoint: ActorEndpoint) -> None:
        self._endpoint = endpoint

    def __getattr__(self, method: str) -> "BoundMethod":
        # Dunders are never remote: pickle, copy and inspect look for them.
        if method.startswith("__") or method == "_endpoint":
            raise AttributeError(method)
        if method not in self._endpoint.methods:
            from fray._values.errors import did_you_mean

            hint = did_you_mean(method, self._endpoint.methods)
            raise AttributeError(
                f"actor {self._endpoint.label} has no method {method!r}" + (hint and f"; {hint}")
            )
        bound = BoundMethod(self._endpoint, method)
        self.__dict__[method] = bound  # the next call finds it without coming here
        return bound

    def __reduce__(self) -> tuple[Any, ...]:
        return ActorHandle, (self._endpoint,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActorHandle) and self._endpoint == other._endpoint

    def __hash__(self) -> int:
        return hash(self._endpoint)

    def __repr__(self) -> str:
        return f"<actor {self._endpoint.label}>"


class BoundMethod:
    """`handle.method`: call it, or call its `remote`."""

    __slots__ = ("_endpoint", "_method", "_native")

    def __init__(self, endpoint: ActorEndpoint, method: str, native: Mapping[str, Any] | None = None) -> None:
        self._endpoint, self._method, self._native = endpoint, method, native

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._native:
            return self._endpoint.call_with(self._method, args, kwargs, self._native)
        return self._endpoint.call(self._method, args, kwargs)

    remote = __call__

    def options(self, *, num_returns: int | str = 1, **native: Any) -> "BoundMethod":
        """Return the method under options of Ray's actor methods, for code written for Ray.

        Args:
            num_returns: 1, as on every backend: a call has one reference.
            native: Passed to Ray; other backends ignore them.

        Raises:
            UnsupportedError: Another number of references is requested.
        """
        if num_returns != 1:
            from fray._values.errors import UnsupportedError

            raise UnsupportedError(
                f"{self._endpoint.label}.{self._method}.options(num_returns={num_returns!r}): a call has one "
                "reference; return a tuple, or make the method a generator"
            )
        return BoundMethod(self._endpoint, self._method, {**(self._native or {}), **native})


def actor_methods(cls: Any) -> dict[str, Any]:
    """Return the methods that a handle offers of an actor's class: every callable that is not a dunder."""
    names = (name for name in dir(cls) if not name.startswith("__"))
    return {name: member for name in names if callable(member := getattr(cls, name, None))}
