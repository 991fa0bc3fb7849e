"""Removes a queue with all that is in it, and nothing that is not a queue's."""

import contextlib
import shutil
from pathlib import Path

from fray_queue._file.full_buckets import FULL, SEALED, TAKEN
from fray_queue._file.opening import CLOCK, is_mark
from fray_queue._file.records import is_bucket
from fray_queue._file.stores.fsspec_store import FsspecStore
from fray_queue._file.stores.local import TEMPORARY, LocalStore
from fray_queue._file.stores.store import MARKER


def remove_queue(store: LocalStore | FsspecStore) -> None:
    """Remove a queue; the marker first, so that its clients know. What was removed in part is removed whole.

    Raises:
        ValueError: Something else lies there; nothing was removed.
    """
    names = store.names("")  # not all that is below: it may be anything
    strangers = sorted(name for name in names if not _is_own(store, name))
    mark = store.read(MARKER)
    if strangers and mark is None:
        raise ValueError(f"{store.name!r} is not a queue (it has {strangers[0]!r}): nothing was removed")
    if mark is not None and not is_mark(store, mark):
        raise ValueError(f"{store.name!r} is not a queue of this version (see {MARKER}): nothing was removed")
    store.delete([MARKER])
    if isinstance(store, FsspecStore):
        _remove_objects(store)
    else:
        _remove_folders(store)


def _remove_objects(store: FsspecStore) -> None:
    own = {name: files for name, files in store.tree().items() if _is_own(store, name)}
    store.delete([f"{name}/{file}".rstrip("/") for name, files in own.items() for file in files or [""]])


def _remove_folders(store: LocalStore) -> None:
    root = Path(store.name)
    for name in store.names(""):
        if _is_own(store, name):
            shutil.rmtree(root / name, ignore_errors=True)
    with contextlib.suppress(OSError):  # it has what is not ours, or was never there
        root.rmdir()


def _is_own(store: LocalStore | FsspecStore, name: str) -> bool:
    of_store = name == TEMPORARY if isinstance(store, LocalStore) else name.startswith(CLOCK)
    return of_store or name in (MARKER, SEALED, FULL, TAKEN) or is_bucket(name)
