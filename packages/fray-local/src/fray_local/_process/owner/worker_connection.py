"""A connection to a process that runs calls: what is given, what comes back."""

import itertools
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from fray import TaskCancelledError
from fray._engine.refs import ERROR, _by_id
from fray.backend import pack_exception
from fray_local._process.owner.calls import AnyCall, RemoteActorProducer, RemoteProducer
from fray_local._process.owner.event_loop import Channel
from fray_local._process.owner.sent_segments import SentSegments, Shipped
from fray_local._process.protocol.values import Blob, Budget, received
from fray_local._process.protocol.wire import close_all, encode

_FUNCTIONS = 256  # that a worker keeps
_numbers = itertools.count(1)


class WorkerOwner(Protocol):
    """Who gives a worker its calls."""

    def done(self, worker: "WorkerConnection", call: AnyCall, seconds: float) -> None:
        """A call has ended."""

    def parked(self, worker: "WorkerConnection", call: AnyCall) -> None:
        """A stream waits for its consumer."""

    def returned(self, worker: "WorkerConnection", calls: list[AnyCall]) -> None:
        """Calls came back unstarted."""

    def lend(self, worker: "WorkerConnection") -> None:
        """The call that runs waits for others."""

    def reclaim(self, worker: "WorkerConnection") -> None:
        """It goes on."""

    def ended(
        self, worker: "WorkerConnection", how: str, started: list[AnyCall], unstarted: list[AnyCall]
    ) -> None:
        """The process is gone."""


class WorkerConnection:
    """Gives calls to a process and hears of their ends; subclasses make the channel."""

    channel: Channel

    def __init__(self, owner: WorkerOwner, budget: Budget, concurrency: int = 1) -> None:
        self.number = next(_numbers)
        self.pid = 0
        self.owner, self.concurrency = owner, concurrency
        self.calls: dict[int, AnyCall] = {}
        self.names: dict[Any, list[Any]] = {}  # what the worker names: the thing, and how often
        self.waiting: dict[int, Any] = {}  # its questions that have no answer yet
        self._budget = budget
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._sent = SentSegments(self._forget_soon)
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._is_gone = False
        self._handlers: dict[str, Callable[..., None]] = {
            "done": self._done,
            "item": self._item,
            "returned": self._returned,
        }

    def kill(self) -> None:
        """End the process now."""
        raise NotImplementedError

    def _forget_soon(self, key: int) -> None:
        # Called by finalizers, which run anywhere, with any lock refcount_deltas.
        self.channel.loop.call_soon(lambda: self.forget(key))

    # To the worker.

    def give(self, calls: list[AnyCall]) -> None:
        """Let it run calls in this order, after those that it has; sent together where no descriptor is."""
        plain: list[bytes] = []
        refused: list[tuple[AnyCall, Exception]] = []
        with self._lock:
            gone = self._is_gone
            for call in () if gone else calls:
                if call.over:  # cancelled on its way here
                    refused.append((call, TaskCancelledError()))
                    continue
                descriptors: list[int] = []
                try:
                    message, keep = self._message(call, descriptors)
                except Exception as failure:  # noqa: BLE001 - a value made in this process that cannot travel
                    refused.append((call, failure))
                    continue
                if not descriptors:
                    plain.append(encode(message))
                    continue
                self._send(plain)
                self.channel.send(message, descriptors, keep)
            self._send(plain)
        for call, error in refused:
            try:
                self.owner.done(self, call, 0.0)
            finally:
                call.lost(error)
        if gone:
            for call in calls:
                call.unclaim()
            self.owner.returned(self, calls)

    def _send(self, plain: list[bytes]) -> None:
        if plain:
            self.channel.send_bytes(b"".join(plain))
            plain.clear()

    def _message(self, call: AnyCall, descriptors: list[int]) -> tuple[tuple[Any, ...], Any]:
        payload, slots, keep = call.payload(descriptors, self._sent)
        call.number, call.worker = next(self._ids), self
        self.calls[call.number] = call
        return ("call", call.number, self._shipped(call), payload, slots, call.method, call.credits), keep

    def _shipped(self, call: AnyCall) -> Any:
        """Return the function's name, with the function itself where the worker does not have it."""
        if call.function is None:
            return None
        key = call.function.key
        if key in self._known:
            self._known.move_to_end(key)
            return key, None, ()
        self._known[key] = None
        forgotten = (self._known.popitem(last=False)[0],) if len(self._known) > _FUNCTIONS else ()
        return key, call.function.data, forgotten

    def resume(self, call: RemoteProducer | RemoteActorProducer) -> None:
        """Let a stream go on."""
        self.channel.send(("credit", call.number, call.new_credits()))

    def cancel(self, call: AnyCall) -> None:
        """Interrupt a call, or take it from the queue."""
        self.channel.send(("cancel", call.number))

    def revoke(self) -> None:
        """Ask for what it has not started."""
        self.channel.send(("revoke",))

    def retire(self) -> None:
        """Let it end after what it has."""
        self.channel.send(("exit",))

    def answer(self, number: int, fine: bool, answer: Any, blobs: Sequence[Blob]) -> None:
        """Answer a request of the worker.

        Args:
            answer: A function of the blobs as they are described, or what is to be said.
        """
        descriptors: list[int] = []
        with self._lock:
            shipped = [Shipped(blob.describe(descriptors, self._sent)) for blob in blobs]
            said = answer(shipped) if callable(answer) else answer
            self.channel.send(("reply", number, fine, said), descriptors, blobs)

    def forget(self, key: int) -> None:
        """Let the worker unmap a large value: nobody here refers to it any more."""
        with self._lock:
            if self._sent.forget(key):
                self.channel.send(("forget", key))

    # From the worker, on the loop's thread.

    def _handle(self, message: tuple[Any, ...], descriptors: list[int]) -> None:
        kind, *rest = message
        handler = self._handlers.get(kind)
        if handler is not None:
            handler(deque(descriptors), *rest)
        else:
            self.other(kind, rest, deque(descriptors))

    def other(self, kind: str, message: list[Any], descriptors: deque[int]) -> None:
        """Take what is no refcount_deltas of a call."""
        close_all(descriptors)

    def forward_output(self) -> None:
        """Pass on what was printed; what a process of somebody else's prints goes elsewhere."""

    def _taken_over(self, state: int, descriptors: deque[int], *arrival: Any) -> tuple[int, Blob]:
        """Return what a call gave, or why this process cannot have it: an answer is never lost."""
        try:
            blob = self._arrived(descriptors, *arrival)
            if blob.segment is not None:
                blob.segment = self._budget.adopt(blob.segment)
        except Exception as error:  # noqa: BLE001 - no room, a full disk, output that cannot be written
            return ERROR, Blob(pack_exception(error))
        return state, blob

    def _arrived(
        self,
        descriptors: deque[int],
        description: Any,
        keeps: tuple[Any, ...],
        refcount_deltas: Any,
        wrote: bool,
    ) -> Blob:
        if wrote:  # what a task printed comes out before its result does
            self.forward_output()
        blob = received(description, descriptors, self.things(keeps) if keeps else ())
        self.apply_refcounts(refcount_deltas)
        return blob

    def _done(self, descriptors: deque[int], number: int, state: int, description: Any, *rest: Any) -> None:
        *arrival, seconds = rest
        state, blob = self._taken_over(state, descriptors, description, *arrival)
        call = self.calls.pop(number, None)
        if call is None:
            return
        call.worker = None
        try:
            self.owner.done(self, call, seconds)
        finally:
            call.done(state, blob)

    def _item(self, descriptors: deque[int], number: int, state: int, description: Any, *rest: Any) -> None:
        state, blob = self._taken_over(state, descriptors, description, *rest)
        call = self.calls.get(number)
        if not isinstance(call, RemoteProducer | RemoteActorProducer):
            return
        if state == ERROR:
            call.done(state, blob)
        elif call.item(blob):
            self.owner.parked(self, call)

    def _returned(self, descriptors: deque[int], numbers: list[int]) -> None:
        calls = [call for number in numbers if (call := self.calls.pop(number, None)) is not None]
        for call in calls:
            call.unclaim()
        self.owner.returned(self, calls)

    def apply_refcounts(self, refcount_deltas: tuple[tuple[Any, int], ...]) -> None:
        """Keep, or let go of, what the worker names once more or once less."""
        for key, change in refcount_deltas:
            entry = self.names.get(key)
            if entry is None:
                thing = _by_id.get(key)
                if thing is None:
                    continue
                entry = self.names[key] = [thing, 0]
            entry[1] += change
            if entry[1] <= 0:
                del self.names[key]

    def name(self, key: Any, thing: Any) -> None:
        """Give a thing the name that the worker chose, and keep it."""
        _by_id[key] = thing
        self.names[key] = [thing, 1]

    def things(self, keys: tuple[Any, ...]) -> list[Any]:
        """Return what the worker names; what is gone is left out."""
        found = [_by_id.get(key) for key in keys]
        return [thing for thing in found if thing is not None]

    def gone(self, how: str, last_started: int) -> None:
        """Tell the owner what became of everything that was given."""
        self.channel.close()
        with self._lock:
            calls, self.calls, self._is_gone = self.calls, {}, True
            self._sent.clear()
        # With several at a time nobody can tell which had started: all that were given count as such.
        reached = last_started if self.concurrency == 1 else max(calls, default=0)
        started = [call for number, call in calls.items() if number <= reached]
        unstarted = [call for number, call in calls.items() if number > reached]
        self.owner.ended(self, how, started, unstarted)
        self.names.clear()
