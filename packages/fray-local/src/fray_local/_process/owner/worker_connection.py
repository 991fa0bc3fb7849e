"""The owner's end of a connection to a process that runs calls: what is given, what comes back."""

import itertools
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

from fray.backend import Ready, dispatch, pack_exception, thing_by_key
from fray_local._process.owner.calls import CallState, PackedError
from fray_local._process.owner.event_loop import Channel
from fray_local._process.owner.sent_segments import SentSegments
from fray_local._process.owner.serial_queue import SerialQueue
from fray_local._process.protocol.messages import (
    Call,
    Cancel,
    Credit,
    Deltas,
    Done,
    Exit,
    ForgetSegment,
    FunctionShipment,
    Item,
    Key,
    Message,
    Parked,
    Reply,
    Returned,
    Revoke,
)
from fray_local._process.protocol.serialization import SerializedCall, SerializedFunction
from fray_local._process.protocol.values import CANCELLED, END, ERROR, VALUE, Blob, Budget, received
from fray_local._process.protocol.wire import close_all, encode

_FUNCTIONS = 256  # that a worker keeps
_FUNCTION_BYTES = 1 << 24  # of all of them: with a function, a worker keeps what that captured
_METHODS = {"task": None, "construct": ""}  # what a message has for `method`, by kind of call
_numbers = itertools.count(1)


class WorkerOwner(Protocol):
    """What gives a worker its calls: the scheduler, or one actor's process."""

    def done(self, worker: "WorkerConnection", call: Any, seconds: float) -> None:
        """A call has ended."""

    def parked(self, worker: "WorkerConnection", call: Any) -> None:
        """A stream waits for its consumer."""

    def returned(self, worker: "WorkerConnection", calls: list[Any]) -> None:
        """Calls came back unstarted."""

    def lend(self, worker: "WorkerConnection", reason: Hashable) -> None:
        """The call that runs waits for others, for a reason that `reclaim` will name."""

    def reclaim(self, worker: "WorkerConnection", reason: Hashable) -> None:
        """It continues."""

    def ended(self, worker: "WorkerConnection", how: str, started: list[Any], unstarted: list[Any]) -> None:
        """The process is gone."""


class WorkerConnection:
    """Gives calls to a process and learns how they end; subclasses make the channel."""

    channel: Channel

    def __init__(self, owner: WorkerOwner, budget: Budget, concurrency: int = 1) -> None:
        self.number = next(_numbers)
        self.pid = 0
        self.owner, self.concurrency = owner, concurrency
        self.calls: dict[int, Any] = {}
        self.proxies: dict[Key, list[Any]] = {}  # what the worker names: the thing, and how often
        self.pending_requests: dict[int, Any] = {}
        self.promised: set[Key] = set()  # references that it has yet to settle
        self._budget = budget
        self._known: OrderedDict[bytes, int] = OrderedDict()  # functions that it has, and their sizes
        self._known_bytes = 0
        self._sent = SentSegments(self._forget_soon)
        self._ids = itertools.count(1)
        self._sending = SerialQueue()
        self._is_gone = self.was_killed = False  # `was_killed`: by another program, and for good
        self._handlers: dict[type, Callable[[Any, deque[int]], None]] = {
            Done: self._done,
            Item: self._item,
            Parked: self._parked,
            Returned: self._returned,
        }

    def kill(self) -> None:
        """End the process now."""
        raise NotImplementedError

    def _forget_soon(self, key: int) -> None:
        # Called by finalizers, which run anywhere: the event loop does the work.
        self.channel.loop.call_soon(lambda: self._sending.run(lambda: self._forget(key)))

    # To the worker.

    def give(self, calls: list[Any]) -> None:
        """Let it run calls in this order, after those that it has."""
        self._sending.run(partial(self._give, calls))

    def _give(self, calls: list[Any]) -> None:
        if self._is_gone:
            for call in calls:
                call.unclaim()
            self.owner.returned(self, calls)
            return
        plain: list[bytes] = []  # sent together where no descriptor is
        for call in calls:
            if call.over:  # cancelled on its way here
                self.owner.done(self, call, 0.0)
                continue
            descriptors: list[int] = []
            try:
                message, keep = self._message(call, descriptors)
            except Exception as error:  # noqa: BLE001 - a value made in this process that cannot travel
                self._refuse(call, error)
                continue
            if not descriptors:
                plain.append(encode(message))
                continue
            self._send(plain)
            self.channel.send(message, descriptors, keep)
        self._send(plain)
        for call in calls:
            # Cancelled since the look above, when nobody knew yet whom to notify: nothing else ends it.
            if call.over and call.state.worker is self and call.state.number in self.calls:
                call.runner.interrupt(call)

    def after_given(self, act: Callable[[], None]) -> None:
        """Call something when all calls that were given until now were sent, or returned."""
        self._sending.run(act)

    def _refuse(self, call: Any, error: Exception) -> None:
        try:
            self.owner.done(self, call, 0.0)
        finally:
            dispatch(call.fail(error))

    def _send(self, plain: list[bytes]) -> None:
        if plain:
            self.channel.send_bytes(b"".join(plain))
            plain.clear()

    def _message(self, call: Any, descriptors: list[int]) -> tuple[Call, Any]:
        packed: SerializedCall = call.payload
        payload = packed.blob.describe(descriptors)
        slots: list[tuple[int | str, Any]] = []
        blobs: list[Blob] = []
        if packed.places:
            blobs = [ref.content for ref in call.refs]
            slots = [
                (place, blob.describe(descriptors, self._sent))
                for place, blob in zip(packed.places, blobs, strict=True)
            ]
        state: CallState = call.state
        number = state.number = next(self._ids)
        state.worker = self
        self.calls[number] = call
        items = call.credits if call.streaming else None
        method = _METHODS.get(call.kind, call.method)
        message = Call(number, self._shipment(packed.function), payload, slots, method, items)
        return message, (packed.blob, blobs)

    def _shipment(self, function: SerializedFunction | None) -> FunctionShipment | None:
        """Return the function's key, with the function itself where the worker does not have it."""
        if function is None:
            return None
        key = function.key
        if key in self._known:
            self._known.move_to_end(key)
            return key, None, ()
        self._known[key] = len(function.data)
        self._known_bytes += len(function.data)
        return key, function.data, tuple(self._forgotten())

    def _forgotten(self) -> Iterator[bytes]:
        """Yield the keys of those that the worker has to drop: they were not used for longest."""
        known = self._known
        while len(known) > 1 and (len(known) > _FUNCTIONS or self._known_bytes > _FUNCTION_BYTES):
            key, size = known.popitem(last=False)
            self._known_bytes -= size
            yield key

    def resume(self, number: int, more: int) -> None:
        """Let a stream send more items."""
        self.channel.send(Credit(number, more))

    def cancel(self, number: int) -> None:
        """Interrupt a call, or take it from the queue."""
        self.channel.send(Cancel(number))

    def revoke(self) -> None:
        """Recall the calls that it has not started."""
        self.channel.send(Revoke())

    def retire(self) -> None:
        """Let it end after what it has."""
        self.channel.send(Exit())

    def answer(self, number: int, error: bytes | None, answer: Any, blobs: Sequence[Blob] = ()) -> None:
        """Answer a request of the worker."""

        def send() -> None:
            descriptors: list[int] = []
            values = [blob.describe(descriptors, self._sent) for blob in blobs]
            self.channel.send(Reply(number, error, answer, values), descriptors, blobs)

        self._sending.run(send)

    def _forget(self, key: int) -> None:
        """Let the worker unmap a large value: nobody here refers to it any more."""
        if self._sent.forget(key):
            self.channel.send(ForgetSegment(key))

    # From the worker, on the event loop's thread.

    def _handle(self, message: Message, descriptors: list[int]) -> None:
        handler: Callable[[Any, deque[int]], None] = self._handlers.get(type(message), self.other)
        handler(message, deque(descriptors))

    def other(self, message: Message, descriptors: deque[int]) -> None:
        """Take what is not about a call."""
        close_all(descriptors)

    def _taken_over(self, state: int, message: Done | Item, descriptors: deque[int]) -> tuple[int, Blob]:
        """Return what a call gave, or why this process cannot have it: an answer is never lost."""
        try:
            keeps = self.things(message.keeps) if message.keeps else ()
            blob = received(message.value, descriptors, keeps)
            if message.deltas:
                self.apply_refcounts(message.deltas)
            if blob.segment is not None:
                blob.segment = self._budget.adopt(blob.segment)
        except Exception as error:  # noqa: BLE001 - no room, a full disk
            return ERROR, Blob(pack_exception(error))
        return state, blob

    def _done(self, message: Done, descriptors: deque[int]) -> None:
        state, blob = self._taken_over(message.state, message, descriptors)
        call = self.calls.pop(message.number, None)
        if call is None:
            return
        try:
            self.owner.done(self, call, message.seconds)
        finally:
            dispatch(_settle(call, state, blob))

    def _item(self, message: Item, descriptors: deque[int]) -> None:
        state, blob = self._taken_over(VALUE, message, descriptors)
        call = self.calls.get(message.number)
        if call is None:
            return
        if state != VALUE:
            dispatch(_settle(call, state, blob))
            self.cancel(message.number)
        else:
            call.push((blob,))

    def _parked(self, message: Parked, _: deque[int]) -> None:
        call = self.calls.get(message.number)
        if call is not None and call.parked:  # its consumer has taken nothing meanwhile
            self.owner.parked(self, call)

    def _returned(self, message: Returned, _: deque[int]) -> None:
        calls = [call for number in message.numbers if (call := self.calls.pop(number, None)) is not None]
        for call in calls:
            call.unclaim()
        self.owner.returned(self, calls)

    def apply_refcounts(self, deltas: Deltas) -> None:
        """Keep, or release, what the worker names once more or once less."""
        for key, change in deltas:
            entry = self.proxies.get(key)
            if entry is None:
                thing = thing_by_key.get(key)
                if thing is None:
                    continue
                entry = self.proxies[key] = [thing, 0]
            entry[1] += change
            if entry[1] <= 0:
                del self.proxies[key]

    def hold(self, key: Key, thing: Any) -> None:
        """Let a key of the worker's choice name a thing, and keep it."""
        thing_by_key[key] = thing
        self.proxies[key] = [thing, 1]

    def things(self, keys: tuple[Key, ...]) -> list[Any]:
        """Return what the worker names; what is gone is left out."""
        found = [thing_by_key.get(key) for key in keys]
        return [thing for thing in found if thing is not None]

    def gone(self, how: str, last_started: int) -> None:
        """Report to the owner what became of every call that was given."""
        self.channel.close()
        self._sending.run(partial(self._end, how, last_started))

    def _end(self, how: str, last_started: int) -> None:
        calls, self.calls, self._is_gone = self.calls, {}, True
        self._sent.clear()
        # With several at a time it is unknown which had started: all that were given count as such.
        reached = last_started if self.concurrency == 1 else max(calls, default=0)
        started = [call for number, call in calls.items() if number <= reached]
        unstarted = [call for number, call in calls.items() if number > reached]
        self.owner.ended(self, how, started, unstarted)
        self.proxies.clear()


def _settle(call: Any, state: int, blob: Blob) -> Ready:
    if state == VALUE:
        ready: Ready = call.succeed(None if call.kind == "construct" else blob)
    elif state == END:
        ready = call.succeed()
    else:
        ready = call.fail(PackedError(blob.data, keeps=blob.keeps, cancelled=state == CANCELLED))
    return ready
