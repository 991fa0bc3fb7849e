"""Open the store of a FileQueue once: whose folder it is, whether it can be trusted, what time it has."""

import errno
import json
import os
from typing import Any

from fray import SpecError, UnsupportedError
from fray_queue._file.records import is_blank
from fray_queue._file.stores.fsspec_store import FsspecStore
from fray_queue._file.stores.local import LocalStore
from fray_queue._file.stores.store import MARKER, Store

_VERSION = 2  # 1, of Fray 0.1.0, has no batches
_MARKS = {
    version: json.dumps({"format": "fray-queue", "version": version}).encode() + b"\n" for version in (1, 2)
}
_MARK = _MARKS[_VERSION]
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""What `link` fails with where a file system has no hard links: those of FAT, FUSE and others."""
CLOCK = ".clock-"
"""How the names begin of files that ask a store for its time."""


def open_store(
    path: str, options: dict[str, Any], *, fsync: bool, timeout: float
) -> LocalStore | FsspecStore:
    """Return the store that a path names; without a request to it.

    Raises:
        UnsupportedError: The file system has no exclusive creation.
        SpecError: A folder was given options that only a file system has.
    """
    protocol, colon, rest = path.partition(":")
    if not colon or "/" in protocol:
        folder = path
    elif protocol in ("file", "local"):
        folder = _folder_of(path, rest)
    else:
        return FsspecStore(path.rstrip("/"), options, timeout=timeout)
    if options:
        raise SpecError(
            f"a queue in a folder takes no option {min(options)!r}; it has max_attempts, fsync, "
            "max_clock_skew, timeout and cleanup_delay, and others are for gs:, s3: and abfs:"
        )
    return LocalStore(os.path.abspath(folder), fsync=fsync)  # noqa: PTH100 - "a/../b" must not reach the store


def _folder_of(url: str, rest: str) -> str:
    """Return the folder of a `file:` or `local:` URL; with `//` it is absolute."""
    if not rest.startswith("//"):
        return rest
    host, _, path = rest[2:].partition("/")
    if host in ("", "localhost") or url.startswith("local:"):
        return "/" + (path if host in ("", "localhost") else f"{host}/{path}")
    raise SpecError(
        f"{url!r} names a folder of the machine {host!r}; a folder of this one is file:///{host}/{path}, "
        "a relative one file:folder"
    )


def enter(store: Store) -> int:
    """Make sure, once, that the folder is a queue's or empty, and that the store keeps exclusive creation.

    Returns:
        The version of its format: that of the client that made it.

    Raises:
        ValueError: Something else lies in the folder.
        UnsupportedError: The store let the same file be created twice, or has no hard links.
    """
    names = [name for name in store.names("") if not name.startswith(".")]
    if names and MARKER not in names:
        raise ValueError(
            f"{store.name!r} is not a queue and not empty (it has {min(names)!r}); "
            "give the queue a folder of its own"
        )
    if isinstance(store, LocalStore):
        store.sweep()
        store.make_root()
    created = _create_marker(store)
    if created and store.create(MARKER, _MARK):
        store.delete([MARKER])
        raise UnsupportedError(
            f"{store.name!r} let the same file be created twice: it ignores the precondition that keeps two "
            "workers from one item; use another store, or an HttpQueueServer"
        )
    found = _MARK if created else store.read(MARKER)
    if found is not None and _was_lost(store, found):
        store.write(MARKER, found := _MARK)
    version = next((version for version, mark in _MARKS.items() if mark == found), None)
    if version is None:
        raise ValueError(
            f"{store.name!r} holds a queue of another version: {MARKER} is not {_MARK.decode().strip()}"
        )
    if isinstance(store, LocalStore):
        store.sync(MARKER)
    return version


def _create_marker(store: Store) -> bool:
    try:
        return store.create(MARKER, _MARK)
    except OSError as error:
        if not isinstance(store, LocalStore) or error.errno not in _NO_LINKS:
            raise
        store.close()
        raise UnsupportedError(
            f"the file system of {store.name!r} makes no hard links ({error.strerror}), by which a queue in "
            "a folder keeps two workers from one item; use a folder of another file system, a SqliteQueue or "
            "an HttpQueueServer"
        ) from error


def is_mark(store: Store, found: bytes) -> bool:
    """Return whether a marker's content is that of a queue which this release can use."""
    return found in _MARKS.values() or _was_lost(store, found)


def _was_lost(store: Store, found: bytes) -> bool:
    """Whether the power ended while the queue was made: the marker has its name, and not its content."""
    return store.may_lose and is_blank(found)


def compare_clocks(store: Store, nonce: str, bound: float) -> None:
    """Refuse to work with a clock that is further from the store's than workers allow for.

    Raises:
        ValueError: It is.
    """
    ahead = store.clock_error(f"{CLOCK}{nonce}")
    if ahead is not None and abs(ahead) > bound / 2:
        raise ValueError(
            f"this machine's clock is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} "
            f"that of {store.name!r}; "
            f"set it, or give all workers a larger max_clock_skew than {bound:g}"
        )
