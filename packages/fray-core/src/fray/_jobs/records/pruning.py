"""Delete old records, in the background: a job's guardian does, when the job has ended; a launch never.

Nothing is deleted by one look at a clock. What is too old by its time is noted, with the time of the look. It
is deleted when a look an hour later or more, by a clock that has not gone back, still finds it too old.
"""

import contextlib
import json
import os
import sys
import time

from fray._jobs.plans.environment_folder import size_of
from fray._jobs.plans.values import Keep
from fray._jobs.processes.file_lock import release_lock, try_lock
from fray._jobs.processes.removal import remove_tree
from fray._jobs.records.endings import read_status
from fray._jobs.records.files import CHILDREN, KEEP, LOCK, PLAN
from fray._jobs.records.housekeeping_due import BETWEEN, NOTES
from fray._jobs.records.liveness import Liveness, last_renewed, liveness_of
from fray._jobs.records.older_records import liveness_of_record
from fray._jobs.records.replica_records import REPLICAS, job_path, replica_paths
from fray._jobs.records.status_file import STATUS, read_json, replace_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fray._jobs.records.record import Records
    from fray._values.jobs import Pruned

KEYS = ".keys"
_LOCK = ".pruning.lock"
_DRAFT, _DOOMED = ".new-", ".old-"
_DAY = 86400.0
_SEEN_WITHIN = 60.0  # seconds; a supervisor renews its lock every 10
_KINDS = {"logs": "logs", "workspace": "snapshots"}  # folders of a record


def write_keep(record: str, keep: Keep) -> None:
    """Note in the record of a job which records are to be kept when it has ended."""
    most = sys.maxsize if keep.jobs is None else keep.jobs
    replace_file(os.path.join(record, KEEP), f"{most}\n{json.dumps(keep._asdict())}\n".encode())


def prune_by(record: str) -> None:
    """Delete what is not to be kept, by the record of a job."""
    with open(os.path.join(record, KEEP)) as file:
        keep = Keep(**json.loads(file.read().partition("\n")[2]))
    prune(os.path.dirname(record), keep)


def prune(folder: str, keep: Keep) -> None:
    """Delete records of finished jobs, too many or too old, and what launchers left that were killed."""
    lock = try_lock(os.path.join(folder, _LOCK))
    if lock is None:
        return  # another prunes
    try:
        names = os.listdir(folder)
        _delete_half_made(folder, names)
        records = [name for name in names if not name.startswith(".")]
        _delete_beyond(folder, records, keep)
        if _delete_old(folder, records, keep):
            _delete_unused(folder, keep)
    finally:
        release_lock(lock)


def delete(folder: str, name: str) -> bool:
    """Delete a record; a reader sees a whole one or none meanwhile.

    Returns:
        False where another process has deleted it, or the disk is read-only.
    """
    doomed = os.path.join(folder, f"{_DOOMED}{name}")
    try:
        os.rename(os.path.join(folder, name), doomed)
    except OSError:
        return False
    remove_tree(doomed)
    return True


def prune_now(
    records: "Records", older_than: float, environments: str | None, *, dry_run: bool = False
) -> "Pruned":
    """Remove the jobs that ended so many seconds ago, environments that none refers to, and old keys.

    What launchers and removals left that were killed goes, too.
    """
    from fray._jobs.plans.environment_folder import prune_environments
    from fray._jobs.records.launch_keys import prune_keys
    from fray._values.jobs import Pruned

    folder, before = os.fspath(records.folder), time.time() - older_than
    gone, count = [], 0
    sizes = {"records": 0, "logs": 0, "snapshots": 0, "environments": 0}
    for record in records.all():
        path = os.fspath(record.path)
        if _modified(folder, record.path.name) > before or not settled(path):
            continue
        own = dict.fromkeys(sizes, 0)
        _add_sizes(path, own)
        if os.path.isdir(path) if dry_run else delete(folder, record.path.name):
            gone.append(record.job_id)
            sizes = {kind: size + own[kind] for kind, size in sizes.items()}
    if not dry_run:
        with contextlib.suppress(FileNotFoundError):  # nothing was ever launched
            _delete_half_made(folder, os.listdir(folder))
        prune_keys(records.folder / KEYS, lambda job_id: records.path(job_id).is_dir())
    if environments is not None:
        dropped = set(gone)

        def left() -> list[str]:
            kept = [record for record in records.all() if record.job_id not in dropped]
            return [os.fspath(each.path) for record in kept for each in record.with_descendants()]

        count, freed = prune_environments(environments, left, older_than, dry_run=dry_run)
        sizes["environments"] = freed
    return Pruned(jobs=tuple(gone), environments=count, size=sum(sizes.values()), sizes=sizes)


def _add_sizes(record: str, sizes: dict[str, int]) -> None:
    """Add what is in a record, and in those below it, to what there is of each kind."""
    with contextlib.suppress(FileNotFoundError), os.scandir(record) as entries:  # another prune deletes it
        for entry in entries:
            if entry.name in (CHILDREN, REPLICAS) and entry.is_dir(follow_symlinks=False):
                for name in os.listdir(entry.path):
                    if os.path.isdir(os.path.join(entry.path, name)):
                        _add_sizes(os.path.join(entry.path, name), sizes)
            elif entry.is_dir(follow_symlinks=False):
                # A sweep has the copies of its members: `workspace-0`, and so on.
                sizes[_KINDS.get(entry.name.partition("-")[0], "records")] += size_of(entry.path)
            else:
                sizes["records"] += entry.stat(follow_symlinks=False).st_size


def has_ended(record: str, *, force: bool = False) -> bool:
    """Whether nothing of one job runs any more; with `force`, as far as anybody here knows."""
    replicas = replica_paths(record)
    if replicas:
        return all(has_ended(each, force=force) for each in replicas)
    liveness = liveness_of_record(record)
    if liveness is Liveness.ALIVE:
        return False
    info = read_status(record)
    if info is None:
        return force or liveness is not Liveness.UNKNOWN
    if info.finished:
        return True
    if _gone(record, liveness) or _never_starts(record, liveness):
        return True
    return force and liveness in (Liveness.GONE, Liveness.UNKNOWN)


def settled(record: str) -> bool:
    """Whether a job and all below it have ended, and their supervisors too."""
    liveness = liveness_of_record(record)
    info = read_status(record)
    replicas = replica_paths(record)  # which have to be settled as what is below it has
    finished = info is None or info.finished or bool(replicas)
    finished = finished or _gone(record, liveness) or _never_starts(record, liveness)
    if liveness is Liveness.UNKNOWN:  # what is written counts, and that nobody was seen since
        finished = info is not None and info.finished and not _seen_lately(record)
    if not finished or liveness is Liveness.ALIVE:
        return False
    below = os.path.join(record, CHILDREN)
    children = os.listdir(below) if os.path.isdir(below) else []
    parts = [*replicas, *(os.path.join(below, name) for name in children if not name.startswith("."))]
    return all(map(settled, parts))


def _seen_lately(record: str) -> bool:
    """Whether a supervisor may have something to do yet after the end that it wrote, by its lock's time."""
    seen = last_renewed(os.path.join(record, LOCK))
    return seen is None or time.time() - seen < _SEEN_WITHIN


def _gone(record: str, liveness: Liveness) -> bool:
    """Whether a job's supervisor is gone for good: where the plan is still there the job may be resumed."""
    return liveness is Liveness.GONE and not os.path.exists(os.path.join(record, PLAN))


def _never_starts(record: str, liveness: Liveness) -> bool:
    """Whether it is a member of a sweep that has ended without it."""
    of_a_sweep = os.path.basename(record).isdecimal() and job_path(record) == record
    if liveness is not Liveness.NOT_STARTED or not of_a_sweep:
        return False
    return has_ended(os.path.dirname(os.path.dirname(record)))


def _delete_half_made(folder: str, names: list[str]) -> None:
    """Delete drafts of launchers that were killed, and what was left of a deletion."""
    for name in names:
        path = os.path.join(folder, name)
        if name.startswith(_DOOMED) or (name.startswith(_DRAFT) and _abandoned(path)):
            remove_tree(path)


def _abandoned(draft: str) -> bool:
    """Whether nobody makes a draft any more: its launcher holds its lock, and makes that first.

    A new one is let be in any case: where locks are those of a host, the launcher on another one seems gone.
    """
    try:
        if time.time() - os.stat(draft).st_mtime <= BETWEEN:
            return False
    except OSError:
        return False
    lock = os.path.join(draft, LOCK)
    return not os.path.exists(lock) or liveness_of(lock, held_by_launcher=True) is Liveness.GONE


def _delete_beyond(folder: str, records: list[str], keep: Keep) -> None:
    if keep.jobs is None or len(records) <= keep.jobs:
        return
    latest = time.time() + BETWEEN

    def age(name: str) -> tuple[bool, float]:
        """What was written while a clock was far ahead is taken for old: all that end now would be older."""
        when = _modified(folder, name)
        return when < latest, when

    for name in sorted(records, key=age, reverse=True)[keep.jobs :]:
        if settled(os.path.join(folder, name)):
            delete(folder, name)
            records.remove(name)


def _delete_old(folder: str, records: list[str], keep: Keep) -> bool:
    """Delete what was found too old twice; whether this was a look at ages."""
    if keep.days is None:
        return False
    now, path = time.time(), os.path.join(folder, NOTES)
    notes = read_json(path) or {}
    looked, noted = notes.get("looked", 0.0), notes.get("noted", {})
    if 0 <= now - looked < BETWEEN:
        return False
    if now < looked:
        noted = {}  # the clock has gone back: what was noted was noted by another time
    oldest = now - keep.days * _DAY
    old = [name for name in records if _modified(folder, name) < oldest]
    for name in old:
        if now - noted.get(name, now) >= BETWEEN and settled(os.path.join(folder, name)):
            delete(folder, name)
    left = {name: noted.get(name, now) for name in old}
    replace_file(path, json.dumps({"looked": now, "noted": left}).encode())
    return True


def _delete_unused(folder: str, keep: Keep) -> None:
    from pathlib import Path

    from fray._jobs.plans.environment_folder import prune_environments
    from fray._jobs.records.launch_keys import prune_keys
    from fray._jobs.records.record import Records

    records = Records(Path(folder))
    prune_keys(Path(folder) / KEYS, lambda job_id: records.path(job_id).is_dir())
    if keep.shared is not None and keep.days is not None:

        def paths() -> list[str]:
            return [os.fspath(record.path) for record in records.with_descendants()]

        prune_environments(keep.shared, paths, keep.days * _DAY)


def _modified(folder: str, name: str) -> float:
    try:
        return os.stat(os.path.join(folder, name, STATUS)).st_mtime
    except OSError:
        return 0.0
