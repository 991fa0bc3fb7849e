"""Object stores, through fsspec: S3 by `If-None-Match: *`, GCS by `ifGenerationMatch=0`, memory by a lock."""

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from fray import QueueUnavailableError, UnsupportedError

R = TypeVar("R")

# fsspec has an exclusive mode for every file system, but most of them look first and write then, which two
# clients can do at once. These ask the store itself.
_EXCLUSIVE = {"s3", "s3a", "gs", "gcs", "memory"}
_ASIDE = 16  # requests of one call that run beside each other
_memory_lock = threading.Lock()


class FsspecStore:
    """A prefix of an object store.

    Args:
        url: Protocol, bucket and prefix, e.g. `gs://bucket/queues/tasks`.
        timeout: Seconds that requests are repeated for while the store is away.

    Raises:
        UnsupportedError: Nothing is known of the store that would make creation exclusive.
    """

    may_lose = False

    def __init__(self, url: str, options: dict[str, Any], *, timeout: float) -> None:
        protocol = url.partition(":")[0]
        if protocol not in _EXCLUSIVE:
            raise UnsupportedError(
                f"FileQueue cannot use {protocol!r}: nothing makes the creation of a file exclusive there "
                f"between machines; use a local folder, gs://, s3://, or an HttpQueueServer"
            )
        self.name = url
        self._url, self._options, self._timeout = url, options, timeout
        self._connect()

    def _connect(self) -> None:
        import fsspec  # type: ignore[import-untyped]

        # Listings of a shared instance may be old; a queue needs them as of now.
        options = {"use_listings_cache": False, **self._options}
        self._fs, self._root = fsspec.url_to_fs(self._url, **options)
        self._pid = os.getpid()

    def create(self, path: str, data: bytes) -> bool:
        def attempt() -> bool:
            try:
                with _memory_lock if self._url.startswith("memory:") else contextlib.nullcontext():
                    self._fs.pipe_file(self._full(path), data, mode="create")
            except FileExistsError:
                return False
            return True

        return self._patiently(attempt)

    def put(self, files: Sequence[tuple[str, bytes]]) -> None:
        def one(file: tuple[str, bytes]) -> None:
            path, data = file
            if not self.create(path, data) and self.read(path) != data:
                raise FileExistsError(f"{self.name}/{path} exists: two producers have one name")

        if len(files) == 1:
            one(files[0])
            return
        with ThreadPoolExecutor(min(_ASIDE, len(files) or 1), thread_name_prefix="fray-queue-put") as pool:
            list(pool.map(one, files))

    def write(self, path: str, data: bytes) -> None:
        self._patiently(lambda: self._fs.pipe_file(self._full(path), data))

    def read(self, path: str) -> bytes | None:
        def attempt() -> bytes | None:
            try:
                data: bytes = self._fs.cat_file(self._full(path))
            except FileNotFoundError:
                return None
            return data

        return self._patiently(attempt)

    def exists(self, path: str) -> bool:
        def attempt() -> bool:
            try:
                self._fs.info(self._full(path))
            except FileNotFoundError:
                return False
            return True

        return self._patiently(attempt)

    def names(self, folder: str) -> list[str]:
        def attempt() -> list[str]:
            try:
                found = self._fs.ls(self._full(folder), detail=False, refresh=True)
            except FileNotFoundError:
                return []
            names = (path.rstrip("/").rpartition("/")[2] for path in found if path.strip("/") != own)
            return [name for name in names if name]

        own = self._full(folder).strip("/")  # some stores list a folder's own marker in it
        return self._patiently(attempt)

    def delete(self, paths: Sequence[str]) -> None:
        def attempt() -> None:
            try:
                self._fs.rm([self._full(path) for path in paths])
            except FileNotFoundError:  # one of them: the others may be there still
                for path in paths:
                    with contextlib.suppress(FileNotFoundError):
                        self._fs.rm_file(self._full(path))

        if paths:
            self._patiently(attempt)

    def age_of_new_file(self, path: str) -> float | None:
        """Return how far this machine's clock is ahead of the store's; None where the store has no clock."""
        before = time.time()
        self._patiently(lambda: self._fs.pipe_file(self._full(path), b""))
        after = time.time()
        try:
            info = self._patiently(lambda: self._fs.info(self._full(path)))
        finally:
            self.delete([path])
        stamp: Any = info.get("LastModified") or info.get("mtime") or info.get("updated")
        if stamp is None or not hasattr(stamp, "timestamp"):
            return None
        # Some stores keep whole seconds: only what is outside of that second is a difference.
        earliest, latest = stamp.timestamp(), stamp.timestamp() + 1.0
        return float(before - latest if before > latest else min(0.0, after - earliest))

    def _full(self, path: str) -> str:
        if os.getpid() != self._pid:  # connections do not survive a fork
            self._connect()
        return f"{self._root}/{path}" if path else self._root

    def _patiently(self, attempt: Callable[[], R]) -> R:
        """Repeat a request while the store is away, with full jitter."""
        end = time.monotonic() + self._timeout
        pause = 0.1
        while True:
            try:
                return attempt()
            except (FileNotFoundError, FileExistsError, PermissionError, NotImplementedError, TypeError):
                raise
            except Exception as error:  # each client library has its own idea of a connection error
                if time.monotonic() + pause > end:
                    raise QueueUnavailableError(
                        f"{self.name} did not answer for {self._timeout:g} s: {type(error).__name__}: {error}"
                    ) from error
                time.sleep(random.uniform(0, pause))  # noqa: S311 - jitter is no secret
                pause = min(5.0, pause * 2)
