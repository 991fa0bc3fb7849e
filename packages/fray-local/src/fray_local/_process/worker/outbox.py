"""The messages that a worker sends: in order, from any thread, several in one write."""

import contextlib
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from fray import WrongProcessError
from fray.backend import NoThreadError, disown_in_children, start_thread
from fray_local._process.protocol.held_frames import HeldFrames
from fray_local._process.protocol.messages import Message
from fray_local._process.protocol.wire import encode, frames, send_frame, send_some

_HOLD_SECONDS = 0.001  # that a result or an item may wait for the next one
_MOST_HELD = 64  # frames


class Outbox:
    """Writes to a blocking socket.

    A thread that finds the socket free writes for all; nobody waits for the lock, so that a finalizer or a
    signal handler that sends something in the middle of a write leaves it to that write's end.

    Args:
        held: Where frames wait for more; without it, each is written at once.
    """

    def __init__(self, sock: socket.socket, held: HeldFrames | None) -> None:
        self._sock, self._held, self._lock = sock, held, threading.Lock()
        self._frames: deque[tuple[Any, Sequence[int], Any]] = deque()
        self._urgent = False
        self._last_write = 0.0
        self._wanted = threading.Event()
        self._flusher: threading.Thread | None = None
        self.threads_inside: set[int] = set()  # which must not be interrupted in the middle of a message
        self.reader = 0  # the thread that reads what the other side answers
        self._owner = 0  # in a forked child: the process whose socket this is
        disown_in_children(self)

    def disown(self) -> None:
        """In a forked child: refuse every message, and write none of those that were here already.

        The other side would take them for messages of the process that was forked, whose end it learns of by
        the end of the connection.
        """
        self._owner = os.getppid()
        self._sock.close()
        self._frames.clear()
        self.threads_inside.clear()
        self.reader = 0
        self._held, self._lock = None, threading.Lock()

    def send(self, message: Message, descriptors: Sequence[int] = (), keep: Any = None) -> None:
        """Send a message now; `keep` lives until its descriptors are on their way."""
        self.put(message, descriptors, keep)
        self.flush()

    def put(self, message: Message, descriptors: Sequence[int] = (), keep: Any = None) -> None:
        """Put a message in its place in the order; `flush` or `flush_soon` sends it.

        Raises:
            WrongProcessError: This is a forked child of the process that has the socket.
        """
        if self._owner:
            raise WrongProcessError(
                f"the context of worker process {self._owner} was used in its forked child {os.getpid()}, "
                "which nobody answers: get_job_context() and create_context() make another there"
            )
        if descriptors:
            self._frames.extend((data, some, keep) for data, some in frames(message, descriptors))
        else:
            self._frames.append((encode(message), (), None))

    def flush_soon(self) -> None:
        """Send what is there soon: the caller has more to do, and likely more to send."""
        held = self._held
        if held is None or len(held) >= _MOST_HELD or time.monotonic() - self._last_write >= _HOLD_SECONDS:
            self.flush()
        else:
            self._drain()
            if not self._wanted.is_set():
                self._flush_later()

    def flush(self) -> None:
        """Write whatever is there."""
        if self._frames or self._held:
            self._urgent = True
            self._drain()

    def settle(self) -> None:
        """Wait while another thread writes: what it has taken would be lost by the death of this process."""
        while self._frames or self._lock.locked():
            with self._lock:
                pass
            self._drain()

    def _flush_later(self) -> None:
        if self._flusher is None:
            flusher = threading.Thread(target=self._flush_held, name="fray-outbox", daemon=True)
            try:
                self._flusher = start_thread(flusher)
            except NoThreadError:
                self.flush()
                return
        self._wanted.set()

    def _flush_held(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            time.sleep(_HOLD_SECONDS)
            with contextlib.suppress(Exception):  # nothing to write to: the listener ends the worker
                self.flush()

    def _drain(self) -> None:
        me = threading.get_ident()
        if me in self.threads_inside:
            return  # a frame below continues with it
        self.threads_inside.add(me)
        try:
            while self._has_work() and self._lock.acquire(blocking=False):
                try:
                    self._take_frames()
                finally:
                    self._lock.release()
        finally:
            self.threads_inside.discard(me)

    def _has_work(self) -> bool:
        return bool(self._frames) or self._urgent

    def _take_frames(self) -> None:
        """Alone: hold what is there, and write it where that is urgent."""
        try:
            while self._frames:
                data, descriptors, _keep = self._frames.popleft()
                if descriptors or self._held is None or not self._held.hold(data):
                    self._write(data, descriptors)
            if self._urgent:
                self._urgent = False
                self._write(b"", ())
        except OSError:  # the other side is gone, which the listener learns from its end
            self._urgent = False
            self._frames.clear()

    def _write(self, data: bytes, descriptors: Sequence[int]) -> None:
        """Write what is held, and a frame that cannot be."""
        held = self._held
        if held:
            self._sock.sendall(held.view())
            held.were_sent()
        if data:
            send_frame(self._sock, data, descriptors)
            if held is not None:
                held.were_sent(1)
        self._last_write = time.monotonic()


class PeerOutbox(Outbox):
    """To a program that may stop reading, as a stopped one does: no thread that runs calls waits for it.

    Such a thread writes what the socket takes at once. A thread that lives as long as there is more has the
    socket meanwhile.
    """

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock, None)
        self._writer: threading.Thread | None = None

    def _has_work(self) -> bool:
        return self._writer is None and super()._has_work()

    def _take_frames(self) -> None:
        if self._writer is not None:  # since the look
            return
        self._urgent = False
        try:
            while self._frames:
                data, descriptors, keep = self._frames.popleft()
                sent = send_some(self._sock, data, descriptors, socket.MSG_DONTWAIT)
                if sent < len(data):
                    self._frames.appendleft((memoryview(data)[sent:], () if sent else descriptors, keep))
                    self._write_aside()
                    return
        except OSError:  # the other side is gone, which the listener learns from its end
            self._frames.clear()

    def _write_aside(self) -> None:
        # It is no daemon: a process that leaves gives it a while.
        self._writer = threading.Thread(target=self._write_rest, name="fray-peer-outbox")
        try:
            start_thread(self._writer)
        except NoThreadError:
            self._write_rest()

    def _write_rest(self) -> None:
        try:
            while self._frames:
                data, descriptors, _keep = self._frames.popleft()
                send_frame(self._sock, data, descriptors)
        except OSError:
            self._frames.clear()
        self._writer = None
        self._drain()  # what has come since the look
