"""A proxy of bytes that cuts connections: between a request and its answer, or all of them at once.

It may also forget connections, as a router does: both ends have them open, and nothing passes any more.
"""

import contextlib
import socket
import threading


class CuttingProxy:
    """Sits between clients and a server on this machine.

    Args:
        port: The server's.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.cut_every = 0
        """About every so-manieth answer is swallowed, and its connection cut; 0 for none."""
        self.cuts = 0
        self.answered_bytes = 0
        self.largest_answer = 0
        """Bytes that the server sent between two messages of a client, the most; not set back by itself."""
        self._of_answer = 0
        self._answers = 0
        self._forgotten: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            self._pairs.append((client, server))
            for source, sink, counts in ((client, server, False), (server, client, True)):
                thread = threading.Thread(target=self._pass_on, args=(source, sink, counts))
                self._threads.append(thread)
                thread.start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, counts: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if source in self._forgotten:
                    continue
                if not counts:
                    self._of_answer = 0
                elif self._is_cut(len(data)):
                    break
                sink.sendall(data)
        _end(source, sink)

    def _is_cut(self, size: int) -> bool:
        with self._lock:
            self.answered_bytes += size
            self._of_answer += size
            self.largest_answer = max(self.largest_answer, self._of_answer)
            self._answers += 1
            # Not in step with what a new connection says first, or the same answer would be cut for ever.
            cut = bool(self.cut_every) and self._answers >= self.cut_every + self.cuts % 3
            if cut:
                self._answers = 0
                self.cuts += 1
            return cut

    @property
    def connections(self) -> int:
        """How many were made so far."""
        return len(self._pairs)

    def lead_to(self, port: int) -> None:
        """Connect who comes from now on to another server; what is connected stays where it is."""
        self._target = port

    def forget_all(self) -> None:
        """Pass on nothing of what is connected, and leave it open; who comes again is served."""
        self._forgotten |= {each for pair in list(self._pairs) for each in pair}

    def cut_all(self) -> None:
        """Cut what is connected; who comes again is served."""
        for pair in list(self._pairs):
            _end(*pair)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join()
        self.cut_all()
        for thread in self._threads[1:]:
            thread.join()
        for pair in self._pairs:
            for each in pair:
                each.close()

    def __enter__(self) -> "CuttingProxy":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _end(*sockets: socket.socket) -> None:
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
