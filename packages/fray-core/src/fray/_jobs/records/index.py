"""What finished jobs read, in one file: a list of ten thousand records costs one read and a look at each.

Written by the guardians of jobs, in the background, once there are enough new records; readers only read it.
It is a cache: an entry counts as long as the status file has the size and the time that it had; a file that
cannot be read is none.
"""

import contextlib
import os
import pickle
from collections.abc import Iterable, Iterator
from pathlib import Path

from fray._jobs.processes.file_lock import release_lock, try_lock
from fray._jobs.records.files import CHILDREN
from fray._jobs.records.housekeeping_due import COUNT, FEW, index_is_due
from fray._jobs.records.liveness import Liveness
from fray._jobs.records.record import JobRecord, Records
from fray._jobs.records.status_file import STATUS, replace_file
from fray._values.errors import JobNotFoundError
from fray._values.job_states import JobInfo

_INDEX, _LOCK = ".index.pickle", ".index.lock"
_FORMAT = 2

# The time and size of the status file, what the job reads, and whether jobs are below it.
Entry = tuple[int, int, JobInfo, bool]


def list_records(records: Records) -> list[JobInfo]:
    """Return the state of every job below a folder, those of jobs included, in no order.

    What is below a sweep is left out.
    """
    names = records.names()
    index = load_index(records.folder) if len(names) > FEW else {}
    infos: list[JobInfo] = []
    for name in names:
        entry = index.get(name)
        if entry is not None and stamp_of(records.folder, name) == entry[:2]:
            infos.append(entry[2])
            if entry[3] and not entry[2].is_sweep:
                infos += _below(records.record(name))
        else:
            infos += _with_descendants(records.record(name))
    return infos


def _with_descendants(record: JobRecord) -> Iterator[JobInfo]:
    found = infos_of([record])
    yield from found
    if not any(info.is_sweep for info in found):
        yield from _below(record)


def _below(record: JobRecord) -> Iterator[JobInfo]:
    for child in record.children():
        yield from _with_descendants(child)


def infos_of(records: Iterable[JobRecord]) -> list[JobInfo]:
    """Return the state of each job, without those that are being deleted."""
    infos = []
    for record in records:
        with contextlib.suppress(JobNotFoundError):
            infos.append(record.info())
    return infos


def renew(folder: str) -> None:
    """Write the index again where many records are not in it, unless another process does."""
    lock = try_lock(os.path.join(folder, _LOCK))
    if lock is None:
        return
    try:
        _write(folder)
    finally:
        release_lock(lock)


def _write(folder: str) -> None:
    records = Records(Path(folder))
    names = records.names()
    if not index_is_due(folder, len(names)):
        return
    before, index = load_index(records.folder), dict[str, Entry]()
    for name in names:
        stamp, entry = stamp_of(records.folder, name), before.get(name)
        if stamp is None:
            continue
        if entry is None or entry[:2] != stamp:
            entry = _entry_of(records.record(name), stamp)
        if entry is not None:
            index[name] = entry
    replace_file(os.path.join(folder, _INDEX), pickle.dumps((_FORMAT, index), protocol=5))
    replace_file(os.path.join(folder, COUNT), f"{len(index)}\n{len(names) - len(index)}\n".encode())


def _entry_of(record: JobRecord, stamp: tuple[int, int]) -> Entry | None:
    info = record.info()
    # Of one that ended on another host nobody here knows whether its supervisor lives; its end is written.
    if not info.finished or record.liveness() is Liveness.ALIVE:
        return None
    return (*stamp, info, os.path.isdir(record.path / CHILDREN))


def load_index(folder: Path) -> dict[str, Entry]:
    """Return what the index of a folder has, by the names of records; empty where there is none."""
    try:
        with (folder / _INDEX).open("rb") as file:
            version, index = pickle.load(file)
    except Exception:  # noqa: BLE001 - whatever is wrong with a cache, there is none
        return {}
    return index if version == _FORMAT else {}


def stamp_of(folder: Path, name: str) -> tuple[int, int] | None:
    """Return the time and size of a record's status file; None where there is none."""
    try:
        status = os.stat(f"{folder}/{name}/{STATUS}")
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
