"""The store of a head in this process, with a scheduler on it: nothing of Ray runs."""

import asyncio
import contextlib
import json
import os
import pickle
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.experimental import internal_kv

from fray import ResourceConfig
from fray.testing.gates import until
from fray_ray._head.job_process import END
from fray_ray._head.scheduler import Scheduler
from fray_ray._plan import Plan
from fray_ray._queued_job import QueuedJob
from fray_ray._scheduler import socket_path

SCHEDULER = "fray_ray._head.scheduler"

_JOB = "_ray_internal_job_info_"  # before the submission, in the namespace of the job table


class HeadInMemory:
    """Takes the place of the store that a process of a cluster finds on its head.

    `packages` are what jobs keep there, without Ray's prefix; `calls` are what was done with them, each as
    `get NAME`, `put NAME`, `del NAME`. What is in `broken` raises, by one of these, and what is in
    `broken_once` does so once; what is in `then` is called once, when that was done. The next list of names
    takes `away_for` seconds.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._data: dict[bytes | None, dict[str, bytes]] = {}
        self.calls: list[str] = []
        self.broken: set[str] = set()
        self.broken_once: set[str] = set()
        self.away_for = 0.0
        self.then: dict[str, Callable[[], None]] = {}
        for name in ("get", "put", "del", "list"):
            monkeypatch.setattr(internal_kv, f"_internal_kv_{name}", getattr(self, f"_{name}"))

    @property
    def packages(self) -> dict[str, bytes]:
        found = dict(self._data.get(None, {}))  # a copy, in one step: the scheduler is another thread
        return {name.removeprefix("gcs://"): data for name, data in found.items()}

    def put(self, name: str, data: bytes) -> None:
        """Keep a package."""
        self._data.setdefault(None, {})[f"gcs://{name}"] = data

    def remove(self, name: str) -> None:
        """Forget a package."""
        del self._data[None][f"gcs://{name}"]

    def entry(self, submission: str) -> dict[str, Any] | None:
        """Return what the job table has of a job."""
        data = self._data.get(b"job", {}).get(_JOB + submission)
        return None if data is None else dict(json.loads(data))

    def entries(self) -> dict[str, dict[str, Any]]:
        """Return the whole job table."""
        found = dict(self._data.get(b"job", {}))
        return {key.removeprefix(_JOB): dict(json.loads(data)) for key, data in found.items()}

    def add_entry(self, submission: str, entry: dict[str, Any]) -> None:
        """Put an entry into the job table."""
        self._data.setdefault(b"job", {})[_JOB + submission] = json.dumps(entry).encode()

    def remove_entry(self, submission: str) -> None:
        """Remove a job from the job table."""
        self._data[b"job"].pop(_JOB + submission, None)

    def _note(self, what: str, key: str) -> str:
        call = f"{what} {key.removeprefix('gcs://')}"
        self.calls.append(call)
        if call in self.broken or call in self.broken_once:
            self.broken_once.discard(call)
            raise RuntimeError(f"the head's store is away: {call}")
        return call

    def _get(self, key: str, *, namespace: bytes | None = None) -> bytes | None:
        call = self._note("get", key)
        found = self._data.get(namespace, {}).get(key)
        self.then.pop(call, lambda: None)()
        return found

    def _put(self, key: str, value: bytes, *, namespace: bytes | None = None) -> None:
        self._note("put", key)
        self._data.setdefault(namespace, {})[key] = value

    def _del(self, key: str, *, namespace: bytes | None = None) -> None:
        self._note("del", key)
        self._data.get(namespace, {}).pop(key, None)

    def _list(self, prefix: str, *, namespace: bytes | None = None) -> list[bytes]:
        time.sleep(self.away_for)
        self.away_for = 0.0
        return [key.encode() for key in list(self._data.get(namespace, {})) if key.startswith(prefix)]


class Context:
    """What Ray says of the process of a scheduler."""

    def __init__(self, gcs_address: str = "127.0.0.1:1") -> None:
        self.gcs_address = gcs_address

    def get_job_id(self) -> str:
        """Return the id of this driver."""
        return "01000000"

    def get_node_id(self) -> str:
        """Return the id of the head's node."""
        return "head"


class FullCluster:
    """The line for a cluster that never has room: Ray is not asked."""

    async def run(self) -> None:
        """Serve nobody."""
        await asyncio.Event().wait()

    async def find(self, *_: Any) -> None:
        """Wait for room."""
        await asyncio.Event().wait()

    def look_soon(self) -> None:
        """Nothing changes."""


class EmptyCluster(FullCluster):
    """The line for a cluster that has room for all."""

    async def find(self, *_: Any) -> None:
        """Return at once."""


@contextlib.contextmanager
def scheduler_of(
    head: HeadInMemory, monkeypatch: pytest.MonkeyPatch, folder: Path, line: type[FullCluster] = FullCluster
) -> Iterator[Scheduler]:
    """Run a scheduler on a store, on a thread of its own; the logs of its jobs are in the folder."""
    monkeypatch.setenv("RAY_TMPDIR", os.fspath(folder))
    monkeypatch.setattr(ray, "get_runtime_context", lambda: Context(os.fspath(folder)))
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 1.0})
    monkeypatch.setattr(f"{SCHEDULER}.remove_abandoned_groups", lambda: None)
    monkeypatch.setattr("ray._private.auto_init_hook.enable_auto_connect", False)
    monkeypatch.setattr(f"{SCHEDULER}.ReservationQueue", line)
    monkeypatch.setattr("fray_ray._head.kept.end_leftovers", lambda *_: None)
    monkeypatch.setattr(f"{SCHEDULER}.remove_groups_of", lambda _: None)
    node = SimpleNamespace(get_logs_dir_path=lambda: os.fspath(folder), node_ip_address="127.0.0.1")
    monkeypatch.setattr("ray._private.worker._global_node", node)
    ready = threading.Event()
    made: list[tuple[Scheduler, asyncio.AbstractEventLoop, asyncio.Task[None]]] = []

    async def serve() -> None:
        scheduler = Scheduler()
        task = asyncio.create_task(scheduler.run(ready.set))
        made.append((scheduler, asyncio.get_running_loop(), task))
        with contextlib.suppress(asyncio.CancelledError):
            await task
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for aside in [each for each in threading.enumerate() if each.name == "aside"]:
            await asyncio.to_thread(aside.join)  # each says at its end to the loop what it has done

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    until(ready.is_set, "the scheduler takes connections")
    scheduler, loop, task = made[0]
    try:
        yield scheduler
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
        Path(socket_path(os.fspath(folder))).unlink()


def driver_of(submission: str, folder: Path, *variables: str) -> socket.socket:
    """Connect to the scheduler as the process of a job does, which has these variables."""
    link = socket.socket(socket.AF_UNIX)
    link.settimeout(20)
    link.connect(socket_path(os.fspath(folder)))
    link.sendall("\0".join([submission, "/", *variables]).encode() + END)
    return link


def queued(
    head: HeadInMemory,
    job_id: str,
    plan: Any,
    *,
    previous_run: str | None = None,
    tries: int = 1,
    metadata: Mapping[str, str] | None = None,
) -> str:
    """Have a job queued in a store; return what Ray would call its run."""
    submission = job_id if tries == 1 else f"{job_id}-r{tries}"
    own = {"fray.job_id": job_id, "fray.name": "train", "fray.replicas": "1", "fray.tries": str(tries)}
    job = QueuedJob(
        command="true", metadata={**own, **(metadata or {})}, runtime_env={}, previous_run=previous_run
    )
    if plan is not None:
        head.put(f"fray-{previous_run or submission}.plan", pickle.dumps(plan))
    head.put(f"fray-{submission}.queued", job.to_json())
    return submission


def plan_of(job_id: str, **more: Any) -> Plan:
    """Return the plan of a job of one replica."""
    told: dict[str, Any] = {
        "job_id": job_id,
        "submission": job_id,
        "submitted_at": 1.0,
        "name": "train",
        "choices": (1,),
        "hosts": 1,
        "gang": False,
        "resources": ResourceConfig(),
        "labels": {},
        "command": ("true",),
        "payload": None,
        "environ": {},
        "secrets": (),
        "cwd": None,
        "pip": (),
        "max_retries_failure": 0,
        "max_retries_preemption": 0,
        "timeout": None,
        "placement_timeout": None,
    }
    return Plan(**{**told, **more})
