"""Worker processes of a pool: each belongs to one thread, calls the function, and can be killed.

A message is its length and a pickle. The first one to a worker has the import path and the function; each
that follows has items, and is answered twice: with nothing once they are there, and with their outcomes, or
with what ended the worker. The worker's own first message says that it has the function, and all that this
imports: only then does an item's time begin.
"""

import contextlib
import logging
import os
import pickle
import secrets
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from fray import WorkerDiedError
from fray.backend import (
    SUPERVISORS_IGNORE,
    descendants,
    describe,
    die_with_parent,
    dumps,
    kill_until_gone,
    pack_exception,
    retry_delays,
    unpack_exception,
    with_variable,
)
from fray_queue._work.calls import Call, Function, ItemResult, failure, is_awaited, waiting_in_thread
from fray_queue._work.endings import ending_of

_log = logging.getLogger("fray.queue")
_LENGTH = struct.Struct(">Q")
_VARIABLE = "FRAY_WORK_PROCESS"
_COMMAND = "from fray_queue._work.processes import main; main()"
_CHUNK = 1 << 20
_LOOK = 0.5  # seconds between two looks whether a silent worker is there
_LONGEST_PAUSE = 5.0  # seconds between two tries to start a worker


def packed_for_workers(function: Function) -> bytes:
    """Return the first message to each worker.

    Raises:
        SerializationError: The function cannot be pickled.
    """
    return pickle.dumps((sys.path, dumps(function, "the function given to work")))


class InProcess:
    """Calls the function in a worker process, started when it is needed and again when it died.

    Args:
        packed: What `packed_for_workers` made.
    """

    def __init__(self, packed: bytes) -> None:
        self._packed = packed
        self._process: subprocess.Popen[bytes] | None = None
        self._call: Call | None = None  # the last one that the worker got
        self._killed: Call | None = None  # the last one that was to end
        self._lock = threading.Lock()  # a worker is killed or started, not both

    def __enter__(self) -> "InProcess":
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def __call__(self, call: Call) -> list[ItemResult]:
        try:
            items = pickle.dumps([dumps(item, "an item") for item in call.items])
            what, content = pickle.loads(self._exchange(call, items))
        except BaseException as error:  # noqa: BLE001 - what cannot travel, or a worker that died
            return [ItemResult(None, failure(error))] * len(call.entries)
        if what == "fatal":
            self._end()
            raise unpack_exception(content)
        if what == "failed":
            return [_unpacked(content, False, awaited=False)] * len(call.entries)
        return [
            _unpacked(packed, good, awaited=is_awaited(entry.lease))
            for entry, (packed, good) in zip(call.entries, content, strict=True)
        ]

    def kill(self, call: Call) -> bool:
        """Kill the worker of a call with all that it started; the call fails, and is not begun any more."""
        with self._lock:
            self._killed = call
            if self._process is not None and self._call is call:  # else it is at work for the next one
                _kill(self._process, self._tag)
        return True

    def _exchange(self, call: Call, packed: bytes) -> bytearray:
        """Have a worker call the function.

        A worker says that it has the items before it calls the function, or loads an item. So if one ends
        that said nothing, the function was not called: the items go to another worker, once. If it ends
        later, nobody knows how far it came, and the call fails.
        """
        for is_last in (False, True):
            process, is_new = self._worker_for(call)
            taken = False

            def is_gone(process: "subprocess.Popen[bytes]" = process) -> bool:
                return process.poll() is not None

            try:
                if is_new:
                    _send(self._socket, self._packed, is_gone)
                    if problem := _receive(self._socket, is_gone):
                        return problem
                call.begin()
                _send(self._socket, packed, is_gone)
                _receive(self._socket, is_gone)
                taken = True
                return _receive(self._socket, is_gone)
            except (OSError, EOFError) as error:
                self._end()
                if taken or is_last or self._killed is call:
                    raise WorkerDiedError(f"the worker process {ending_of(process.returncode)}") from error
                call.started = None  # until the next worker is there
            except BaseException:  # no memory for its answer, say: the rest of that is not for the next call
                self._end()
                raise
        raise AssertionError("unreachable: the last one returns or raises")

    def _worker_for(self, call: Call) -> "tuple[subprocess.Popen[bytes], bool]":
        """Return the worker, and whether it is a new one: one that ended meanwhile is replaced.

        It waits while none can be started: the limit of processes or of memory is not the items' failure.
        """
        for pause in retry_delays(longest=_LONGEST_PAUSE):
            with self._lock:
                if self._killed is call:
                    raise WorkerDiedError("the call was to end before a worker process had it")
                if self._process is not None and self._process.poll() is not None:
                    self._clear(self._process)
                is_new = self._process is None
                try:
                    process = self._process or self._start()
                except OSError as error:
                    _log.warning("no worker process can be started, and it is tried again: %s", error)
                else:
                    self._call = call
                    return process, is_new
            time.sleep(pause)
        raise AssertionError("unreachable: the delays never end")

    def _start(self) -> "subprocess.Popen[bytes]":
        own, other = socket.socketpair()
        own.settimeout(_LOOK)
        self._tag = secrets.token_hex(8)
        with other:
            try:
                process = subprocess.Popen(
                    [sys.executable, "-c", _COMMAND, str(other.fileno())],
                    pass_fds=[other.fileno()],
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, _VARIABLE: self._tag},
                    start_new_session=True,  # Ctrl-C in a terminal is for the pool, which decides
                )
            except BaseException:
                own.close()
                raise
        self._process, self._socket = process, own
        return process

    def _end(self) -> None:
        with self._lock:
            if self._process is not None:
                self._clear(self._process)

    def _clear(self, process: "subprocess.Popen[bytes]") -> None:
        """Leave nothing of a worker."""
        self._process = None
        self._socket.close()
        try:
            _kill(process, self._tag)
        finally:
            process.wait()


def _kill(process: "subprocess.Popen[bytes]", tag: str) -> None:
    def living() -> list[int]:
        # Once it is reaped its number may be another process's.
        own = [] if process.poll() is not None else [process.pid, *descendants(process.pid)]
        return own or with_variable(_VARIABLE, tag)

    try:
        kill_until_gone(living)
    except (OSError, MemoryError) as error:  # no descriptor to look at other processes with, say
        process.kill()
        _log.warning("what the worker process %d has started may run on: %s", process.pid, describe(error))


def _unpacked(packed: bytes, good: bool, *, awaited: bool) -> ItemResult:
    """Return the outcome of one item: its error, where what it returned or raised cannot be loaded here.

    A value that nobody waits for is not loaded.
    """
    try:
        if good:
            return ItemResult(pickle.loads(packed) if awaited else None, None)
        return ItemResult(None, failure(unpack_exception(packed)))
    except BaseException as error:  # noqa: BLE001 - whatever the class of the result or of the error raises
        return ItemResult(None, failure(error))


def _send(to: socket.socket, data: bytes, is_gone: Callable[[], bool] = lambda: False) -> None:
    head = _LENGTH.pack(len(data))
    if len(data) < _CHUNK:  # at once: the other end wakes up once
        _send_all(to, head + data, is_gone)
    else:
        _send_all(to, head, is_gone)
        _send_all(to, data, is_gone)


def _send_all(to: socket.socket, data: bytes, is_gone: Callable[[], bool]) -> None:
    left = memoryview(data)
    while left:
        try:
            left = left[to.send(left) :]
        except TimeoutError:
            _check_there(is_gone)


def _receive(source: socket.socket, is_gone: Callable[[], bool] = lambda: False) -> bytearray:
    (length,) = _LENGTH.unpack(_exactly(source, _LENGTH.size, is_gone))
    return _exactly(source, length, is_gone)


def _exactly(source: socket.socket, count: int, is_gone: Callable[[], bool]) -> bytearray:
    # All its memory at once: what is too large is refused before it has taken what other threads need.
    data = bytearray(count)
    left = memoryview(data)
    while left:
        try:
            received = source.recv_into(left)
        except TimeoutError:
            _check_there(is_gone)
            continue
        if not received:
            raise EOFError("the other end hung up")
        left = left[received:]
    return data


def _check_there(is_gone: Callable[[], bool]) -> None:
    """Raise an EOFError for a worker that has ended: a process that it forked may keep its line open."""
    if is_gone():
        raise EOFError("the other end is gone")


# --- in the worker ---


def main() -> None:
    """Call the function on what comes, until the pool hangs up."""
    die_with_parent()
    _leave_signals_to_the_pool()
    pool = socket.socket(fileno=int(sys.argv[1]))
    pool.set_inheritable(False)  # a program that the function starts is not to keep the line open
    with contextlib.suppress(EOFError, ConnectionError), waiting_in_thread() as wait_for:
        path, packed = pickle.loads(_receive(pool))
        sys.path[:] = path
        try:
            function: Function = pickle.loads(packed)
        except BaseException as error:  # noqa: BLE001 - raised by `work`
            _send(pool, _raised("fatal", error))
            return
        _send(pool, b"")
        while True:
            items = _receive(pool)
            _send(pool, b"")
            try:
                answer = pickle.dumps(
                    ("outcomes", [_packed(each) for each in _called(function, items, wait_for)])
                )
            except (SystemExit, KeyboardInterrupt) as error:  # raised by `work`
                answer = _raised("fatal", error)
            except BaseException as error:  # noqa: BLE001 - no memory for the items or for the answer, say
                answer = _raised("failed", failure(error))
            _send(pool, answer)


def _leave_signals_to_the_pool() -> None:
    """Let a signal that all processes of a service get, SIGTERM say, end no call: the pool gives it time.

    Programs that the function starts have the default actions, and so have processes that it forks.
    """

    def leave(number: int, frame: object) -> None:
        pass

    before = {}
    for number in SUPERVISORS_IGNORE:
        before[number] = signal.signal(number, leave)
        signal.siginterrupt(number, False)

    def restore() -> None:
        for number, handler in before.items():
            if signal.getsignal(number) is leave:  # else the function has set its own
                signal.signal(number, handler)

    os.register_at_fork(after_in_child=restore)


def _raised(what: str, error: BaseException) -> bytes:
    return pickle.dumps((what, pack_exception(error)))


def _called(function: Function, packed: bytearray, wait_for: Any) -> list[ItemResult]:
    """Return the outcomes of all items; one that cannot be loaded here fails alone."""
    loaded: list[Any] = []
    failed: dict[int, ItemResult] = {}
    each_packed: list[bytes] = pickle.loads(packed)
    for index, each in enumerate(each_packed):
        try:
            loaded.append(pickle.loads(each))
        except BaseException as error:  # noqa: BLE001 - whatever the item's class raises
            failed[index] = ItemResult(None, failure(error))
    results = iter(function.call(loaded, wait_for) if loaded else ())
    return [failed.get(index) or next(results) for index in range(len(each_packed))]


def _packed(outcome: ItemResult) -> tuple[bytes, bool]:
    """Return an outcome that travels, and whether it is a value."""
    if outcome.error is not None:
        return pack_exception(outcome.error), False
    try:
        return dumps(outcome.value, "the result"), True
    except BaseException as error:  # noqa: BLE001 - whatever the result's class raises
        return pack_exception(failure(error)), False
