"""What a server takes, and no more."""

from dataclasses import dataclass

from fray.backend import check_count, check_seconds

PROTOCOL = 2  # 1, the first release's, has no options of push and no answers
MIB = 1 << 20
ITEM_BYTES = 64 * MIB
BATCH_BYTES = 8 * MIB  # payloads that a client puts into one request, unless one alone is larger


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a server.

    Args:
        item_bytes: Size of one item.
        batch: Items in one request.
        queues: Queues on the server.
        body_seconds: Seconds within which a request's head must arrive, and then as many for its body.
        wait_seconds: Longest wait of one pop; clients ask again.
        free_disk: Bytes of the store's disk that pushes leave free, so that workers can finish their items.
        store_bytes: Size that the store may grow to; None for no limit but the disk's.
        queue_items: Items in one queue, dead letters too; None for no limit.
        queue_bytes: Size of the payloads in one queue.
        total_items: Items on the server.
        total_bytes: Size of the payloads on the server. None means no limit with a store. Without one it
            means a quarter of the memory of the machine, or of the control group that the server is in;
            what an item takes beside its payload is then counted, too.
    """

    item_bytes: int = ITEM_BYTES
    batch: int = 1000
    queues: int = 1000
    body_seconds: float = 60.0
    wait_seconds: float = 3600.0
    free_disk: int = 16 * MIB
    store_bytes: int | None = None
    queue_items: int | None = None
    queue_bytes: int | None = None
    total_items: int | None = None
    total_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in ("item_bytes", "batch", "queues"):
            check_count(name, getattr(self, name), 1)
        for name in ("body_seconds", "wait_seconds"):
            check_seconds(name, getattr(self, name))
        for name in ("store_bytes", "queue_items", "queue_bytes", "total_items", "total_bytes"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), 1)
        check_count("free_disk", self.free_disk)

    @property
    def body_bytes(self) -> int:
        """Size of one request: one item of the largest size, or a client's batch, with its header."""
        return max(self.item_bytes, BATCH_BYTES) + MIB


def item_too_large(most: int, size: int) -> str:
    """The refusals that client and server share."""
    return f"an item has at most {most} bytes when pickled; this one has {size}"
