"""The bodies of requests that are not answered yet: how much of them is in memory at once."""

from fray import QueueUnavailableError
from fray.backend import memory_bytes

_OF_MEMORY = 8  # the part of it that they may have; each is there twice for a moment
_SMALL = 1 << 16  # bytes of a body that always has room: workers finish their items


class Bodies:
    """Refuses requests while the bodies of others take their part of the memory.

    Args:
        largest: Bytes of the largest body; two of them always have room.
    """

    def __init__(self, largest: int) -> None:
        self._largest, self._most = largest, max(2 * largest, memory_bytes() // _OF_MEMORY)
        self._bytes = 0

    def take(self, announced: int | None) -> int:
        """Make room for a body of the size that its request announces; None where it announces none.

        Returns:
            Bytes that are to be given back when the body is not needed any more.

        Raises:
            QueueUnavailableError: There is no room for it now.
        """
        size = self._largest if announced is None else min(announced, self._largest)
        if size <= _SMALL:
            return 0
        if self._bytes + size > self._most:
            raise QueueUnavailableError(
                f"the server holds {self._bytes} bytes of other requests, and its memory allows for "
                f"{self._most} at once; send the request again later"
            )
        self._bytes += size
        return size

    def give_back(self, size: int) -> None:
        """Return what `take` returned."""
        self._bytes -= size
