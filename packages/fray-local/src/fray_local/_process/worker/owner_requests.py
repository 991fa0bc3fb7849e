"""A worker's requests and orders to its owner, in order with the refcount deltas of its proxies."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from fray import GetTimeoutError
from fray.backend import pack_exception, seconds, unpack_exception
from fray_local._process.protocol.messages import (
    Deltas,
    Message,
    Nothing,
    Operation,
    Reply,
    Request,
    Withdraw,
)
from fray_local._process.protocol.values import Blob, Segment, received
from fray_local._process.worker.outbox import Outbox
from fray_local._process.worker.proxies import Proxy

Hand = Callable[[Blob | None, Any, list[Blob]], None]
"""Takes what the owner answered: an error, an answer, and the values that come with it."""


class OwnerRequests:
    """The requests of one worker, and the answers that it waits for."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        # To be reported to the owner: a key is held once more, or less.
        self.refcounts: deque[tuple[Any, int]] = deque()
        self._order, self._taking = threading.RLock(), False
        self._numbers = count()
        self._waiting: dict[int, Hand] = {}

    def disown(self) -> None:
        """In a forked child: another thread may have held the lock, and is not there to release it."""
        self._order = threading.RLock()

    def put_with_deltas(
        self, message: Callable[[Deltas], Message], descriptors: Sequence[int], keep: Any
    ) -> None:
        """Give a message to the owner its place in the order, with what the owner has to know of keys.

        Another thread waits, and a finalizer that interrupts this one sends none of that: else "held once
        less" could overtake "held once more", and the owner would release what is in use.
        """
        with self._order:
            nested, self._taking = self._taking, True
            try:
                self._outbox.put(message(() if nested else self._take_deltas()), descriptors, keep)
            finally:
                self._taking = nested

    def _take_deltas(self) -> Deltas:
        return tuple(self.refcounts.popleft() for _ in range(len(self.refcounts)))

    def answered(self, reply: Reply, descriptors: deque[int], kept: dict[int, Segment]) -> None:
        """Pass the owner's answer to the thread that made the request."""
        hand = self._waiting.pop(reply.number, None)
        error = None if reply.error is None else Blob(reply.error)
        values: list[Blob] = []
        try:  # in any case: the descriptors have to go somewhere
            values = [received(one, descriptors, kept=kept) for one in reply.values]
        except Exception as failure:  # noqa: BLE001 - the one that asked sees it
            error = Blob(pack_exception(failure))
        if hand is not None:
            hand(error, reply.answer, values)

    def ask(
        self, operation: Operation, *, timeout: float | None = None, blobs: Sequence[Blob] = ()
    ) -> tuple[Any, list[Blob]]:
        """Send a request to the owner and block until the answer is there, with the values that come with it.

        Raises:
            GetTimeoutError: It was not there in time.
            RuntimeError: This is a finalizer or a signal handler that interrupted what the answer needs.
        """
        if self.inside_a_message() or threading.get_ident() == self._outbox.reader:
            raise RuntimeError(
                "this would wait for ever: a finalizer or a signal handler interrupted a message to or from "
                "the process that has the answer; use the context from a task or a thread"
            )
        gate = threading.Lock()
        gate.acquire()
        answers: list[tuple[Blob | None, Any, list[Blob]]] = []

        def hand(error: Blob | None, answer: Any, values: list[Blob]) -> None:
            answers.append((error, answer, values))
            gate.release()

        number = self.ask_later(operation, blobs, hand)
        try:
            limit = seconds(timeout)
            gate.acquire(timeout=-1 if limit is None else limit)
        finally:
            self.withdraw(number)
        if not answers:
            raise GetTimeoutError(f"no result within {timeout} s; the tasks go on")
        error, answer, values = answers[0]
        if error is not None:
            raise unpack_exception(error.data)
        return answer, values

    def inside_a_message(self) -> bool:
        """Whether a finalizer or a signal handler has interrupted this thread while it sends something."""
        inside: bool = self._order._is_owned()  # type: ignore[attr-defined]
        return inside or threading.get_ident() in self._outbox.threads_inside

    def ask_later(
        self,
        operation: Operation,
        blobs: Sequence[Blob],
        hand: Hand,
    ) -> int:
        """Send a request whose answer is passed on when it arrives; return the number of the request."""
        number = next(self._numbers)
        self._waiting[number] = hand
        self._request(number, operation, blobs)
        return number

    def withdraw(self, number: int) -> None:
        """Give up a request, unless its answer is there."""
        if self._waiting.pop(number, None) is not None:
            self.tell(Withdraw(number))

    def tell(self, operation: Operation, *, blobs: Sequence[Blob] = ()) -> None:
        """Send the owner an order, which has no answer."""
        self._request(None, operation, blobs)

    def _request(self, number: int | None, operation: Operation, blobs: Sequence[Blob]) -> None:
        descriptors: list[int] = []
        values = [(blob.describe(descriptors), keys_of(blob.keeps)) for blob in blobs]
        thread = threading.get_ident()
        self.put_with_deltas(
            lambda deltas: Request(number, thread, deltas, operation, values), descriptors, blobs
        )
        if number is None and not descriptors:
            self._outbox.flush_soon()
        else:
            self._outbox.flush()

    def flush(self) -> None:
        """Send the refcount deltas that no other message has taken."""
        if self.refcounts:
            self.tell(Nothing())


def keys_of(kept: Sequence[Any]) -> tuple[Any, ...]:
    """Return the keys of those of the kept objects that are names."""
    return tuple(one.key for one in kept if isinstance(one, Proxy))
