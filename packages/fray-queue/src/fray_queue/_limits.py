"""What a server takes, and no more."""

from dataclasses import dataclass

MIB = 1 << 20
ITEM_BYTES = 64 * MIB


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a server takes.

    Args:
        item_bytes: Size of one item.
        batch: Items in one request.
        queues: Queues on the server.
        body_seconds: Time in which a request's body has to arrive.
        wait_seconds: Longest wait of one pop; clients ask again.
        free_disk: Bytes of the store's disk that pushes leave free, so that workers can go on.
        store_bytes: Size that the store may grow to; None for no limit but the disk's.
    """

    item_bytes: int = ITEM_BYTES
    batch: int = 1000
    queues: int = 1000
    body_seconds: float = 60.0
    wait_seconds: float = 3600.0
    free_disk: int = 16 * MIB
    store_bytes: int | None = None

    @property
    def body_bytes(self) -> int:
        """Size of one request: one item of the largest size with its header."""
        return self.item_bytes + MIB
