"""Proxy actors that several processes share: a folder per namespace, a record and a socket per actor.

    STATE/actors/NAMESPACE/     mode 0700
        .lock                   held while a name is taken
        3f9a2c….json            name, label, methods
        3f9a2c….sock            where its process listens
        3f9a2c….log             what a detached one printed

An actor lives as long as its socket answers: the kernel knows, no process id is compared. A record
whose socket does not answer is of one that was killed; it goes when its name is taken next.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from urllib.parse import quote

from fray.backend import guarded
from fray_local._state import state_dir

DEFAULT = "default"
_ACCEPT_SECONDS = 5.0  # that an actor has to accept a connection
_TIMEVAL = struct.Struct("ll")
_LONGEST = 100  # of a path that a Unix socket can have, with a little to spare


@dataclass(frozen=True)
class ActorRecord:
    """What others have to know of an actor."""

    namespace: str
    name: str
    label: str
    methods: dict[str, bool]
    detached: bool
    concurrency: int = 1
    created_at: float = 0.0
    job_id: str | None = None
    max_restarts: int = 0

    @property
    def address(self) -> tuple[str, str, str]:
        """Where other processes find this actor, and no later one of its name."""
        return self.namespace, self.name, str(self.created_at)


_FIELDS = {field.name for field in fields(ActorRecord)}


_thread = threading.local()


class ActorDirectory:
    """The shared actors of one namespace."""

    def __init__(self, namespace: str, root: Path | None = None) -> None:
        self.namespace = namespace
        # These two are folders that are there: the state directory itself, and that of all namespaces.
        name = namespace.replace(".", "%2E") if namespace in (".", "..") else quote(namespace, safe="")
        self.folder = (root or state_dir()) / "actors" / name

    def find(self, name: str) -> tuple[ActorRecord, socket.socket] | None:
        """Return a living actor's record and a connection to it.

        Raises:
            TimeoutError: It accepts no connection: its process is stopped, say.
            OSError: It cannot be known whether it lives: this process can open no more files, say.
        """
        path = self._path(name, "json")
        while (record := self._read(path)) is not None:
            try:
                sock = self._connect(name, _ACCEPT_SECONDS)
            except BlockingIOError:
                raise TimeoutError(
                    f"the actor {record.label} has accepted no connection for {_ACCEPT_SECONDS:g} s: "
                    "its process may be stopped (SIGSTOP)"
                ) from None
            except (ConnectionRefusedError, FileNotFoundError):  # nothing listens there
                return None
            if self._read(path) == record:
                return record, sock
            sock.close()  # of another one, which has taken the name meanwhile
        return None

    def reach(self, record: ActorRecord) -> socket.socket | None:
        """Return a connection to an actor; None where it is gone, also if another one has its name by now.

        Raises:
            OSError: As `find` does.
        """
        found = self.find(record.name)
        if found is None or found[0] == record:
            return found and found[1]
        found[1].close()
        return None

    def _lives(self, name: str) -> bool:
        """Whether an actor has the name, without waiting for it."""
        try:
            self._connect(name, 0).close()
        except BlockingIOError:  # more wait for it than it has room for: it is stopped, or busy
            return True
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        return True

    def claim(self, record: ActorRecord) -> socket.socket | None:
        """Take a name and return the listening socket of its actor; None where a living actor has it."""
        self._make()
        with self._locked():
            file, path = (self._path(record.name, ending) for ending in ("json", "sock"))
            if self._read(file) is not None and self._lives(record.name):
                return None
            file.unlink(missing_ok=True)  # first: it is not the record of what listens from now on
            path.unlink(missing_ok=True)
            listener = socket.socket(socket.AF_UNIX)
            with self._reachable(path) as reachable:
                listener.bind(reachable)
            path.chmod(0o600)
            listener.listen(128)
            new = file.with_suffix(".new")
            new.write_text(json.dumps(asdict(record)))
            new.replace(file)
            return listener

    def remove(self, record: ActorRecord, *, wait: bool = True) -> None:
        """Free the name of an actor that is gone or going; one that was made since keeps it.

        Raises:
            BlockingIOError: Another process is changing something here, and this one is not to wait.
        """
        if not self.folder.is_dir():
            return
        with self._locked(wait=wait):
            if self._read(self._path(record.name, "json")) == record:
                for ending in ("json", "sock", "log"):
                    self._path(record.name, ending).unlink(missing_ok=True)

    def living(self) -> list[ActorRecord]:
        """Return the actors that answer, oldest first."""
        records = []
        for path in sorted(self.folder.glob("*.json")) if self.folder.is_dir() else ():
            record = self._read(path)
            if record is not None and self._lives(record.name):
                records.append(record)
        return sorted(records, key=lambda record: record.created_at)

    def log_path(self, name: str) -> Path:
        """Return where a detached actor's output goes."""
        return self._path(name, "log")

    def _make(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.folder.chmod(0o700)

    def _path(self, name: str, ending: str) -> Path:
        return self.folder / f"{hashlib.blake2b(name.encode(), digest_size=12).hexdigest()}.{ending}"

    def _read(self, path: Path) -> ActorRecord | None:
        try:
            said = json.loads(path.read_text()).items()
            # A later version may say more of an actor; that makes it no other one.
            record = ActorRecord(**{field: value for field, value in said if field in _FIELDS})
            record.name.encode()
        except (FileNotFoundError, ValueError, TypeError, AttributeError, RecursionError):  # damaged
            return None
        values = (
            (record.label, str),
            (record.methods, dict),
            (record.created_at, float),
            (record.max_restarts, int),
        )
        return record if all(isinstance(value, kind) for value, kind in values) else None

    def _connect(self, name: str, seconds: float) -> socket.socket:
        """Connect; BlockingIOError where the actor has no room for a connection in so many seconds."""
        sock = socket.socket(socket.AF_UNIX)
        try:
            # Whatever the program's default timeout is. A timeout of Python's own does not wait for room.
            sock.setblocking(seconds > 0)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(int(seconds), 0))
            with self._reachable(self._path(name, "sock")) as reachable:
                sock.connect(reachable)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, bytes(_TIMEVAL.size))
        except BaseException:
            sock.close()
            raise
        return sock

    @contextlib.contextmanager
    def _reachable(self, path: Path) -> Iterator[str]:
        """Give a path that is short enough for a Unix socket, whatever the folder's is."""
        if len(os.fsencode(path)) <= _LONGEST:
            yield os.fspath(path)
            return
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield f"/proc/self/fd/{folder}/{path.name}"
        finally:
            os.close(folder)

    @contextlib.contextmanager
    def _locked(self, *, wait: bool = True) -> Iterator[None]:
        """Hold the lock of the folder; a finalizer that interrupts its own thread in here has it as well."""
        # By one call: a finalizer may come before the first use of a thread has ended.
        held: dict[Path, int] = _thread.__dict__.setdefault("locks", {})  # it waits for them, or has them
        below = held.get(self.folder)
        lock = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600) if below is None else below
        held[self.folder] = lock
        try:
            with guarded():
                # An open file that has it already gets it at once.
                fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield
        finally:
            if below is None:
                # first: a handler that interrupts the next lines opens it again
                fcntl.flock(lock, fcntl.LOCK_UN)
                del held[self.folder]
                os.close(lock)


def namespaces(root: Path | None = None) -> list[str]:
    """Return the namespaces that have, or had, shared actors."""
    from urllib.parse import unquote

    folder = (root or state_dir()) / "actors"
    return sorted(unquote(path.name) for path in folder.iterdir()) if folder.is_dir() else []


def family() -> str | None:
    """Return what the jobs of one program, and all below them, share; None outside of jobs."""
    job_id = os.environ.get("FRAY_JOB_ID")
    if job_id and os.environ.get("FRAY_JOB_FAMILY"):
        return os.environ["FRAY_JOB_FAMILY"]
    return job_id.partition("/")[0] if job_id else None


def new_record(
    namespace: str,
    name: str,
    label: str,
    methods: dict[str, bool],
    *,
    detached: bool,
    concurrency: int,
    max_restarts: int,
) -> ActorRecord:
    """Return the record of an actor that is being made now."""
    return ActorRecord(
        namespace,
        name,
        label,
        methods,
        detached,
        concurrency,
        created_at=time.time(),
        job_id=os.environ.get("FRAY_JOB_ID"),
        max_restarts=max_restarts,
    )
