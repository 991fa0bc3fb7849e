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
from fray_local._process.worker.incoming_calls import Functions, Job

if TYPE_CHECKING:
    from fray_local._process.worker.main import Worker


class Connection:
    """One process that gives calls to this one. With the owner's connection the worker ends."""

    def __init__(self, worker: "Worker", sock: socket.socket, *, owner: bool) -> None:
        self._worker, self._reader, self.sender, self.is_owner = worker, Reader(sock), Sender(sock), owner
        self._sock = sock
        self._functions = Functions()
        self.kept: dict[int, Segment] = {}  # large values that stay mapped until the other side forgets them
        self.open: dict[int, Job] = {}  # neither done nor given back
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
                self._hear(message, deque(descriptors))
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
        news = self._worker.context.news() if self.is_owner and self._worker.context else ()
        message = (kind, number, state, description, keeps, news, output.flush(), *more)
        with contextlib.suppress(OSError):  # gone, as its end will tell
            self.sender.send(message, descriptors)

    def _hear(self, message: tuple[Any, ...], descriptors: deque[int]) -> None:
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
            job = Job(self, self._functions, descriptors, *rest)
            self.open[job.number] = job
            self._worker.jobs.put(job)
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
        job = self.open.get(number)
        if job is None:
            return
        with self._worker.lock:
            job.credits = (job.credits or 0) + items
            resumed, job.suspended = job.suspended, False
        if resumed:
            self._worker.jobs.put(job)

    def _give_back(self) -> None:
        """Return to the owner what has not started, so that another worker can."""
        returned = []
        jobs = self._worker.jobs
        with contextlib.suppress(queue.Empty):
            while True:
                job = jobs.get_nowait()
                if job is None or job.generator is not None:
                    jobs.put(job)  # nothing but the end comes after it
                    break
                returned.append(job.number)
                self.open.pop(job.number, None)
        self.sender.send(("returned", returned))

    def _cancel(self, number: int) -> None:
        job = self.open.get(number)
        if job is None:
            return
        with self._worker.lock:
            job.cancelled = True
            resumed, job.suspended = job.suspended, False
        if resumed:
            self._worker.jobs.put(job)
        elif self._worker.runs(job):
            threading.Thread(target=self._worker.interrupt, args=[job], daemon=True).start()


def _end(error: Exception) -> NoReturn:
    """Exit: with the owner everybody is gone who could want a result, or nothing it says is understood."""
    if isinstance(error, OutOfDescriptorsError):
        with contextlib.suppress(OSError):
            os.write(2, f"fray: {error.strerror}\n".encode())
        os._exit(1)
    os._exit(0)


def accept_all(worker: "Worker", door: socket.socket) -> None:
    """Let in whoever knocks; the directory of the door keeps other users out."""
    while True:
        try:
            sock, _ = door.accept()
        except OSError:
            return
        connection = Connection(worker, sock, owner=False)
        threading.Thread(target=connection.listen, name="fray-peer", daemon=True).start()
