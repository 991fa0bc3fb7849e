"""A stand-in for an actor's class, whose construction and methods a context or a listener surrounds."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any


class WrappedClass:
    """An actor's class with something around its construction and its methods; the actor does not see it.

    It shows the methods and the name of the real class, and travels as the class would.

    Args:
        cls: The real class.
        around: Returns a context manager, in which an instance is constructed. Pickled with the class.
        wrap: Given the name of a method and the method, returns what is called instead. Pickled, too.
    """

    def __init__(
        self,
        cls: Callable[..., Any],
        around: Callable[[], AbstractContextManager[Any]],
        wrap: Callable[[str, Callable[..., Any]], Callable[..., Any]],
    ) -> None:
        self.__wrapped__, self.__around, self.__wrap = cls, around, wrap

    def __call__(self, *args: Any, **kwargs: Any) -> "_WrappedInstance":
        with self.__around():
            return _WrappedInstance(self.__wrapped__(*args, **kwargs), self.__wrap)

    def __dir__(self) -> list[str]:
        return dir(self.__wrapped__)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return WrappedClass, (self.__wrapped__, self.__around, self.__wrap)


class _WrappedInstance:
    def __init__(self, instance: Any, wrap: Callable[[str, Callable[..., Any]], Callable[..., Any]]) -> None:
        self.__instance, self.__wrap = instance, wrap

    def __getattr__(self, name: str) -> Any:
        member = getattr(self.__instance, name)
        return self.__wrap(name, member) if callable(member) else member
