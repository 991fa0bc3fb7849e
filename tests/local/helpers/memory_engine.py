"""A remote engine in memory, the smallest with every primitive: threads of this process are its workers."""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

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


class TaskEngine:
    """What every engine has; a context over it has tasks and nothing else."""

    processes = False

    def submit(self, key: str, call: bytes, dependencies: Sequence[str], options: Any) -> None:
        value, values = _book.value(key), self.fetch(dependencies)

        def run() -> None:
            try:
                value.set_result(run_call(call, values))
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
    """An engine with every primitive."""

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
        """Every task has a thread of its own."""

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
