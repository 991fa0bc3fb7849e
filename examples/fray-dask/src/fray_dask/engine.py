"""The primitives of Dask: each is a line or two of `distributed`."""

import asyncio
import functools
from typing import Any

import distributed

from fray.backend import CallFailed, answer, run_call
from fray_dask import connection, scheduler


def _give(outcome: Any) -> Any:
    if isinstance(outcome, CallFailed):
        raise outcome
    return outcome


async def _answer(request: bytes) -> bytes:
    return await asyncio.wrap_future(answer(request))


class DaskEngine:
    """A Dask cluster as an engine; without an address, workers of this machine.

    Args:
        arrived: It was unpickled, in a worker: the connection is this process's.
    """

    processes = True

    def __init__(self, address: str | None = None, *, arrived: bool = False) -> None:
        self._address, self._arrived = address, arrived
        self._futures: dict[str, Any] = {}

    def __reduce__(self) -> Any:
        return functools.partial(DaskEngine, arrived=True), (self.client.scheduler.address,)

    @functools.cached_property
    def client(self) -> Any:
        return connection.shared(self._address) if self._arrived else connection.connect(self._address)

    def _future(self, key: str) -> Any:
        future = self._futures.get(key)
        if future is None:  # another program's: Dask does not report it unless asked
            future = distributed.Future(key, client=self.client)
            self.client.run_on_scheduler(scheduler.want_known, key, self.client.id)
        return future

    def submit(self, key: str, call: bytes, dependencies: Any, options: Any) -> None:
        values = [self._future(one) for one in dependencies]
        native = dict(options.backend.get("dask", {}))
        self._futures[key] = self.client.submit(run_call, call, values, key=key, pure=False, **native)

    def store(self, key: str, outcome: bytes | CallFailed) -> None:
        self._futures[key] = self.client.submit(_give, outcome, key=key, pure=False)

    def fetch(self, keys: Any) -> Any:
        return self.client.gather([self._future(key) for key in keys], direct=self._arrived or None)

    def when_done(self, key: str, act: Any) -> None:
        future = self._futures.get(key)
        if future is None:  # another program's
            future = self._futures[key] = distributed.Future(key, client=self.client)
            self.client.run_on_scheduler(scheduler.want, key, self.client.id)

        async def tell() -> (
            None
        ):  # Dask has one thread for all callbacks of a process, and others' may block it
            act(await future.exception())

        asyncio.run_coroutine_threadsafe(tell(), self.client.loop.asyncio_loop)

    def release(self, keys: Any) -> None:
        for key in keys:
            self._futures.pop(key, None)

    def workers(self) -> Any:
        return self.client.nthreads()

    def ask(self, worker: str, request: bytes) -> Any:
        async def asked() -> Any:
            if worker not in await self.client.nthreads([worker]):
                raise ConnectionError(f"Dask has no worker {worker}")
            return (await self.client.run(_answer, request, workers=[worker]))[worker]

        return asyncio.run_coroutine_threadsafe(asked(), self.client.loop.asyncio_loop)

    def swap(self, name: str, expected: bytes | None, record: bytes | None) -> Any:
        return self.client.run_on_scheduler(scheduler.swap, name, expected, record)

    def claim(self, key: str, by: str) -> Any:
        return self.client.run_on_scheduler(scheduler.claim, key, by)

    lend = staticmethod(distributed.secede)
    reclaim = staticmethod(distributed.rejoin)

    def close(self) -> None:
        self._futures.clear()
        if not self._arrived and "client" in vars(self):
            self.client.close()
