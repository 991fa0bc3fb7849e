"""Framing: a header, the pickle of a message's fields, and descriptors beside them."""

import contextlib
import errno
import os
import pickle
import resource
import socket
import struct
from array import array
from collections import deque
from collections.abc import Sequence

from fray_local._process.protocol.messages import Message, code_of, rebuilt

_HEADER = struct.Struct("<QHB")  # length of the pickle, descriptors, the message's type
_CHUNK = 1 << 18
_MOST_DESCRIPTORS = 250  # Linux passes 253 with one message
_ANCILLARY = socket.CMSG_SPACE(_MOST_DESCRIPTORS * array("i").itemsize)
_NOT_INHERITED = getattr(socket, "MSG_CMSG_CLOEXEC", 0)  # macOS does not have it


def encode(message: Message, descriptors: int = 0) -> bytes:
    """Return a message as it travels, with so many descriptors beside it."""
    body = pickle.dumps(tuple(message), pickle.HIGHEST_PROTOCOL)
    return _HEADER.pack(len(body), descriptors, code_of(message)) + body


def split_descriptors(descriptors: Sequence[int]) -> tuple[list[Sequence[int]], Sequence[int]]:
    """Split descriptors into those that need messages of their own and those that go with the message."""
    cut = max(0, (len(descriptors) - 1) // _MOST_DESCRIPTORS) * _MOST_DESCRIPTORS
    return [descriptors[i : i + _MOST_DESCRIPTORS] for i in range(0, cut, _MOST_DESCRIPTORS)], descriptors[
        cut:
    ]


def empty(descriptors: int) -> bytes:
    """Return a message that only brings descriptors for the next one."""
    return _HEADER.pack(0, descriptors, 0)


def send_some(
    sock: socket.socket, data: bytes | memoryview, descriptors: Sequence[int], flags: int = 0
) -> int:
    """Send what fits now, descriptors with the first byte; 0 where nothing fits."""
    try:
        if descriptors:  # `socket.send_fds` ignores flags
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))
            return sock.sendmsg([data], [rights], flags)
        return sock.send(data, flags)
    except BlockingIOError:
        return 0


def send_all(sock: socket.socket, message: Message, descriptors: Sequence[int] = ()) -> None:
    """Send one message on a blocking socket that only this thread writes to."""
    for data, some in frames(message, descriptors):
        send_frame(sock, data, some)


def frames(message: Message, descriptors: Sequence[int]) -> list[tuple[bytes, Sequence[int]]]:
    """Return what is written for a message: itself last, with what fits beside it."""
    if not descriptors:
        return [(encode(message), ())]
    first, last = split_descriptors(descriptors)
    return [*((empty(len(some)), some) for some in first), (encode(message, len(last)), last)]


def send_frame(sock: socket.socket, data: bytes | memoryview, descriptors: Sequence[int]) -> None:
    """Write to a blocking socket."""
    if not descriptors:
        sock.sendall(data)
        return
    sent = send_some(sock, data, descriptors)
    sock.sendall(memoryview(data)[sent:])


def adopted(descriptor: int) -> socket.socket:
    """Return the socket of a descriptor that another process has given; it waits for as long as it takes.

    What a program says by `socket.setdefaulttimeout` holds for what it gives away, too. And what is given can
    be inherited: a program that is started here would hide the end of this process from the other side.
    """
    sock = socket.socket(fileno=descriptor)
    sock.setblocking(True)
    sock.set_inheritable(False)
    return sock


class OutOfDescriptorsError(OSError):
    """Descriptors were sent that this process could not take: what came with them is lost."""

    def __init__(self) -> None:
        super().__init__(errno.EMFILE, describe_limit())


def describe_limit() -> str:
    """Return what to say of a process that can open nothing more."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"a process of this context is out of file descriptors (its limit is {limit}), and each large value "
        "that is kept takes one: drop references that are done with, or raise the limit (`ulimit -n`)"
    )


def describe_failure(error: Exception) -> str:
    """Return what to say of a connection which nothing more can pass."""
    if isinstance(error, OutOfDescriptorsError):
        return str(error.strerror)
    return f"a message could not be sent or read: {error!r}"


class Reader:
    """Takes messages out of what arrives on a socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        # One buffer for good: a new one of this size for each message costs 60 µs of page faults.
        self._buffer = bytearray(_CHUNK)
        self._rest = bytearray()
        self._descriptors: deque[int] = deque()
        self._owed = 0
        self._frames = 0

    def read(self) -> list[tuple[Message, list[int]]]:
        """Receive once; return the messages that are complete, each with its descriptors.

        Raises:
            EOFError: The other side is gone.
            OutOfDescriptorsError: What arrived has no place here; nothing more can be read.
            BlockingIOError: Nothing is there and the socket does not block.
        """
        try:
            size, ancillary, flags, _ = self._sock.recvmsg_into([self._buffer], _ANCILLARY, _NOT_INHERITED)
        except ConnectionError:
            raise EOFError from None
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                arrived = array("i")
                arrived.frombytes(content[: len(content) - len(content) % arrived.itemsize])
                self._descriptors.extend(arrived)
        if flags & socket.MSG_CTRUNC:
            raise OutOfDescriptorsError
        if not size:
            raise EOFError
        with memoryview(self._buffer) as buffer, buffer[:size] as data:
            return self._messages(data)

    def unread(self, data: bytes, sent: int) -> list[Message]:
        """Return the messages in `data`, frames after `sent` others, that have not arrived here."""
        self._rest, skip = bytearray(), self._frames - sent
        return [message for message, _ in self._messages(memoryview(data))][max(0, skip) :]

    def close(self) -> None:
        """Close the descriptors that no message took."""
        while self._descriptors:
            os.close(self._descriptors.popleft())

    def _messages(self, data: memoryview) -> list[tuple[Message, list[int]]]:
        buffer: memoryview | bytearray = data
        if self._rest:
            self._rest += data
            buffer = self._rest
        messages, start = [], 0
        with memoryview(buffer) as view:
            while (body := start + _HEADER.size) <= len(view):
                length, count, code = _HEADER.unpack_from(view, start)
                if body + length > len(view):
                    break
                start = body + length
                self._frames += 1
                self._owed += count
                if length:
                    message = rebuilt(code, pickle.loads(view[body:start]))
                    messages.append((message, [self._descriptors.popleft() for _ in range(self._owed)]))
                    self._owed = 0
        if buffer is self._rest:
            del self._rest[:start]
        elif start < len(data):
            self._rest = bytearray(data[start:])
        return messages


def close_all(descriptors: Sequence[int]) -> None:
    """Close descriptors that nobody wants."""
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
