"""References: what stands for a value that is there or will be."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Generic, Self, TypeVar

T_co = TypeVar("T_co", covariant=True)


class ObjectRef(ABC, Generic[T_co]):
    """Stands for a value that exists or will exist; `put` and `run` return it.

    The class is nominal, so that a type checker can distinguish a reference from a value. A backend
    subclasses it, or registers its library's own class (`ObjectRef.register(ray.ObjectRef)`).
    """

    __slots__ = ()


class ObjectStream(ABC, Generic[T_co]):
    """The items of a generator task, in order, as they are yielded.

    `next(stream)` blocks until the next item is there and returns a reference to it; it raises StopIteration
    at the end. Where the generator raised, `get` of the item raises the same exception. A stream that is
    dropped, or cancelled, closes its generator.
    """

    __slots__ = ()

    def __iter__(self) -> Self:
        return self

    @abstractmethod
    def __next__(self) -> ObjectRef[T_co]: ...

    def __aiter__(self) -> AsyncIterator[ObjectRef[T_co]]:
        from fray._contracts.async_steps import AsyncSteps  # it imports asyncio

        return AsyncSteps(iter(self))
