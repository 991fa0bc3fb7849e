"""A remote engine in memory, the smallest with every primitive: threads of this process are its workers."""

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from uuid import uuid4

from fray.backend import CallFailed, EngineContext, answer, run_call


class _Book:
    """What a scheduler knows."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.values: dict[str, Future[bytes]] = {}
        self.names: dict[str, bytes | None] = {}
        self.claims: dict[str, list[str]] = {}

    def value(self, key: str) -> "Future[bytes]":
        with self.lock:
            return self.values.setdefault(key, Future())


_book = _Book()
# Where an engine's tasks run, by its name.
_places: dict[str, AbstractContextManager[Any]] = defaultdict(threading.Lock)


class TaskEngine:
    """What every engine has; a context over it has tasks and nothing else.

    One task runs at a time, and keeps its place while it waits: there is no `lend`.
    """

    processes = False

    def __init__(self) -> None:
        self.name = uuid4().hex

    def place(self) -> AbstractContextManager[Any]:
        return _places[self.name]

    def submit(self, key: str, call: bytes, dependencies: Sequence[str], options: Any) -> None:
        value, values = _book.value(key), self.fetch(dependencies)

        def run() -> None:
            try:
                with self.place():
                    outcome = run_call(call, values)
                value.set_result(outcome)
            except CallFailed as error:
                value.set_exception(error)

        threading.Thread(target=run, name="memory-engine", daemon=True).start()

    def store(self, key: str, outcome: bytes | CallFailed) -> None:
        if isinstance(outcome, CallFailed):
            _book.value(key).set_exception(outcome)
        else:
            _book.value(key).set_result(outcome)

    def fetch(self, keys: Sequence[str]) -> Sequence[bytes]:
        return [_book.value(key).result() for key in keys]

    def when_done(self, key: str, act: Callable[[BaseException | None], None]) -> None:
        _book.value(key).add_done_callback(lambda done: act(done.exception()))

    def release(self, keys: Sequence[str]) -> None:
        """Keep everything: a test is short."""

    def workers(self) -> Mapping[str, float]:
        return {"one": 2, "two": 2}

    def close(self) -> None:
        """There is nothing to close."""


class MemoryEngine(TaskEngine):
    """An engine with every primitive; every task has a thread of its own."""

    def place(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def ask(self, worker: str, request: bytes) -> "Future[bytes]":
        return answer(request)

    def swap(self, name: str, expected: bytes | None, record: bytes | None) -> bytes | None:
        with _book.lock:
            found = _book.names.get(name)
            if found == expected:
                _book.names[name] = record
        return found

    def claim(self, key: str, by: str) -> Sequence[str]:
        with _book.lock:
            earlier = _book.claims.get(key, [])
            _book.claims[key] = [*earlier, by]
        return earlier

    def lend(self) -> None:
        """No place has to be freed."""

    def reclaim(self) -> None:
        """Nothing was lent."""


class TaskOnlyContext(EngineContext):
    """A context over an engine that can run tasks and nothing else."""

    engine_type = TaskEngine

    def __init__(
        self,
        max_workers: int | None = None,
        *,
        num_cpus: float | None = None,
        memory: int | str | None = None,
        max_retries: int | None = None,
        namespace: str | None = None,
    ) -> None:
        super().__init__(self.engine_type(), max_workers, max_retries=max_retries, namespace=namespace)


class MemoryContext(TaskOnlyContext):
    """A context over the whole engine."""

    engine_type = MemoryEngine
