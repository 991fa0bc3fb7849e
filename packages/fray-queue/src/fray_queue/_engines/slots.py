"""Names for requests that may have to be repeated: an engine does each once, though answers get lost."""

import os
import secrets
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class Slot:
    """A name that one request at a time is made under, the number of the newest, whether it is made again."""

    __slots__ = ("again", "name", "number")

    def __init__(self) -> None:
        self.name, self.number, self.again = secrets.token_hex(8), 0, False


class Slots:
    """The slots of one client; as many as it makes requests at a time."""

    def __init__(self) -> None:
        self._free: deque[Slot] = deque()
        self._pid = os.getpid()

    @contextmanager
    def one(self) -> Iterator[Slot]:
        """Have a slot for one request and its repetitions.

        The slot of a request that failed is not used again: the engine may do that request yet.
        """
        if self._pid != os.getpid():  # forked: the slots are the parent's
            self._free, self._pid = deque(), os.getpid()
        try:
            slot = self._free.pop()
        except IndexError:
            slot = Slot()
        slot.number += 1
        slot.again = False
        yield slot
        self._free.append(slot)
