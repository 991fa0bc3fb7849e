"""Memory that a worker shares with its owner: what it started last, and the frames that it has not sent yet.

Results that follow each other closely are sent together. Should the worker be killed before it has sent
them, its owner reads them here, so that only the task that ran is lost.

    0  the number of the call that was started last
    8  bytes that are held, counted from `_HEADER`
   16  frames that were sent before those
"""

import mmap
import struct

_NUMBER = struct.Struct("<Q")
_HEADER = 24
SIZE = 1 << 16


class HeldFrames:
    """The worker's side.

    The order of the changes matters, for the owner may have to read after any of them.
    """

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, SIZE)
        self._end = _HEADER
        self._count = self._sent = self._started = 0

    def __len__(self) -> int:
        return self._count

    def started(self, number: int) -> None:
        """Note that a call runs now; that of a stream may run again, after later ones."""
        self._started = max(self._started, number)
        _NUMBER.pack_into(self._memory, 0, self._started)

    def hold(self, frame: bytes) -> bool:
        """Keep a frame to be sent later; False where there is no room."""
        end = self._end + len(frame)
        if end > SIZE:
            return False
        self._memory[self._end : end] = frame
        self._end = end
        self._count += 1
        _NUMBER.pack_into(self._memory, 8, end - _HEADER)
        return True

    def view(self) -> bytes:
        """Return what is held."""
        return self._memory[_HEADER : self._end]

    def were_sent(self, more: int = 0) -> None:
        """Release what was held, and count so many frames that never were."""
        self._sent += self._count + more
        self._end, self._count = _HEADER, 0
        _NUMBER.pack_into(self._memory, 8, 0)
        _NUMBER.pack_into(self._memory, 16, self._sent)


def last_started(memory: bytes) -> int:
    """Return the number of the call that a dead worker had started last."""
    number: int = _NUMBER.unpack_from(memory, 0)[0]
    return number


def unsent(memory: bytes) -> tuple[bytes, int]:
    """Return the frames that a dead worker had held, and how many it had sent before."""
    length, sent = _NUMBER.unpack_from(memory, 8)[0], _NUMBER.unpack_from(memory, 16)[0]
    return memory[_HEADER : _HEADER + length], sent
