"""A worker's connections: a thread for each takes in calls, cancellations, credits and answers."""

import contextlib
import errno
import os
import queue
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

from fray.backend import NoThreadError, pack_exception, process_tree, start_thread
from fray_local._process.protocol.messages import (
    Call,
    Cancel,
    Credit,
    Deltas,
    Die,
    Done,
    Exit,
    ForgetSegment,
    Item,
    Message,
    Reply,
    Returned,
    Revoke,
)
from fray_local._process.protocol.values import ERROR, Blob, Segment
from fray_local._process.protocol.wire import Reader, close_all, describe_failure
from fray_local._process.worker import output
from fray_local._process.worker.incoming_calls import FunctionCache, IncomingCall
from fray_local._process.worker.interfaces import CallRunner
from fray_local._process.worker.leaving import KILLED
from fray_local._process.worker.outbox import Outbox, PeerOutbox

_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED)
_KILL_SECONDS = 3.0  # for what an actor that is to die has started
_ACCEPT_AGAIN = 0.1  # seconds; a process that is out of descriptors may close some


class Connection:
    """One process that gives calls to this one. With the owner's connection the worker ends."""

    def __init__(self, worker: CallRunner, sock: socket.socket, *, owner: bool) -> None:
        self._worker, self._reader, self.is_owner = worker, Reader(sock), owner
        self.outbox = Outbox(sock, worker.held_frames) if owner else PeerOutbox(sock)
        self._sock = sock
        self._functions = FunctionCache()
        self.kept: dict[int, Segment] = {}  # large values that stay mapped until the other side forgets them
        self.open: dict[int, IncomingCall] = {}  # neither done nor given back
        self._gone = False
        self._handlers: dict[type, Callable[[Any, deque[int]], None]] = {
            Call: self._take_call,
            Reply: self._take_reply,
            Credit: lambda message, _: self._worker.add_credit(self.open.get(message.number), message.items),
            Cancel: lambda message, _: self._cancel(message.number),
            ForgetSegment: self._forget_segment,
            Revoke: lambda _, __: self._give_back(),
            Exit: lambda _, __: self._worker.finish() if self.is_owner else None,
            Die: lambda _, __: _die(),
        }

    def listen(self) -> None:
        """Read messages until the other side is gone."""
        self.outbox.reader = threading.get_ident()
        while True:
            try:
                messages = self._reader.read()
            except Exception as error:  # noqa: BLE001 - its end, no memory, or bytes that are not a pickle
                if self.is_owner:
                    _end(error)
                break
            for message, descriptors in messages:
                self._receive(message, deque(descriptors))
        self._gone = True
        for call in list(self.open.values()):
            self._worker.abandon(call)
        self.kept.clear()
        self._reader.close()
        self._sock.close()

    # To the other side.

    def send_item(self, number: int, blob: Blob, *, soon: bool) -> None:
        """Send an item of a stream; `soon`: the generator continues."""
        descriptors: list[int] = []
        value = blob.describe(descriptors)
        keys, wrote = _keys(blob), output.flush()
        self._say(lambda deltas: Item(number, value, keys, deltas, wrote), descriptors, blob, soon=soon)

    def send_done(self, number: int, state: int, blob: Blob, seconds: float, *, soon: bool) -> None:
        """Send the end of a call; `soon`: another call is there to run."""
        descriptors: list[int] = []
        value = blob.describe(descriptors)
        keys, wrote = _keys(blob), output.flush()
        self._say(
            lambda deltas: Done(number, state, value, keys, deltas, wrote, seconds),
            descriptors,
            blob,
            soon=soon,
        )

    def _say(
        self, message: Callable[[Deltas], Message], descriptors: Sequence[int], keep: Any, *, soon: bool
    ) -> None:
        if self._gone:
            return
        context = self._worker.context
        if self.is_owner and context is not None:
            context.requests.put_with_deltas(message, descriptors, keep)
        else:
            self.outbox.put(message(()), descriptors, keep)
        if soon and not descriptors:
            self.outbox.flush_soon()
        else:
            self.outbox.flush()

    # From the other side.

    def _receive(self, message: Message, descriptors: deque[int]) -> None:
        """Handle one message; one that cannot be handled must not make the worker deaf for the others."""
        try:
            self._handlers[type(message)](message, descriptors)
        except Exception as error:  # noqa: BLE001 - whatever it is, a call gets its answer
            close_all(descriptors)
            if isinstance(message, Call):
                self.send_done(message.number, ERROR, Blob(pack_exception(error)), 0.0, soon=False)
            else:
                sys.excepthook(*sys.exc_info())

    def _take_call(self, message: Call, descriptors: deque[int]) -> None:
        call = IncomingCall(self, self._functions, descriptors, message)
        self.open[call.number] = call
        self._worker.calls.put(call)

    def _forget_segment(self, message: ForgetSegment, _: deque[int]) -> None:
        self.kept.pop(message.key, None)

    def _take_reply(self, message: Reply, descriptors: deque[int]) -> None:
        if self._worker.context is not None:
            self._worker.context.requests.answered(message, descriptors, self.kept)

    def _give_back(self) -> None:
        """Return to the owner what has not started, so that another worker can."""
        returned = []
        calls = self._worker.calls
        with contextlib.suppress(queue.Empty):
            while True:
                call = calls.get_nowait()
                if call is None or call.generator is not None:
                    calls.put(call)  # nothing but the end comes after it
                    break
                returned.append(call.number)
                self.open.pop(call.number, None)
        self.outbox.send(Returned(returned))

    def _cancel(self, number: int) -> None:
        call = self.open.get(number)
        if call is not None:
            self._worker.cancel(call)


def _keys(blob: Blob) -> tuple[Any, ...]:
    return tuple(getattr(one, "key", None) for one in blob.keeps) if blob.keeps else ()


def _end(error: Exception) -> NoReturn:
    """Exit: the owner, who wants the results, is gone, or its messages cannot be read."""
    if isinstance(error, EOFError):
        os._exit(0)
    why = describe_failure(error)
    with contextlib.suppress(OSError):
        os.write(2, f"fray: {why}\n".encode())
    os._exit(1)


def _die() -> NoReturn:
    """Exit with all that was started here: of a detached actor there is no fork server that would end it."""
    try:
        from fray.backend import SUPERVISOR_MODULE  # of a job that was launched here, and goes on

        process_tree.kill_until_gone(
            partial(process_tree.descendants, os.getpid(), SUPERVISOR_MODULE), _KILL_SECONDS
        )
    finally:
        os._exit(KILLED)


def accept_all(worker: CallRunner, listener: socket.socket) -> None:
    """Accept connections; the directory of the socket keeps other users out."""
    os.register_at_fork(after_in_child=listener.close)  # the actor is alive as long as it is open
    while True:
        try:
            sock, _ = listener.accept()
        except OSError as error:
            if error.errno not in _PASSING:
                return
            time.sleep(_ACCEPT_AGAIN)
            continue
        sock.setblocking(True)  # whatever the program has said by `socket.setdefaulttimeout`
        connection = Connection(worker, sock, owner=False)
        try:
            start_thread(threading.Thread(target=connection.listen, name="fray-peer", daemon=True))
        except NoThreadError:  # the limit on them: this caller is refused, and later ones may be served
            sock.close()
