"""Errors of a pool's own parts: the event loop would only log them, and the pool stand still."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from typing import Any


class Faults:
    """Ends the pool by each error; `errors` has them in their order.

    Args:
        stop: Ends the pool.
        is_ending: Whether it ends already: then its tasks are cancelled by itself.
    """

    def __init__(self, stop: Callable[[], None], is_ending: Callable[[], bool]) -> None:
        self._stop, self._is_ending = stop, is_ending
        self.errors: list[BaseException] = []

    def add(self, error: BaseException) -> None:
        """End the pool by an error."""
        self.errors.append(error)
        self._stop()

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """End the pool by what the block raises, and go on after the block."""
        try:
            yield
        except BaseException as error:  # noqa: BLE001 - raised by `work`, in its caller's thread
            self.add(error)

    def in_callback(self, callback: Callable[..., None]) -> Callable[..., None]:
        """Return a callback that ends the pool by what it raises."""

        def noting(*arguments: Any) -> None:
            try:  # for each call of the function: `noted` would take longer
                callback(*arguments)
            except BaseException as error:  # noqa: BLE001 - raised by `work`, in its caller's thread
                self.add(error)

        return noting

    async def in_task(self, part: Coroutine[Any, Any, None]) -> None:
        """Run a part of the pool, which ends with it if it fails."""
        try:
            await part
        except asyncio.CancelledError:
            if not self._is_ending():
                self.add(RuntimeError("a task of the pool was cancelled"))
            raise
        except BaseException as error:  # noqa: BLE001 - raised by `work`, in its caller's thread
            self.add(error)
