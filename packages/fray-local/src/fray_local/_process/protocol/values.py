"""Values as they travel and as they are kept: a pickle, or a memory file that every process can map.

A memory file has no name: it is a descriptor, handed from process to process, and its memory goes
with the last descriptor and the last mapping, whatever is killed. Large buffers (pickle protocol 5)
lie in it beside the pickle and are mapped read-only where they are read, not copied.
"""

import contextlib
import errno
import itertools
import mmap
import os
import pickle
import resource
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from fray import FrayError
from fray.backend import StoredValue, memory_bytes
from fray_local._process.protocol.wire import OutOfDescriptorsError

VALUE, ERROR, END, CANCELLED = 1, 2, 3, 4
"""What a call has sent: a value, an exception, of a stream its end, or a TaskCancelledError."""
LARGE = 1 << 16
"""Bytes from which on a value, or one of its buffers, lies in a memory file."""
_ALIGNMENT = 64
_MOST_DESCRIPTORS = 1 << 16  # some programs look at each one up to the limit
_MOST_PIECES = 512  # of one writev; the system's limit is 1024

Layout = tuple[int, tuple[tuple[int, int], ...]]
"""Length of the pickle, then offset and length of each buffer."""


class ObjectStoreFullError(FrayError, MemoryError):
    """The values that are kept would take more memory than the context may use."""

    def __init__(self, wanted: int, used: int, limit: int) -> None:
        super().__init__(wanted, used, limit)
        self.wanted, self.used, self.limit = wanted, used, limit

    def __str__(self) -> str:
        return (
            f"a value of {self.wanted:,} bytes does not fit: {self.used:,} of {self.limit:,} bytes are in "
            "use; drop references that are done with, raise object_store_memory, or give spill_dir to keep "
            "the rest on disk"
        )


class Budget:
    """Counts the bytes of large values that one process owns.

    Args:
        limit: Bytes; by default half of the machine's memory.
        spill_dir: Where values go that are beyond the limit; without it they are refused.
    """

    def __init__(self, limit: int | None = None, spill_dir: str | os.PathLike[str] | None = None) -> None:
        self.limit = memory_bytes() // 2 if limit is None else limit
        self._spill_dir = None if spill_dir is None else _writable_folder(spill_dir)
        self._used = 0
        # Re-entrant: a finalizer or a signal handler that stores a value may interrupt its own thread here.
        # No statement below calls anything between reading and writing `_used`, so none is cut in two.
        self._lock = threading.RLock()
        self._freed: deque[int] = deque()  # by finalizers, which may run while the lock is held

    @property
    def used(self) -> int:
        """Bytes in memory now."""
        with self._lock:
            while True:
                try:
                    freed = self._freed.popleft()
                except IndexError:
                    return self._used
                self._used -= freed

    def create(self, size: int) -> "Segment":
        """Make room for a value, in memory or beyond the limit on disk.

        Raises:
            ObjectStoreFullError: It does not fit and there is nowhere to spill.
            OutOfDescriptorsError: This process can open nothing more.
        """
        if not self._reserve(size):
            return Segment(self._disk_file(size), size)
        try:
            segment = Segment(memory_file(size), size)
        except BaseException as error:
            self._freed.append(size)
            if isinstance(error, OSError) and error.errno == errno.EMFILE:
                raise OutOfDescriptorsError from None
            raise
        weakref.finalize(segment, self._freed.append, size).atexit = False
        return segment

    def adopt(self, segment: "Segment") -> "Segment":
        """Take over a segment that another process made; errors as `create`."""
        if self._reserve(segment.size):
            weakref.finalize(segment, self._freed.append, segment.size).atexit = False
            return segment
        spilled = Segment(self._disk_file(segment.size), segment.size)
        spilled.write([memoryview(segment.map())])
        return spilled

    def _reserve(self, size: int) -> bool:
        used = self.used
        with self._lock:
            if self._used + size <= self.limit:
                self._used += size
                return True
        if self._spill_dir is None:
            raise ObjectStoreFullError(size, used, self.limit)
        return False

    def _disk_file(self, size: int) -> int:
        assert self._spill_dir is not None
        return _unlinked_file(self._spill_dir, size)


def _writable_folder(path: str | os.PathLike[str]) -> Path:
    folder = Path(path)
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        found = "a directory that cannot be written" if folder.is_dir() else "no directory"
        raise ValueError(f"spill_dir must be a directory that can be written; {os.fspath(path)!r} is {found}")
    return folder


_keys = itertools.count()


class Segment:
    """One memory file of this process."""

    __slots__ = ("__weakref__", "_kept", "_mapping", "descriptor", "key", "lasting", "size")

    def __init__(self, descriptor: int, size: int) -> None:
        self.descriptor, self.size = descriptor, size
        self.key = next(_keys)
        self.lasting = False  # whether its mapping lives as long as it does, and not just while it is read
        self._mapping: weakref.ref[mmap.mmap] | None = None
        self._kept: mmap.mmap | None = None

    def write(self, pieces: Sequence[memoryview | bytes]) -> None:
        """Fill it from the start."""
        offset = 0
        for first in range(0, len(pieces), _MOST_PIECES):
            views = [memoryview(piece).cast("B") for piece in pieces[first : first + _MOST_PIECES]]
            while views:
                written = os.pwritev(self.descriptor, views, offset)
                offset += written
                while views and written >= len(views[0]):
                    written -= len(views.pop(0))
                if views:
                    views[0] = views[0][written:]

    def map(self) -> mmap.mmap:
        """Return the one mapping of this process, read-only; it lives as long as anything reads it."""
        mapping = self._mapping and self._mapping()
        if not mapping:
            mapping = mmap.mmap(self.descriptor, self.size, prot=mmap.PROT_READ)
            self._mapping = weakref.ref(mapping)
        if self.lasting:
            self._kept = mapping
        return mapping

    def __del__(self) -> None:
        os.close(self.descriptor)


class Shipments(Protocol):
    """What a receiver of messages keeps of this process's segments."""

    def ship(self, segment: Segment) -> tuple[bool, tuple[int, ...]]:
        """Return whether it has the segment, and the keys of those that it is to forget."""


class Blob(StoredValue):
    """A value in its travelling form; loading it gives every reader a copy, large buffers excepted.

    `keeps` are the references inside it, which must live as long as it does.
    """

    __slots__ = ("_data", "_layout", "keeps", "segment")

    def __init__(
        self,
        data: bytes,
        segment: Segment | None = None,
        layout: Layout | None = None,
        keeps: Sequence[Any] = (),
    ) -> None:
        self._data, self.segment, self._layout, self.keeps = data, segment, layout, keeps

    @property
    def data(self) -> bytes:
        """The pickle of a small value."""
        return self._data

    def load(self) -> Any:
        """Return the value."""
        if self.segment is None:
            return pickle.loads(self._data)
        assert self._layout is not None
        length, buffers = self._layout
        view = memoryview(self.segment.map())
        return pickle.loads(view[:length], buffers=[view[offset : offset + size] for offset, size in buffers])

    def describe(self, descriptors: list[int], sent: "Shipments | None" = None) -> Any:
        """Return what a message says of it, and add its descriptor to those that go with the message.

        Args:
            sent: What its receiver keeps; without, it keeps nothing.
        """
        segment = self.segment
        if segment is None:
            return self._data
        if sent is None:
            descriptors.append(segment.descriptor)
            return segment.size, self._layout
        known, forgotten = sent.ship(segment)
        if not known:
            descriptors.append(segment.descriptor)
        return None if known else segment.size, self._layout, segment.key, forgotten


def received(
    description: Any,
    descriptors: deque[int],
    keeps: Sequence[Any] = (),
    kept: "dict[int, Segment] | None" = None,
) -> Blob:
    """Return the blob that a message describes, with the next of its descriptors.

    Args:
        kept: The segments that this process keeps for the sender, by the sender's keys.
    """
    if isinstance(description, bytes):
        return Blob(description, keeps=keeps)
    size, layout, *lasting = description
    if not lasting:
        return Blob(b"", Segment(descriptors.popleft(), size), layout, keeps)
    assert kept is not None
    key, forgotten = lasting
    if size is not None:
        kept[key] = Segment(descriptors.popleft(), size)
        kept[key].lasting = True
    segment = kept[key]
    for other in forgotten:
        kept.pop(other, None)
    return Blob(b"", segment, layout, keeps)


def lay_out(stream: list[bytes], buffers: list[memoryview], budget: Budget, keeps: Sequence[Any]) -> Blob:
    """Return a blob of a pickle and its buffers, in a memory file where they are large."""
    length = sum(map(len, stream))
    if not buffers and length < LARGE:
        return Blob(b"".join(stream), keeps=keeps)
    pieces: list[memoryview | bytes] = list(stream)
    places, end = [], length
    for buffer in buffers:
        padding = -end % _ALIGNMENT
        pieces += [bytes(padding), buffer] if padding else [buffer]
        places.append((end + padding, buffer.nbytes))
        end += padding + buffer.nbytes
    segment = budget.create(end)
    segment.write(pieces)
    return Blob(b"", segment, (length, tuple(places)), keeps)


def raise_descriptor_limit() -> None:
    """Let this process have as many descriptors as it may: each large value that is kept takes one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def memory_file(size: int, label: str = "fray") -> int:
    """Return the descriptor of new memory without a name; `label` is what a listing of files shows."""
    if not hasattr(os, "memfd_create"):  # macOS: a file that was unlinked is the next best
        return _unlinked_file(None, size)
    descriptor = os.memfd_create(label, os.MFD_CLOEXEC)
    return _sized(descriptor, size)


def _unlinked_file(folder: Path | None, size: int) -> int:
    import tempfile

    descriptor, path = tempfile.mkstemp(prefix="fray-", dir=folder)
    Path(path).unlink()
    return _sized(descriptor, size)


def _sized(descriptor: int, size: int) -> int:
    try:
        os.ftruncate(descriptor, size)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
