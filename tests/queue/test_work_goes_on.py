"""`work` ends when it is asked to; a queue that fails, and items that cannot be read, do not end it."""

import asyncio
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hastened_loop import HastenedLoop
from queue_processes import ServerProcess

from fray import QueueUnavailableError, SerializationError, TaskError
from fray.queue import Lease
from fray.testing.queue_unreadable import Newer, UnreadablePromises
from fray_queue import (
    DamagedError,
    FileQueue,
    HttpQueue,
    HttpQueueServer,
    Limits,
    MemoryQueue,
    QueueFullError,
    QueueNotFoundError,
    SqliteQueue,
    WorkSummary,
    awork,
    work,
)


class Failing(MemoryQueue[Any]):
    """A queue whose calls fail a few times."""

    def __init__(self, failures: list[Exception]) -> None:
        super().__init__()
        self.failures = failures

    def _fail(self) -> None:
        if self.failures:
            raise self.failures.pop()

    def pop_many(self, n: int, lease_timeout: float = 60.0, *, wait: float = 0.0) -> list[Lease[Any]]:
        self._fail()
        return super().pop_many(n, lease_timeout, wait=wait)

    def done_many(self, leases: Iterable[Lease[Any]], *, results: Iterable[Any] | None = None) -> None:
        self._fail()
        super().done_many(leases, results=results)


def test_a_queue_that_fails_for_a_while_is_asked_again() -> None:
    queue = Failing([QueueUnavailableError("away"), OSError(5, "Input/output error"), RuntimeError("a bug")])
    queue.push_many(range(5))
    seen: list[int] = []

    def fn(item: int) -> None:
        seen.append(item)
        if item == 2:
            queue.failures.append(QueueUnavailableError("away when it is done"))

    assert work(queue, fn, stop_when_empty=True).done == 5
    assert seen == list(range(5))
    assert queue.size() == 0


class LosesAnswers(MemoryQueue[Any]):
    """A queue that finishes items, and whose first answer about it does not arrive."""

    lost = False

    def done_many(self, leases: Iterable[Lease[Any]], *, results: Iterable[Any] | None = None) -> None:
        super().done_many(leases, results=results)
        if not self.lost:
            self.lost = True
            raise QueueUnavailableError("no answer")


def test_what_is_not_known_of_an_item_is_not_claimed(caplog: pytest.LogCaptureFixture) -> None:
    queue = LosesAnswers()
    queue.push(1)
    summary = work(queue, str, stop_when_empty=True)
    assert (summary.lost, summary.done, queue.size()) == (1, 0, 0)
    assert "lost while it was worked on" not in caplog.text
    assert "it is settled or its lease was lost" in caplog.text


def test_a_pool_outlasts_its_server(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "store", "--queue", "q") as server:
        queue: HttpQueue[int] = HttpQueue(server.url, "q", timeout=1.0)  # which the pool outlasts
        patient: HttpQueue[int] = HttpQueue(server.url, "q")
        patient.push_many(range(20))
        away = threading.Event()

        def fn(item: int) -> None:
            if item == 3 and not away.is_set():
                away.set()
                server.kill()
                threading.Timer(2.0, server.start).start()

        assert work(queue, fn, concurrency=2, stop_when_empty=True, lease_timeout=10.0).done >= 18
        assert patient.size() == 0
        queue.close()
        patient.close()


class Away(MemoryQueue[Any]):
    """A queue whose every call may fail, for as long as a test wants."""

    away = False

    def _look(self) -> None:
        if self.away:
            raise QueueUnavailableError("away")

    def pop_many(self, n: int, lease_timeout: float = 60.0, *, wait: float = 0.0) -> list[Lease[Any]]:
        self._look()
        return super().pop_many(n, lease_timeout, wait=min(wait, 0.05))

    def done_many(self, leases: Iterable[Lease[Any]], *, results: Iterable[Any] | None = None) -> None:
        self._look()
        super().done_many(leases, results=results)

    def extend_many(self, leases: Iterable[Lease[Any]], lease_timeout: float) -> list[Any]:
        self._look()
        return super().extend_many(leases, lease_timeout)


def test_a_pool_outlasts_a_queue_that_is_away_for_an_hour() -> None:
    """An hour of the pool's time, and calls under way all through it; it goes on where it was."""
    queue = Away()
    queue.push_many(range(8))
    seen: list[int] = []

    async def main() -> WorkSummary:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        assert isinstance(loop, HastenedLoop)
        begun, back = asyncio.Semaphore(0), asyncio.Event()

        async def fn(item: int) -> None:
            begun.release()
            await back.wait()
            seen.append(item)

        pool = asyncio.create_task(awork(queue, fn, concurrency=4, stop=stop))
        for _ in range(4):
            await begun.acquire()
        queue.away = True
        back.set()  # four items are done, and the queue cannot be notified
        loop.speed = 3600.0
        await asyncio.sleep(3600.0)
        assert not pool.done()
        queue.away = False
        while queue.size():
            await asyncio.sleep(60.0)
        stop.set()
        return await pool

    with asyncio.Runner(loop_factory=HastenedLoop) as runner:
        summary = runner.run(main())
    assert sorted(seen) == list(range(8))
    assert (summary.done, summary.lost, summary.in_hand) == (8, 0, 0)
    assert summary.queue_failures > 0


def test_a_pool_goes_on_beside_a_producer_that_is_refused(tmp_path: Path) -> None:
    with HttpQueueServer(store=tmp_path, limits=Limits(store_bytes=4_000_000)) as server:
        full, other = server.new_queue("full"), server.new_queue("other")
        other.push_many(range(300))
        refused = threading.Event()
        stop = threading.Event()

        def produce() -> None:
            while not stop.is_set():
                try:
                    full.push(b"x" * 100_000)
                except QueueFullError:
                    refused.set()

        producer = threading.Thread(target=produce)
        producer.start()
        try:
            assert refused.wait(60)
            assert work(other, lambda item: None, stop_when_empty=True).done == 300
        finally:
            stop.set()
            producer.join()


def test_what_was_never_there_is_said_at_once() -> None:
    with HttpQueueServer() as server:
        queue: HttpQueue[int] = HttpQueue(server.url, "missing")
        with pytest.raises(QueueNotFoundError):
            work(queue, print)
        queue.close()


def test_a_place_of_something_else_is_no_queue_to_wait_for(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("of somebody")
    with pytest.raises(ValueError, match="not a queue"):
        work(FileQueue[int](tmp_path), print)
    with pytest.raises(DamagedError):
        work(SqliteQueue[int](tmp_path / "notes.txt"), print)


@pytest.mark.parametrize("concurrency", [1, 3])
def test_an_async_function_is_run_to_its_end(concurrency: int) -> None:
    queue: MemoryQueue[int] = MemoryQueue()
    queue.push_many(range(20))
    seen: list[int] = []

    async def fn(item: int) -> None:
        await asyncio.sleep(0.001)
        seen.append(item)

    assert work(queue, fn, concurrency=concurrency, stop_when_empty=True).done == 20
    assert sorted(seen) == list(range(20))
    queue.push(20)
    assert work(queue, lambda item: fn(item), stop_when_empty=True).done == 1
    assert seen[-1] == 20


def test_an_async_function_that_fails_gives_its_item_back() -> None:
    queue: MemoryQueue[str] = MemoryQueue(max_attempts=1)
    queue.push("x")

    async def fn(item: str) -> None:
        raise ValueError(item)

    assert work(queue, fn, stop_when_empty=True).failed == 1
    assert len(queue.dead_letters()) == 1


def test_a_generator_function_finishes_nothing() -> None:
    queue: MemoryQueue[int] = MemoryQueue(max_attempts=1)
    queue.push(1)

    def fn(item: int) -> Iterator[int]:
        yield item

    summary = work(queue, fn, stop_when_empty=True)
    assert (summary.done, summary.failed, len(queue.dead_letters())) == (0, 1, 1)


@pytest.mark.parametrize("ending", [SystemExit, KeyboardInterrupt])
def test_a_function_that_ends_the_program_gives_its_item_back(ending: type[BaseException]) -> None:
    queue: MemoryQueue[int] = MemoryQueue()
    queue.push_many([1, 2])

    def fn(item: int) -> None:
        raise ending

    with pytest.raises(ending):
        work(queue, fn)
    assert queue.pending() == 2


@pytest.mark.parametrize("kind", ["threads", "processes", "coroutines"])
def test_a_function_that_panics_fails_its_item_alone(kind: str) -> None:
    class PanicError(BaseException):
        """As libraries that are written in Rust raise it: it is no Exception."""

    queue: MemoryQueue[int] = MemoryQueue(max_attempts=1)
    tickets = queue.push_many(range(3), reply=True)

    def fn(item: int) -> int:
        if item == 1:
            raise PanicError("called `unwrap` on a `None` value")
        return item

    async def afn(item: int) -> int:
        return fn(item)

    if kind == "coroutines":
        summary = asyncio.run(awork(queue, afn, stop_when_empty=True))
    else:
        summary = work(queue, fn, processes=kind == "processes", stop_when_empty=True)
    assert (summary.done, summary.failed) == (2, 1)
    assert [tickets[0].result(10), tickets[2].result(10)] == [0, 2]
    with pytest.raises(RuntimeError, match="PanicError: called `unwrap`"):
        tickets[1].result(10)


@pytest.mark.parametrize("processes", [False, True])
def test_what_panics_when_it_is_pickled_fails_its_item_alone(tmp_path: Path, processes: bool) -> None:
    class PanicError(BaseException):
        """As libraries that are written in Rust raise it: it is no Exception."""

    class Panics:
        def __reduce__(self) -> Any:
            raise PanicError("cannot borrow as mutable")

    class FailsAndPanics(Exception):
        def __reduce__(self) -> Any:
            raise PanicError("cannot borrow as mutable")

    def fn(item: int) -> Any:
        if item == 1:
            raise FailsAndPanics("an error that holds what cannot be pickled")
        return Panics() if item == 2 else item

    with SqliteQueue[int](tmp_path / "q.db", max_attempts=1) as queue:
        tickets = queue.push_many(range(4), reply=True)
        work(queue, fn, processes=processes, stop_when_empty=True)
        assert [tickets[0].result(10), tickets[3].result(10)] == [0, 3]
        with pytest.raises(Exception, match="an error that holds what cannot be pickled"):
            tickets[1].result(10)
        with pytest.raises(SerializationError, match="cannot borrow"):
            tickets[2].result(10)


@pytest.mark.parametrize("processes", [False, True])
def test_an_error_whose_text_panics_fails_its_item_alone(tmp_path: Path, processes: bool) -> None:
    class HasNoText(Exception):
        def __str__(self) -> str:
            raise BaseException("as a library in Rust panics")

    def fn(item: int) -> int:
        if item == 1:
            raise HasNoText
        return item

    with SqliteQueue[int](tmp_path / "q.db", max_attempts=1) as queue:
        tickets = queue.push_many(range(3), reply=True)
        summary = work(queue, fn, processes=processes, stop_when_empty=True)
        assert (summary.done, summary.failed) == (2, 1)
        assert [tickets[0].result(10), tickets[2].result(10)] == [0, 2]
        with pytest.raises(TaskError, match=r"HasNoText.*no message"):
            tickets[1].result(10)
        (letter,) = queue.dead_letters()
        assert "HasNoText" in str(letter.history[-1].error)


class TestUnreadableItems(UnreadablePromises):
    """A pool goes on beside items that it cannot read."""

    BACKEND = "sqlite"

    @pytest.fixture
    def make_queue(self, tmp_path: Path, clock: Any) -> Any:
        return lambda **options: SqliteQueue(tmp_path / "q.db", clock=clock, **options)

    def test_a_pool_goes_on_beside_an_unreadable_item(
        self, queue: Any, unreadable: list[BaseException]
    ) -> None:
        queue.push_many([1, Newer("a"), 2, 3])
        seen: list[int] = []
        everything = threading.Event()

        def fn(item: int) -> None:
            seen.append(item)
            if len(seen) == 3:
                everything.set()
                raise SystemExit

        with pytest.raises(SystemExit):
            work(queue, fn)
        assert seen == [1, 2, 3]
        assert queue.size() == 2
