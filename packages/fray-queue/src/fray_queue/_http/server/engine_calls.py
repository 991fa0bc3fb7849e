"""The calls of a server to an engine: in a few threads, with a short timeout, by queue."""

import asyncio
import contextlib
import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from fray import QueueUnavailableError
from fray.backend import BriefThreads, retry_delays
from fray_queue._engines.idempotency import IdempotencyKey, KeyPool
from fray_queue._engines.store import DeletedQueueError, Engine, EngineStore, TransientError, Wanted
from fray_queue._engines.watcher import Watcher
from fray_queue._errors import QueueNotFoundError
from fray_queue._http.server.store import Key, What
from fray_queue._http.server.traffic import Traffic
from fray_queue._items import Settings

R = TypeVar("R")
_log = logging.getLogger("fray.queue")
_THREADS = 32
_PATIENCE = 1.0  # seconds; then the client gets the error, and may try again for longer


class EngineAwayError(QueueUnavailableError):
    """The engine behind the server does not answer."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def __str__(self) -> str:
        return f"the server's engine does not answer ({self.why}); what was asked may have been done or not"


@dataclass(slots=True)
class OpenQueue:
    """A queue that was used."""

    store: EngineStore
    settings: Settings
    watcher: Watcher
    stored: tuple[bool, str] | None = None


class EngineCalls:
    """The calls of one server to its engine.

    Args:
        traffic: Returns the traffic of a queue.
    """

    def __init__(self, engine: Engine, traffic: Callable[[str], Traffic]) -> None:
        self.engine, self._traffic = engine, traffic
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="fray-queue-engine")
        self._own_keys = KeyPool()  # of requests that no client named
        self._queues: dict[str, OpenQueue] = {}
        self._opening = threading.Lock()
        self._closing = threading.Event()
        self._away: EngineAwayError | None = None
        try:
            engine.check()
        except TransientError as error:
            engine.close()
            raise EngineAwayError(str(error)) from None

    def check(self) -> None:
        """Raise an EngineAwayError while the engine is away: so no request waits for it."""
        if self._away is not None:
            raise EngineAwayError(self._away.why)

    @contextlib.contextmanager
    def watching(self, name: str, what: What, item_ids: Sequence[str] = ()) -> Iterator[None]:
        """Have the engine report what happens to a queue, which is open."""
        known = self._queues.get(name)
        if known is None:  # it was removed: the next look says so
            yield
            return
        if known.watcher.want(what, item_ids):
            self._submit(known.watcher.ring)
        try:
            yield
        finally:
            known.watcher.unwant(what, item_ids)

    def _note(self, name: str, told: Wanted) -> None:
        """Hand on what a watcher received, from its thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._wake, name, told)

    def _wake(self, name: str, told: Wanted) -> None:
        traffic = self._traffic(name)
        again = told == Wanted()
        if told.items or again:
            traffic.wake()  # a pop that finds something wakes the next: one notification may be of many items
        if told.room or again:
            traffic.pushers.wake()
        for item_id in told.answers or (list(traffic.askers)[:1] if again else ()):
            traffic.wake_askers(item_id)

    # --- requests ---

    async def run(self, call: Callable[[], R]) -> R:
        """Make a call in a thread, again for a moment while the engine is away."""
        return await asyncio.wrap_future(self._submit(lambda: self._patiently(call)))

    def _submit(self, call: Callable[[], R]) -> "Future[R]":
        try:
            return self._threads.submit(call)
        except RuntimeError:
            # The program of the server has ended but for this thread, and executors take nothing any more:
            # requests are answered one at a time.
            done: Future[R] = Future()
            try:
                done.set_result(call())
            except Exception as error:  # noqa: BLE001 - it belongs to the request
                done.set_exception(error)
            return done

    def _patiently(self, call: Callable[[], R]) -> R:
        end = time.monotonic() + _PATIENCE
        pauses = retry_delays(0.01, 0.3)
        while True:
            try:
                result = call()
            except TransientError as error:
                pause = next(pauses)
                if time.monotonic() + pause >= end or self._closing.wait(pause):
                    self._note_away(error)
                    raise EngineAwayError(str(error)) from None
            else:
                self._away = None
                return result

    def _note_away(self, error: TransientError) -> None:
        if self._away is None:
            _log.warning("the engine does not answer: %s", str(error))  # whose frames hold sockets
        self._away = EngineAwayError(str(error))

    async def ask(self, name: str, call: Callable[[EngineStore], R]) -> R:
        return await self.run(lambda: self.on_queue(name, call))

    async def change(self, name: str, key: Key | None, call: Callable[[EngineStore, IdempotencyKey], R]) -> R:
        """Make a request that the engine does once."""

        def named() -> R:
            if key is not None:
                return self.on_queue(name, lambda store: call(store, _engine_key(key)))
            engine_key = self._own_keys.take()
            try:
                answer = self._patiently(lambda: self.on_queue(name, lambda store: call(store, engine_key)))
            except Exception as error:
                self._own_keys.give_back_after(engine_key, error)
                raise
            self._own_keys.give_back(engine_key)
            return answer

        return await self.run(named)

    def on_queue(self, name: str, call: Callable[[EngineStore], R]) -> R:
        opened = self.opened(name)
        try:
            return call(opened.store)
        except DeletedQueueError:  # another may have its name by now
            self.forget(name, opened)
            return call(self.opened(name).store)

    def opened(self, name: str) -> OpenQueue:
        known = self._queues.get(name)
        if known is not None:
            return known
        store = self.engine.store(name)
        if not store.exists():
            store.close()
            raise QueueNotFoundError(name, tuple(sorted(self._queues)))
        return self.keep(name, store, store.open(Settings()))

    def keep(self, name: str, store: EngineStore, settings: Settings) -> OpenQueue:
        with self._opening:
            known = self._queues.get(name)
            if known is None:
                watcher = Watcher(store, lambda told: self._note(name, told))
                known = self._queues[name] = OpenQueue(store, settings, watcher)
            elif known.store is not store:
                store.close()
            known.settings = settings
            return known

    def forget(self, name: str, opened: OpenQueue) -> None:
        with self._opening:
            if self._queues.get(name) is opened:
                del self._queues[name]
        opened.watcher.close()
        opened.store.close()

    def known(self, name: str) -> OpenQueue | None:
        """Return a queue that was used before."""
        return self._queues.get(name)

    async def close(self) -> None:
        """End the threads, and release the connections."""
        self._closing.set()
        await asyncio.wrap_future(BriefThreads(1, "fray-queue-closing").submit(self._close))

    def _close(self) -> None:
        queues = list(self._queues.values())
        for each in queues:
            each.watcher.close()
        self._threads.shutdown()
        for each in queues:
            each.store.close()
        self.engine.close()


def digest(text: str) -> str:
    """Return a name of 64 bits, as engines know requests and leases by."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _engine_key(key: Key) -> IdempotencyKey:
    """Return the name under which the engine does a client's request once, through whichever server."""
    engine_key = IdempotencyKey()
    engine_key.name, engine_key.number = digest(key.slot), key.number
    engine_key.again = engine_key.waits = True  # for all that this server knows
    return engine_key
