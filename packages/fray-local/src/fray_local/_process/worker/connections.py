"""The ears of a worker: a thread per connection takes in calls and everything else that is said."""

import contextlib
import os
import queue
import socket
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, NoReturn

from fray._engine.refs import ERROR
from fray.backend import pack_exception
from fray_local._process.protocol.values import Blob, Segment
from fray_local._process.protocol.wire import OutOfDescriptorsError, Reader, Sender, close_all
from fray_local._process.worker import output
from fray_local._process.worker.incoming_calls import FunctionCache, IncomingCall

if TYPE_CHECKING:
    from fray_local._process.worker.main import Worker


class Connection:
    """One process that gives calls to this one. With the owner's connection the worker ends."""

    def __init__(self, worker: "Worker", sock: socket.socket, *, owner: bool) -> None:
        self._worker, self._reader, self.sender, self.is_owner = worker, Reader(sock), Sender(sock), owner
        self._sock = sock
        self._functions = FunctionCache()
        self.kept: dict[int, Segment] = {}  # large values that stay mapped until the other side forgets them
        self.open: dict[int, IncomingCall] = {}  # neither done nor given back
        self._gone = False

    def listen(self) -> None:
        """Take in what is said until the other side is gone."""
        while True:
            try:
                messages = self._reader.read()
            except (EOFError, OSError) as error:
                if self.is_owner:
                    _end(error)
                break
            for message, descriptors in messages:
                self._receive(message, deque(descriptors))
        self._gone = True
        for number in list(self.open):
            self._cancel(number)
        self.kept.clear()
        self._reader.close()
        self._sock.close()

    def send(self, kind: str, number: int, state: int, blob: Blob, *more: Any) -> None:
        """Send an item or the end of a call."""
        if self._gone:
            return
        descriptors: list[int] = []
        description = blob.describe(descriptors)
        keeps = tuple(getattr(one, "key", None) for one in blob.keeps)
        refcount_deltas = (
            self._worker.context.take_refcount_deltas() if self.is_owner and self._worker.context else ()
        )
        message = (kind, number, state, description, keeps, refcount_deltas, output.flush(), *more)
        with contextlib.suppress(OSError):  # gone, as its end will tell
            self.sender.send(message, descriptors)

    def _receive(self, message: tuple[Any, ...], descriptors: deque[int]) -> None:
        """Handle one message; one that cannot be handled must not make the worker deaf for the others."""
        try:
            self._handle(message, descriptors)
        except Exception as error:  # noqa: BLE001 - whatever it is, a call gets its answer
            if message[0] == "call":
                self.send("done", message[1], ERROR, Blob(pack_exception(error)), 0.0)
            else:
                sys.excepthook(*sys.exc_info())

    def _handle(self, message: tuple[Any, ...], descriptors: deque[int]) -> None:
        kind, *rest = message
        if kind == "call":
            call = IncomingCall(self, self._functions, descriptors, *rest)
            self.open[call.number] = call
            self._worker.calls.put(call)
        elif kind == "reply" and self._worker.context is not None:
            number, fine, answer = rest
            self._worker.context.answered(number, fine, answer, descriptors, self.kept)
        elif kind == "credit":
            self._add_credit(*rest)
        elif kind == "cancel":
            self._cancel(*rest)
        elif kind == "forget":
            self.kept.pop(rest[0], None)
        elif kind == "revoke":
            self._give_back()
        elif kind == "exit" and self.is_owner:
            self._worker.finish()
        elif kind == "die":
            os._exit(0)
        else:
            close_all(descriptors)

    def _add_credit(self, number: int, items: int) -> None:
        call = self.open.get(number)
        if call is None:
            return
        with self._worker.lock:
            call.credits = (call.credits or 0) + items
            resumed, call.suspended = call.suspended, False
        if resumed:
            self._worker.calls.put(call)

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
        self.sender.send(("returned", returned))

    def _cancel(self, number: int) -> None:
        call = self.open.get(number)
        if call is None:
            return
        with self._worker.lock:
            call.cancelled = True
            resumed, call.suspended = call.suspended, False
        if resumed:
            self._worker.calls.put(call)
        elif self._worker.runs(call):
            threading.Thread(target=self._worker.interrupt, args=[call], daemon=True).start()


def _end(error: Exception) -> NoReturn:
    """Exit: with the owner everybody is gone who could want a result, or nothing it says is understood."""
    if isinstance(error, OutOfDescriptorsError):
        with contextlib.suppress(OSError):
            os.write(2, f"fray: {error.strerror}\n".encode())
        os._exit(1)
    os._exit(0)


def accept_all(worker: "Worker", listener: socket.socket) -> None:
    """Let in whoever knocks; the directory of the listener keeps other users out."""
    while True:
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        connection = Connection(worker, sock, owner=False)
        threading.Thread(target=connection.listen, name="fray-peer", daemon=True).start()
