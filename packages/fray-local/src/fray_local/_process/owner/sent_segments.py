"""Which large values a worker has mapped already: it is sent each one once, and notified when to release it.

Mapping 100 MB again for each task that reads it would cost more than most tasks: every page faults.
"""

import weakref
from collections import OrderedDict
from collections.abc import Callable

from fray_local._process.protocol.values import Segment

_MOST = 256  # kept by one worker; each takes a descriptor and a mapping


class SentSegments:
    """What one worker keeps of this process's segments; its caller holds the worker's lock.

    Args:
        gone: Called with the key of a segment that nobody refers to any more; from finalizers.
    """

    def __init__(self, gone: Callable[[int], None]) -> None:
        self._gone = gone
        self._there: OrderedDict[int, weakref.finalize[..., Segment]] = OrderedDict()

    def ship(self, segment: Segment) -> tuple[bool, tuple[int, ...]]:
        """Record that a message names a segment.

        Returns:
            Whether the worker has it, and the keys of those that it is to forget.
        """
        key = segment.key
        if key in self._there:
            self._there.move_to_end(key)
            return True, ()
        self._there[key] = finalizer = weakref.finalize(segment, self._gone, key)
        finalizer.atexit = False
        if len(self._there) <= _MOST:
            return False, ()
        oldest, finalizer = self._there.popitem(last=False)
        finalizer.detach()
        return False, (oldest,)

    def forget(self, key: int) -> bool:
        """Return whether the worker has to be notified that a segment is gone."""
        return self._there.pop(key, None) is not None

    def clear(self) -> None:
        """The worker is gone."""
        for finalizer in self._there.values():
            finalizer.detach()
        self._there.clear()
