"""Names for requests that may have to be repeated: an engine does each once, though answers get lost."""

import os
import secrets
from collections import deque

from fray import FrayError
from fray_queue._errors import LateRequestError

# The engine may do the request yet; or, with the last, it refuses each that follows under the key.
_NO_ANSWERS = (ConnectionError, LateRequestError)


class IdempotencyKey:
    """A name that one request at a time is made under, the number of the newest, whether it is made again.

    A request that `waits` is made until something is there: before that it has no answer.
    """

    __slots__ = ("again", "name", "number", "waits")

    def __init__(self) -> None:
        self.name, self.number, self.again, self.waits = secrets.token_hex(8), 0, False, False


class KeyPool:
    """The slots of one client; as many as it makes requests at a time."""

    def __init__(self) -> None:
        self._free: deque[IdempotencyKey] = deque()
        self._pid = os.getpid()

    def take(self) -> IdempotencyKey:
        """Return a key for one request and its repetitions.

        That of a request that failed is not given back: the engine may do that request yet.
        """
        if self._pid != os.getpid():  # forked: the slots are the parent's
            self._free, self._pid = deque(), os.getpid()
        try:
            key = self._free.pop()
        except IndexError:
            key = IdempotencyKey()
        key.number += 1
        key.again = False
        return key

    def give_back_after(self, key: IdempotencyKey, error: Exception) -> None:
        """Keep the key of a request that the engine refused, for which each new one takes space and time."""
        if isinstance(error, FrayError) and not isinstance(error, _NO_ANSWERS):
            self.give_back(key)

    def give_back(self, key: IdempotencyKey) -> None:
        """Keep a key for the next request."""
        self._free.append(key)
