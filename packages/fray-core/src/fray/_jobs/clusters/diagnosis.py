"""Check the folder that a cluster keeps its records in, and what this machine lets its jobs do."""

import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from fray._jobs.process_tree import TreeKill, tree_kill
from fray._jobs.records.liveness import SupervisorLock
from fray._jobs.records.record import Records
from fray._values.findings import Finding, Health
from fray._values.words import in_words

_LITTLE_DISK = 1 << 30  # bytes
_SKEW = 2.0  # seconds


def check_folder(records: Records) -> Iterator[Finding]:
    """Yield the findings about a folder of records; nothing but a file that is deleted is written."""
    folder = records.folder
    place = _nearest(folder)
    if place != folder:
        yield _made_later(folder, place)
        return
    yield _mode(folder)
    written = _write_and_lock(folder)
    yield from written
    if all(each.health is not Health.ERROR for each in written):
        yield _records(records)
    yield _disk(folder)


def check_machine() -> Iterator[Finding]:
    """Yield what this machine lets jobs do."""
    how = tree_kill()
    if how in (TreeKill.CGROUP, TreeKill.PID_NAMESPACE):
        yield Finding(check="process trees", health=Health.OK, found=f"ended by {how}")
    else:
        yield Finding(
            check="process trees",
            health=Health.WARNING,
            found=f"ended by {how}" if how else "no way to find every process of a job",
            advice="one that leaves the tree of its job may survive it; a writable cgroup v2 mends that",
        )


def _made_later(folder: Path, place: Path) -> Finding:
    try:
        os.rmdir(
            tempfile.mkdtemp(prefix=".fray-doctor-", dir=place)
        )  # permissions are not all that may refuse
    except OSError:
        pass
    else:
        return Finding(check="state directory", health=Health.OK, found=f"{folder}, made by the first launch")
    return Finding(
        check="state directory",
        health=Health.ERROR,
        found=f"{folder} is not there, and {place} cannot be written",
        advice="choose another folder by FRAY_STATE_DIR",
    )


def _mode(folder: Path) -> Finding:
    status = folder.stat()
    mode = stat.S_IMODE(status.st_mode)
    check, found = "state directory", f"{folder}, mode {mode:o}"
    if status.st_uid != os.getuid():
        advice = "what your jobs run could be changed by its owner; choose another folder by FRAY_STATE_DIR"
        return Finding(
            check=check, health=Health.ERROR, found=f"{found}, of user {status.st_uid}", advice=advice
        )
    if mode & 0o077:
        return Finding(
            check=check,
            health=Health.WARNING,
            found=f"{found}: others may look into it",
            advice=f"chmod 700 {folder}; the next launch does it too",
        )
    return Finding(check=check, health=Health.OK, found=found)


def _write_and_lock(folder: Path) -> list[Finding]:
    """Write, lock and delete a file, and compare the clock of the file system with this machine's."""
    path = folder / f".doctor-{os.getpid()}"
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        advice = "jobs can be read and not launched; make room, or mount it for writing"
        return [Finding(check="writing", health=Health.ERROR, found=str(error), advice=advice)]
    try:
        before = time.time()
        os.write(file, b"fray doctor\n")
        os.fsync(file)
        # A slow disk is no wrong clock: right is whatever time there was meanwhile.
        written = os.fstat(file).st_mtime
        off = written - min(max(written, before), time.time())
        found = [_locks(file), _clock(off)]
    except OSError as error:
        found = [
            Finding(check="writing", health=Health.ERROR, found=str(error), advice="make room on the disk")
        ]
    finally:
        os.close(file)
        path.unlink(missing_ok=True)
    return found


def _locks(file: int) -> Finding:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(file, fcntl.LOCK_UN)
        SupervisorLock(file).take()  # a lock of another kind, which some file systems do not have
    except OSError as error:
        return Finding(
            check="locks",
            health=Health.ERROR,
            found=f"the file system has none: {error}",
            advice="whether a job lives is known by a lock; choose another folder by FRAY_STATE_DIR",
        )
    return Finding(check="locks", health=Health.OK, found="files can be locked")


def _clock(off: float) -> Finding:
    if abs(off) > _SKEW:
        return Finding(
            check="clock",
            health=Health.WARNING,
            found=f"the file system's clock is {off:+.1f} s from this machine's",
            advice="times of jobs and logs are off by that; let both follow one time server",
        )
    return Finding(check="clock", health=Health.OK, found="the file system's is this machine's")


def _records(records: Records) -> Finding:
    names = records.names()
    damaged = [
        record.job_id for record in records.all() if "is damaged" in (record.written().error_message or "")
    ]
    if damaged:
        return Finding(
            check="records",
            health=Health.WARNING,
            found=f"{len(damaged)} of {len(names)} cannot be read: {', '.join(damaged[:3])}",
            advice="`fray rm ID` removes one",
        )
    return Finding(check="records", health=Health.OK, found=f"{len(names)} jobs")


def _disk(folder: Path) -> Finding:
    usage = shutil.disk_usage(folder)
    found = f"{in_words(usage.free)} free of {in_words(usage.total)}"
    if usage.free < _LITTLE_DISK:
        advice = "logs are cut short when it is full; `fray prune` removes old jobs"
        return Finding(check="disk", health=Health.WARNING, found=found, advice=advice)
    return Finding(check="disk", health=Health.OK, found=found)


def _nearest(folder: Path) -> Path:
    """Return the folder, or the nearest above it that there is."""
    return next(each for each in (folder, *folder.parents) if each.is_dir())
