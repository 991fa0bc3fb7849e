"""One thread of the owner that reads everything its workers send, and waits for nothing else.

Any thread may send: what a socket does not take at once waits in its channel, and the loop sends it
on. So two processes with full sockets never wait for each other.
"""

import contextlib
import heapq
import itertools
import os
import selectors
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from fray.backend import start_thread
from fray_local._process.owner.serial_queue import SerialQueue
from fray_local._process.protocol.messages import Message
from fray_local._process.protocol.wire import Reader, encode, frames, send_some

_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class EventLoop:
    """Calls back when something can be read, when a time has come, or when another thread asks.

    Args:
        prepare: Called on the loop's thread before anything else.
    """

    def __init__(self, name: str, prepare: Callable[[], None]) -> None:
        self._prepare = prepare
        self._selector = selectors.DefaultSelector()
        self._wake, self._waker = os.pipe()
        for end in (self._wake, self._waker):
            os.set_blocking(end, False)
        self._selector.register(self._wake, _READ, None)
        self._watched: dict[Any, Callable[[int], None]] = {}
        self._asked: deque[Callable[[], None]] = deque()
        self._awake = False
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._stopped = self._ended = False
        self._writing = threading.RLock()  # a finalizer may wake the loop in a thread that holds it
        self._thread = start_thread(threading.Thread(target=self._run, name=name, daemon=True))

    @property
    def inside(self) -> bool:
        """Whether this is the loop's own thread."""
        return threading.current_thread() is self._thread

    @property
    def ended(self) -> bool:
        """Whether nothing is read or sent any more."""
        return self._ended

    def disown(self) -> None:
        """In a forked child: send nothing, and keep no connection open that the parent closes."""
        self._ended, self._awake, self._writing = True, False, threading.RLock()
        for file in self._watched:
            if isinstance(file, socket.socket):
                file.close()

    def call_soon(self, act: Callable[[], None]) -> None:
        """Let the loop call something, unless it has ended; from any thread, finalizers included."""
        self._asked.append(act)
        if not self._awake:
            try:
                self._awake = True
                self._wake_up()
            except BaseException:
                self._awake = False  # Ctrl-C may have come before the write: the next caller wakes it
                raise

    def _wake_up(self) -> None:
        with self._writing:
            if self._ended:  # the descriptor may be another file by now
                self._asked.clear()
                return
            with contextlib.suppress(BlockingIOError):
                os.write(self._waker, b"x")

    def call_later(self, seconds: float, act: Callable[[], None]) -> None:
        """Let the loop call something after a while."""
        when = time.monotonic() + seconds
        self.call_soon(lambda: heapq.heappush(self._timers, (when, next(self._order), act)))

    def watch(self, file: Any, events: int, ready: Callable[[int], None]) -> None:
        """On the loop's thread: call `ready` when something can be done with a file, or change for what."""
        if file in self._watched:
            self._selector.modify(file, events, ready)
        else:
            self._selector.register(file, events, ready)
        self._watched[file] = ready

    def forget(self, file: Any) -> None:
        """On the loop's thread: watch a file no more."""
        if self._watched.pop(file, None) is not None:
            self._selector.unregister(file)

    def stop(self) -> None:
        """End the thread."""
        self.let_go()
        self.join()

    def let_go(self) -> None:
        """Let the thread end soon; from any thread, finalizers included."""
        self._stopped = True
        self._awake = False
        self.call_soon(lambda: None)

    def join(self) -> None:
        """Wait until the thread has ended after `stop` or `let_go`."""
        if not self.inside:
            self._thread.join()

    def _run(self) -> None:
        self._prepare()
        while not self._stopped:
            for key, events in self._selector.select(self._until_next_timer()):
                if key.data is None:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake, 4096)
                    # After the read, or it could take the byte of a request that is not read until the next.
                    self._awake = False
                elif self._watched.get(key.fileobj) is key.data:  # not forgotten since the look
                    self.guarded(lambda act=key.data, events=events: act(events))  # type: ignore[misc]
            self._do_asked()
            now = time.monotonic()
            while self._timers and self._timers[0][0] <= now:
                self.guarded(heapq.heappop(self._timers)[2])
        self._do_asked()
        self._selector.close()
        with self._writing:
            self._ended, self._awake = True, False
            os.close(self._wake)
            os.close(self._waker)

    def _do_asked(self) -> None:
        for _ in range(len(self._asked)):
            self.guarded(self._asked.popleft())

    def _until_next_timer(self) -> float | None:
        if self._asked:
            return 0
        return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None

    def guarded(self, act: Callable[[], None]) -> None:
        """On the loop's thread: call something that must not end it."""
        try:
            act()
        except Exception:  # noqa: BLE001 - one bad message must not silence all workers
            sys.excepthook(*sys.exc_info())


class Channel:
    """One connection of the owner; sends without blocking, hands on what arrives.

    Args:
        handle: Takes each message with its descriptors, on the event loop's thread.
        closed: Called once, on the event loop's thread, when the other side is gone, or cannot be
            understood any more: with what went wrong.
    """

    def __init__(
        self,
        loop: EventLoop,
        sock: socket.socket,
        handle: Callable[[Message, list[int]], None],
        closed: Callable[[Exception], None],
    ) -> None:
        sock.setblocking(False)
        self.loop = loop
        self._sock, self._reader = sock, Reader(sock)
        self._handle, self._closed = handle, closed
        self._writing = SerialQueue()
        self._backlog: deque[tuple[bytes | memoryview, Sequence[int], Any]] = deque()
        self._gone = self._blocked = False

    def listen(self) -> None:
        """Begin to hand on: its maker knows it by now, and the other side may be gone already."""
        self.loop.call_soon(lambda: self._watch(_READ))

    def send(self, message: Message, descriptors: Sequence[int] = (), keep: Any = None) -> None:
        """Send a message; `keep` lives until its descriptors are on their way."""
        if descriptors:
            self._push([(data, some, keep) for data, some in frames(message, descriptors)])
        else:
            self._push([(encode(message), (), None)])

    def send_bytes(self, data: bytes) -> None:
        """Send whole messages that are encoded already."""
        self._push([(data, (), None)])

    def drain(self) -> None:
        """On the event loop's thread: hand on what has arrived, and nothing after."""
        with contextlib.suppress(Exception):  # nothing is there, the end, or nothing more can be read
            while not self._gone:
                self._read_once()

    def recover(self, data: bytes, sent: int) -> None:
        """Hand on what the other side had held when it died, which had sent so many frames before."""
        for message in self._reader.unread(data, sent):
            self._hand_on(message, [])

    def close(self) -> None:
        """Close this end."""
        self._gone = True

        def close() -> None:
            self._backlog.clear()
            self.loop.forget(self._sock)
            self._reader.close()
            self._sock.close()

        self.loop.call_soon(close)

    def hang_up(self, then: Callable[[], None]) -> None:
        """Close this end, then call something on the event loop's thread."""
        self.close()
        self.loop.call_soon(then)

    def _push(self, data: list[tuple[bytes | memoryview, Sequence[int], Any]]) -> None:
        if not self._gone and not self.loop.ended:
            self._backlog.extend(data)
            if not self._blocked:
                self._writing.run(self._write)

    def _write(self) -> None:
        """Write what can be written now; the event loop continues when there is room again."""
        backlog = self._backlog
        while backlog and not self._gone:
            data, descriptors, keep = backlog.popleft()
            try:
                sent = send_some(self._sock, data, descriptors)
            except (BrokenPipeError, ConnectionResetError):  # the other side is gone, which its end will show
                backlog.clear()
                return
            except OSError as error:  # no memory, say: the other side would wait for what is lost here
                backlog.clear()
                self.loop.call_soon(partial(self._break, error))
                return
            if sent < len(data):
                backlog.appendleft((memoryview(data)[sent:], () if sent else descriptors, keep))
                if not self._blocked:
                    self._blocked = True
                    self.loop.call_soon(lambda: self._watch(_READ | _WRITE))
                return
        if self._blocked:
            self._blocked = False
            self.loop.call_soon(lambda: self._watch(_READ))

    def _watch(self, events: int) -> None:
        if not self._gone:
            self.loop.watch(self._sock, events, self._ready)

    def _ready(self, events: int) -> None:
        if events & _WRITE:
            self._writing.run(self._write)
        if events & _READ and not self._gone:
            try:
                self._read_once()
            except BlockingIOError:
                return
            except Exception as error:  # noqa: BLE001 - no memory for a message, say; half of one was taken
                self._break(error)

    def _break(self, error: Exception) -> None:
        if not self._gone:
            self.loop.forget(self._sock)
            self._closed(error)

    def _read_once(self) -> None:
        for message, descriptors in self._reader.read():
            self._hand_on(message, descriptors)

    def _hand_on(self, message: Message, descriptors: list[int]) -> None:
        try:
            self._handle(message, descriptors)
        except Exception:  # noqa: BLE001 - one bad message must not silence all workers
            sys.excepthook(*sys.exc_info())
