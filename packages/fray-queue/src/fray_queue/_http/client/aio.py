"""The asynchronous twin of a queue on a server: coroutines over one connection pool for each event loop."""

import asyncio
import os
import threading
from typing import TypeVar

from fray.backend import NativeAsyncQueue, ReplyPoller
from fray.queue import QueueBase, Reply
from fray_queue._http.client.address import ServerAddress
from fray_queue._http.client.calls import Calls, Target
from fray_queue._http.client.connections import Connections
from fray_queue._http.client.loop_network import LoopNetwork

T = TypeVar("T")


class _OfLoop:
    """What one event loop has of a queue."""

    def __init__(self, target: Target, address: ServerAddress) -> None:
        self.connections = Connections(address, LoopNetwork(), timeout=target.timeout)
        self.calls = Calls(target, self.connections)
        self.replies = ReplyPoller(self.calls.fetch_replies)


class Loops:
    """The connection pools of a queue, one for each event loop that uses it."""

    def __init__(self, target: Target, address: ServerAddress) -> None:
        self._target, self._address = target, address
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._known: dict[asyncio.AbstractEventLoop, _OfLoop] = {}

    def current(self) -> _OfLoop:
        """Return what the running loop has; the connections of closed loops are released."""
        loop = asyncio.get_running_loop()
        if self._pid != os.getpid():  # a lock that another thread of the parent held is held for ever
            self._lock, self._pid = threading.Lock(), os.getpid()
        known = self._known.get(loop)
        if known is None:
            with self._lock:
                for closed in [each for each in self._known if each.is_closed()]:
                    self._known.pop(closed).connections.close()
                known = self._known[loop] = _OfLoop(self._target, self._address)
        return known

    def close(self) -> None:
        """Hang up what is idle."""
        for known in list(self._known.values()):
            known.connections.close()


class AsyncHttpQueue(NativeAsyncQueue[T]):
    """The twin of a queue on a server: no call of it takes a thread, however many wait."""

    def __init__(self, queue: QueueBase[T], loops: Loops) -> None:
        super().__init__(queue)
        self._loops = loops

    def _calls(self) -> Calls:
        return self._loops.current().calls

    async def wait_for_reply(self, item_id: str) -> Reply:
        """Wait for one answer; what `await ticket` does."""
        return await self._loops.current().replies.wait(item_id)
