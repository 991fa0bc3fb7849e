"""Object stores, through fsspec: each creates exclusively by a precondition that the store itself checks.

S3 by `If-None-Match: *`, GCS by `ifGenerationMatch=0`, Azure Blob by `If-None-Match: *`, memory by a lock.
"""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from fray import QueueUnavailableError, UnsupportedError
from fray.backend import map_in_threads, retry_delays

R = TypeVar("R")

# fsspec has an exclusive mode for every file system, but most of them look first and write then, which two
# clients can do at once. These ask the store itself.
_EXCLUSIVE = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "memory"}
_S3, _GCS, _AZURE = {"s3", "s3a"}, {"gs", "gcs"}, {"abfs", "abfss", "az"}
_SLOWEST = 1 << 20  # bytes a second at which a payload may be stored, beyond the time for a request
_MOST_AT_ONCE = 1000  # objects that S3 deletes in one request
_ASIDE = 16  # requests of one call that run beside each other
_UNAUTHORIZED, _FORBIDDEN, _EXISTS = 401, 403, 412  # statuses of HTTP
_REFUSALS = {_UNAUTHORIZED, _FORBIDDEN}
_ANSWERS = (FileNotFoundError, FileExistsError, NotImplementedError, TypeError)
"""What a store answers, besides refusals; anything else is taken for a store that is away."""
_memory_lock = threading.Lock()


class FsspecStore:
    """A prefix of an object store.

    Args:
        url: Protocol, bucket and prefix, e.g. `gs://bucket/queues/tasks`.
        timeout: Seconds for one request, its repetitions included, while the store is away or silent.

    Raises:
        UnsupportedError: Nothing is known of the store that would make creation exclusive.
    """

    may_lose = False

    def __init__(self, url: str, options: dict[str, Any], *, timeout: float) -> None:
        protocol = url.partition(":")[0]
        if protocol not in _EXCLUSIVE:
            raise UnsupportedError(
                f"FileQueue cannot use {protocol!r}: nothing makes the creation of a file exclusive there "
                f"between machines; use a local folder, gs://, s3://, abfs://, or an HttpQueueServer"
            )
        self.name = url
        self._url, self._options, self._timeout = url, options, timeout
        self._protocol, self._in_memory = protocol, protocol == "memory"
        self.is_shared = self.is_durable = not self._in_memory
        self._connect()

    def _connect(self) -> None:
        import fsspec  # type: ignore[import-untyped]

        # Listings of a shared instance may be old; a queue needs them as of now.
        options = {"use_listings_cache": False, **self._options}
        if self._protocol in _GCS:
            self._fs, self._root = _gcs(self._url, options)
        else:
            self._fs, self._root = fsspec.url_to_fs(self._url, **options)
        self._pid = os.getpid()

    def create(self, path: str, data: bytes) -> bool:
        try:
            with _memory_lock if self._in_memory else contextlib.nullcontext():
                self._ask("pipe_file", self._full(path), data, mode="create")
        except FileExistsError:
            return False
        return True

    def put(self, files: Sequence[tuple[str, bytes]]) -> None:
        made: list[str] = []
        doubtful: set[str] = set()

        def one(file: tuple[str, bytes]) -> None:
            path, data = file
            doubtful.add(path)
            # A lost answer is asked for again. Then the item is there or, where it is finished already, gone.
            if not self.create(path, data) and self.read(path) not in (data, None):
                doubtful.discard(path)  # it is another's
                raise FileExistsError(f"{self.name}/{path} exists: two producers have one name")
            made.append(path)

        if len(files) == 1:
            one(files[0])
            return
        try:
            map_in_threads(one, files, _ASIDE, "fray-queue-put")
        except BaseException:
            if made:  # else the store is away, and would be waited for once more
                with contextlib.suppress(Exception):  # all or none, as far as the store lets us
                    self.delete(sorted(doubtful))
            raise

    def write(self, path: str, data: bytes) -> None:
        self._ask("pipe_file", self._full(path), data)

    def read(self, path: str) -> bytes | None:
        try:
            data: bytes = self._ask("cat_file", self._full(path))
        except FileNotFoundError:
            return None
        return data

    def exists(self, path: str) -> bool:
        try:
            self._ask("info", self._full(path))
        except FileNotFoundError:
            return False
        return True

    def names(self, folder: str) -> list[str]:
        own = self._full(folder)
        try:
            found = self._ask("ls", own, detail=False, refresh=True)
        except FileNotFoundError:
            return []
        # Some stores list a folder's own marker in it.
        names = (path.rstrip("/").rpartition("/")[2] for path in found if path.strip("/") != own.strip("/"))
        return [name for name in names if name]

    def tree(self) -> dict[str, list[str]]:
        if not self._in_memory:  # its `find` walks
            with contextlib.suppress(QueueUnavailableError):
                return self._tree_at_once()
        # So many names that they take longer than a request may: folder by folder.
        folders = self.names("")
        names = map_in_threads(self.names, folders, _ASIDE, "fray-queue-list")
        return dict(zip(folders, names, strict=True))

    def _tree_at_once(self) -> dict[str, list[str]]:
        own = self._full("").strip("/") + "/"
        tree: dict[str, list[str]] = {}
        for path in self._ask("find", own):
            folder, _, name = path.strip("/").removeprefix(own).partition("/")
            names = tree.setdefault(folder, [])
            if name:
                names.append(name)
        return tree

    def delete(self, paths: Sequence[str]) -> None:
        if left := self._delete_together([self._full(path) for path in paths]):
            map_in_threads(self._delete_one, left, _ASIDE, "fray-queue-delete")

    def _delete_together(self, paths: list[str]) -> list[str]:
        """Delete what the store can in one request; return what may be there still."""
        if self._protocol in _S3:
            starts = range(0, len(paths), _MOST_AT_ONCE)
            return [left for at in starts for left in self._refused_by_s3(paths[at : at + _MOST_AT_ONCE])]
        if self._protocol in _AZURE:  # adlfs passes over a refusal when it comes beside a name that is gone
            return paths
        try:
            self._ask("rm", paths)
        except FileNotFoundError:  # one of them: the others may be there still
            return paths
        return []

    def _refused_by_s3(self, paths: list[str]) -> list[str]:
        """Delete objects of a bucket; return those that S3 kept, which s3fs's own `rm` does not tell."""
        bucket = self._fs.split_path(paths[0])[0]  # an access point's name has a slash
        keys = [{"Key": path.removeprefix(f"{bucket}/")} for path in paths]
        answer = self._ask(
            "call_s3", "delete_objects", Bucket=bucket, Delete={"Objects": keys, "Quiet": True}
        )
        return [f"{bucket}/{error['Key']}" for error in answer.get("Errors", ())]

    def _delete_one(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._ask("rm_file", path)

    def remove_if_empty(self, folder: str) -> None: ...

    def clock_error(self, path: str) -> float | None:
        before = time.time()
        self.write(path, b"")
        after = time.time()
        try:
            info = self._ask("info", self._full(path))
        finally:
            self.delete([path])
        stamp: Any = (
            info.get("LastModified") or info.get("mtime") or info.get("updated") or info.get("last_modified")
        )
        if stamp is None or not hasattr(stamp, "timestamp"):
            return None
        # Some stores keep whole seconds: only what is outside of that second is a difference.
        earliest, latest = stamp.timestamp(), stamp.timestamp() + 1.0
        return float(before - latest if before > latest else min(0.0, after - earliest))

    def _full(self, path: str) -> str:
        if os.getpid() != self._pid:  # connections do not survive a fork
            self._connect()
        return f"{self._root}/{path}" if path else self._root

    def _ask(self, call: str, *arguments: Any, **options: Any) -> Any:
        """Make a request, and repeat it while the store is away."""
        sent = sum(len(each) for each in arguments if isinstance(each, bytes))
        end = time.monotonic() + self._timeout + sent / _SLOWEST
        for pause in retry_delays(longest=5.0):
            try:
                return self._once(call, arguments, options, end - time.monotonic())
            except Exception as error:  # each client library has its own idea of a connection error
                if answer := self._answer(error, call, creates=options.get("mode") == "create"):
                    raise answer from error
                if isinstance(error, _ANSWERS):
                    raise
                if time.monotonic() + pause > end:
                    raise QueueUnavailableError(
                        f"{self.name} did not answer for {self._timeout:g} s: {type(error).__name__}: {error}"
                    ) from error
                time.sleep(pause)
        raise AssertionError  # the delays never end

    def _answer(self, error: Exception, call: str, *, creates: bool) -> Exception | None:
        """Return what an error means that the client library has no own exception for."""
        status = _status(error)
        if status in _REFUSALS or isinstance(error, PermissionError):
            return PermissionError(
                f"{self.name} refused {call!r} to this user ({type(error).__name__}: {error}); give the user "
                "the right to list, read, create and delete objects there"
            )
        if status == _EXISTS and creates:  # s3fs knows the answer of AWS alone
            return FileExistsError(str(error))
        return None

    def _once(self, call: str, arguments: tuple[Any, ...], options: dict[str, Any], seconds: float) -> Any:
        """Make one request and give it up after so many seconds, also when the store never answers."""
        if not getattr(self._fs, "async_impl", False):
            return getattr(self._fs, call)(*arguments, **options)
        # The synchronous calls wait for fsspec's own loop without an end of their own.
        request = asyncio.run_coroutine_threadsafe(
            getattr(self._fs, f"_{call}")(*arguments, **options), self._fs.loop
        )
        try:
            return request.result(max(0.0, seconds))
        except TimeoutError as error:
            if request.done():  # the client library's own
                raise
            raise TimeoutError(f"no answer to {call}") from error
        except CancelledError as error:
            raise ConnectionError(f"{call} was cancelled") from error
        finally:
            request.cancel()


def _status(error: Exception) -> int | None:
    """Return the HTTP status of which a client library made an exception; each keeps it elsewhere."""
    for each in (error, error.__cause__):
        response = getattr(each, "response", None)
        if isinstance(response, dict):  # s3fs
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        else:
            status = getattr(each, "status_code", None) or getattr(each, "code", None)  # adlfs, gcsfs
        if isinstance(status, int):
            return status
    # gcsfs raises a plain OSError, and only its text says why.
    return _FORBIDDEN if type(error) is OSError and str(error).startswith("Forbidden: ") else None


def _gcs(url: str, options: dict[str, Any]) -> tuple[Any, str]:
    """Return the file system of a GCS bucket, and where in it a URL leads.

    fsspec gives another class, which asks each bucket for its layout over gRPC: again before each request,
    where it gets no answer. And it lists the empty folders that a hierarchical bucket keeps for ever.
    """
    import fsspec

    fsspec.get_filesystem_class("gs")  # where gcsfs is missing, this says how to install it
    from gcsfs.core import GCSFileSystem  # type: ignore[import-untyped]

    return GCSFileSystem(**options), GCSFileSystem._strip_protocol(url)
