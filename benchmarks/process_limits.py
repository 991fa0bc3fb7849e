"""The least that a round trip and a first result can take: what a missed goal is measured against.

Nothing here packs a function, keeps a book or survives a death. A round trip is a message there and one
back: "two wake-ups" where each side's only thread reads, "four" where a thread of each side reads and
hands over to the one that works, so that either receives other things meanwhile (a cancellation, an
answer to a nested call). A first result is an interpreter that imports what any fork server and worker
need of the standard library, forks once, and answers; a function of a script, as the benchmark's, also
needs cloudpickle, to be unpickled.
"""

import contextlib
import os
import pickle
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import psutil
from measure import timed

_MESSAGE = pickle.dumps(("call", 1, (b"key", None, ()), b"x" * 60, [], None, None))
_SERVER = """
import os, pickle, queue, select, signal, socket, struct, sys, threading, mmap, resource, types, collections
import {modules}
sock = socket.socket(fileno={descriptor})
sock.recv(65536)
if os.fork() == 0:
    sock.send(b"forked")
    calls = queue.SimpleQueue()
    threading.Thread(target=lambda: calls.put(sock.recv(65536)), daemon=True).start()
    sock.send(calls.get())
    os._exit(0)
os.wait()
"""


def _work(sock: socket.socket) -> None:
    while data := sock.recv(65536):
        sock.send(pickle.dumps(pickle.loads(data)))
    os._exit(0)


def _work_behind_a_listener(sock: socket.socket) -> None:
    calls: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def listen() -> None:
        while data := sock.recv(65536):
            calls.put(data)
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    while True:
        sock.send(pickle.dumps(pickle.loads(calls.get())))


@contextlib.contextmanager
def _forked(work: Callable[[socket.socket], None]) -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        work(theirs)
    theirs.close()
    try:
        yield ours
    finally:
        ours.shutdown(socket.SHUT_RDWR)
        ours.close()
        os.waitpid(pid, 0)


def two_wake_ups(count: int) -> float:
    """Return the seconds of a message to a process and back."""
    with _forked(_work) as sock:

        def trip() -> None:
            sock.send(_MESSAGE)
            pickle.loads(sock.recv(65536))

        return timed(lambda: [trip() for _ in range(count)]) / count


def four_wake_ups(count: int) -> float:
    """Return the same with a thread that reads on either side."""
    with _forked(_work_behind_a_listener) as sock:
        gates: list[threading.Lock] = []

        def listen() -> None:
            with contextlib.suppress(OSError):
                while data := sock.recv(65536):
                    pickle.loads(data)
                    gates.pop().release()

        listener = threading.Thread(target=listen)
        listener.start()

        def trip() -> None:
            gate = threading.Lock()
            gate.acquire()
            gates.append(gate)
            sock.send(_MESSAGE)
            gate.acquire()

        taken = timed(lambda: [trip() for _ in range(count)]) / count
        sock.shutdown(socket.SHUT_RDWR)
        listener.join()
        return taken


def first_answer(modules: str = "time") -> float:
    """Return the seconds until the child of a fresh interpreter has answered."""
    ours, theirs = socket.socketpair()
    start = time.perf_counter()
    with theirs:
        code = _SERVER.format(descriptor=theirs.fileno(), modules=modules)
        server = subprocess.Popen([sys.executable, "-c", code], pass_fds=[theirs.fileno()])
    ours.send(b"fork")
    ours.recv(65536)  # it has forked
    ours.send(b"call")
    ours.recv(65536)
    taken = time.perf_counter() - start
    ours.close()
    server.wait()
    return taken


def processor_time(work: Callable[[], object], count: int) -> tuple[float, float]:
    """Return the seconds of CPU that one of `count` takes in this process, and in its children."""
    children = psutil.Process().children(recursive=True)

    def spent() -> tuple[float, float]:
        return time.process_time(), sum(sum(child.cpu_times()[:2]) for child in children)

    before = spent()
    work()
    after = spent()
    return (after[0] - before[0]) / count, (after[1] - before[1]) / count
