"""What a client sends at once, and the ids that it gives."""

import itertools
import os
import secrets
from collections.abc import Iterator

from fray_queue._http.protocol.limits import BATCH_BYTES

BATCH = 1000  # items in one request


class Ids:
    """Ids for new items, which no other client gives."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._pid, self._tag = 0, ""

    def __next__(self) -> str:
        if self._pid != os.getpid():  # a forked child counts on from its parent's number
            self._pid, self._tag = os.getpid(), secrets.token_hex(6)
        return f"{self._tag}-{next(self._numbers)}"


def batches(payloads: list[bytes], most: int) -> Iterator[list[bytes]]:
    """Part payloads into requests of at most so many items, and of a size that every server takes."""
    batch: list[bytes] = []
    size = 0
    for payload in payloads:
        if batch and (len(batch) == most or size + len(payload) > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(payload)
        size += len(payload)
    if batch:
        yield batch
