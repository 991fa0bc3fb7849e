"""Messages between tests and tasks, on whatever machine each runs: notes, kept in the test's process.

A note is a gate that holds a task back, a mark that something ran, or a diary of how often. It is a name at
the address of a server, and pickles. Nothing but the standard library: every worker loads this.
"""

import json
import socket
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self
from uuid import uuid4

from fray.testing.gates import PATIENCE


class Note:
    """A text that only grows; it exists once something was added. Any process may hold one.

    Args:
        host: Where its server listens.
        port: On which port.
    """

    def __init__(self, host: str, port: int, name: str) -> None:
        self.host, self.port, self.name = host, port, name

    @classmethod
    def at(cls, text: str) -> Self:
        """Return the note that `str` gave this text for."""
        address, _, name = text.partition("/")
        host, _, port = address.rpartition(":")
        return cls(host, int(port), name)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}/{self.name}"

    def add(self, text: str = "x") -> str:
        """Add to it; return the whole, which nobody else has added to in between."""
        return self._ask("add", text)

    def read(self) -> str:
        """Return all that was added, in order; empty where nothing was."""
        return self._ask("read")

    def open(self) -> None:
        """Release all waiters."""
        self.add()

    def is_open(self) -> bool:
        """Return whether anything was added."""
        return bool(self.read())

    def wait(self) -> None:
        """Block until something was added, or the test is over."""
        self._ask("wait", patience=PATIENCE)

    def _ask(self, act: str, text: str = "", patience: float = PATIENCE) -> str:
        connecting = socket.create_connection((self.host, self.port), timeout=patience)
        with connecting as connection, connection.makefile("rw") as stream:
            stream.write(json.dumps([act, self.name, text]) + "\n")
            stream.flush()
            answer = stream.readline()
        if not answer:
            raise ConnectionError(f"the test that keeps the note {self} is over")
        return str(json.loads(answer))


class NoteServer:
    """Keeps the notes of one test, with a thread for each process that asks.

    Args:
        host: The name or address under which workers reach this machine.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._texts: defaultdict[str, str] = defaultdict(str)
        self._changed = threading.Condition()
        self._closing = False
        self._answering: list[threading.Thread] = []
        self._listener = socket.create_server((host, 0))
        self._host, self._port = host, int(self._listener.getsockname()[1])
        self._own = uuid4().hex[:8]  # the port may be another test's later: what is late is refused there
        self._accepting = threading.Thread(target=self._accept, name="fray-notes", daemon=True)
        self._accepting.start()

    def note(self, name: str) -> Note:
        """Return the note of that name, to be handed to tasks."""
        return Note(self._host, self._port, f"{self._own}-{name}")

    def close(self) -> None:
        """Release what waits, and end."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        with socket.create_connection((self._host, self._port)):
            self._accepting.join()  # it was waiting for a connection
        self._listener.close()
        for thread in self._answering:
            thread.join()

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            if self._closing:
                connection.close()
                return
            answering = threading.Thread(
                target=self._answer, args=[connection], name="fray-note", daemon=True
            )
            self._answering = [thread for thread in self._answering if thread.is_alive()]
            self._answering.append(answering)
            answering.start()

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(PATIENCE)
        try:
            with connection, connection.makefile("rw") as stream:
                act, name, text = json.loads(stream.readline())
                if name.startswith(self._own):
                    stream.write(json.dumps(self._done(act, name, text)) + "\n")
        except (OSError, ValueError):  # the process that asked was killed
            return

    def _done(self, act: str, name: str, text: str) -> str:
        with self._changed:
            if act == "add":
                self._texts[name] += text
                self._changed.notify_all()
            elif act == "wait":
                self._changed.wait_for(lambda: self._texts[name] or self._closing)
            return self._texts[name]


@contextmanager
def notes_kept(host: str) -> Iterator[NoteServer]:
    """Keep notes until the block is left."""
    server = NoteServer(host)
    try:
        yield server
    finally:
        server.close()
