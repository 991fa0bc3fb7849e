"""The few things that a FileQueue needs of a file system.

Only `create` decides anything: of all who create one name, one gets True. A record carries a
nonce, so that a client whose answer got lost can read it back and know.
"""

from collections.abc import Sequence
from typing import Protocol

MARKER = "fray-queue.json"
"""The file that says whose folder this is; a queue without it was removed."""


class Store(Protocol):
    """Files under one root; paths are relative, with `/`."""

    name: str  # for messages
    may_lose: bool  # whether a power failure may leave a file of `create` or `write` without its content

    def create(self, path: str, data: bytes) -> bool:
        """Make a file that is not there, whole at once; False when it is there, or its folder is gone."""

    def put(self, files: Sequence[tuple[str, bytes]]) -> None:
        """Make files of new names, in folders made as needed; on disk when it returns."""

    def write(self, path: str, data: bytes) -> None:
        """Make or replace a file, whole at once."""

    def read(self, path: str) -> bytes | None:
        """Return a file's content; None when it is not there."""

    def exists(self, path: str) -> bool:
        """Return whether a file is there, as of now."""

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, as of now; nothing when it is not there."""

    def tree(self) -> dict[str, list[str]]:
        """Return what is in the root, and below each folder in it the names in that, as of now."""

    def delete(self, paths: Sequence[str]) -> None:
        """Remove files, and folders that this leaves empty; a missing file is not an error."""

    def remove_if_empty(self, folder: str) -> None:
        """Remove a folder in which there is nothing; object stores have none."""

    def clock_error(self, path: str) -> float | None:
        """Return the seconds that this machine's clock is ahead of the store's; None if unknown.

        Args:
            path: A new file to ask the store for its time; it is removed again.
        """
