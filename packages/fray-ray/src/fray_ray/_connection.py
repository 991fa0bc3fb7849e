"""Joining Ray: the cluster that this process is in, one at an address, or a private one on this machine."""

import contextlib
import gc
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray

from fray import ClusterUnavailableError, ContextClosedError, UnsupportedError
from fray.backend import FAMILY
from fray.cluster import parent_job
from fray_ray._finding import knock
from fray_ray._ray_internals.addresses import as_ray_says, current_cluster

_log = logging.getLogger("fray.ray")
_lock = threading.RLock()  # a signal handler may come in between
_REMOVALS = 100  # times that a folder is removed at most: its cluster has ended, and may still write


class Connection:
    """This process's connection to a Ray cluster, made when `open` is called; a process has one at most.

    Args:
        address: `host:port` of the head, or `auto`; None for the cluster that this
            process is in, else that of `RAY_ADDRESS`, else the one that runs on this machine.
        namespace: Where actors' names are looked up by default.
        local: Start a cluster of this machine, which ends with the connection.
    """

    def __init__(self, address: str | None, namespace: str | None, local: bool) -> None:
        if local and address is not None:
            raise ValueError(
                f"local=true starts a cluster of its own; it cannot join address={address!r} as well"
            )
        if address is not None and address.startswith("ray://"):
            raise UnsupportedError(
                f"RayContext is part of a cluster and cannot join through Ray Client ({address}); "
                "run the program there, as a job: fray run --cluster 'ray?address=http://HOST:8265' -- ..."
            )
        self._address, self._namespace, self._local = address, namespace, local
        self._owned_dir: str | None = None
        self.opened = self._opening = False
        self.joined: str | None = None
        """`host:port` of the head, once the cluster was joined."""
        self._cluster: Any = None

    def open(self) -> None:
        """Join the cluster, or start it; nothing where that was done.

        Raises:
            ClusterUnavailableError: No cluster answers.
            ValueError: This process is connected to another one.
            RuntimeError: A signal handler requests what it has just interrupted: joining a cluster.
        """
        with _lock, _no_finalizers():
            if self.opened:
                return
            if self._opening:
                raise RuntimeError("a signal handler used a Ray context while its thread was joining Ray")
            self._opening = True
            try:
                self._open()
            finally:
                self._opening = False
            self.joined = str(ray.get_runtime_context().gcs_address)
            self._cluster = current_cluster()
            self.opened = True
            _log.info("this context is on the Ray cluster at %s", self.joined)

    @property
    def private(self) -> bool:
        """Whether the cluster was started by this connection."""
        return self._owned_dir is not None

    @property
    def up(self) -> bool:
        """Whether this process is still in the cluster that was joined."""
        return self.opened and current_cluster() == self._cluster

    @property
    def left(self) -> bool:
        """Whether this process was in the cluster, and no longer is."""
        return self.opened and current_cluster() != self._cluster

    def check(self) -> None:
        """Refuse what Ray would start another cluster for.

        Raises:
            ContextClosedError: This process has left the cluster, which has ended where it was a private one.
        """
        if self.left:
            raise ContextClosedError(
                f"this process has left the Ray cluster at {self.joined}, by ray.shutdown() or with the end "
                "of a context; make another context with create_context('ray')"
            )

    def _open(self) -> None:
        if ray.is_initialized():
            _check_same(self._address)
        elif self._local:
            self._start(self._namespace)
        else:
            _join(self._address or os.environ.get("RAY_ADDRESS") or "auto", self._namespace)

    def _start(self, namespace: str | None) -> None:
        self._owned_dir = tempfile.mkdtemp(prefix="fray-", dir="/tmp")
        try:
            ray.init(
                "local",
                namespace=namespace,
                include_dashboard=False,
                logging_level=logging.WARNING,
                _temp_dir=self._owned_dir,
            )
        except BaseException as error:
            self.close()
            if isinstance(error, Exception):  # of no type of its own where a process is not up in time
                raise ClusterUnavailableError(f"no Ray could be started on this machine: {error}") from error
            raise

    def close(self) -> None:
        """End the cluster that this connection started; one that was joined stays joined."""
        if self._owned_dir is not None:
            if self.up or not self.opened:  # else it has ended, and this process may be in another
                with contextlib.suppress(Exception):
                    ray.shutdown(wait_for_processes=True)
            _remove(Path(self._owned_dir))
            self._owned_dir = None


def _remove(folder: Path) -> None:
    """Remove the files of a cluster that has ended: a worker writes until it notices."""
    for _ in range(_REMOVALS):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.05)


@contextlib.contextmanager
def _no_finalizers() -> Iterator[None]:
    """Let the garbage collector wait: a finalizer that uses the context could not wait for this thread."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _join(address: str, namespace: str | None) -> None:
    try:
        if address != "auto":
            knock(address)
        ray.init(address, namespace=namespace, logging_level=logging.WARNING)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ClusterUnavailableError(
            f"no Ray cluster answers at {address!r}: {error}; give ray?address=HOST:PORT of a running one "
            "(with RAY_AUTH_MODE=token, where it asks for a token), or start a private one on this machine "
            "with ray?local=true"
        ) from error


def _check_same(address: str | None) -> None:
    if address is None or address == "auto":
        return
    current = ray.get_runtime_context().gcs_address
    if not _names(address, current):
        raise ValueError(
            f"this process is connected to the Ray cluster at {current} and cannot join {address!r} as well; "
            "call ray.shutdown() first, or use another process"
        )


def _names(address: str, current: str) -> bool:
    """Whether an address is another spelling of one that Ray gives: it knows no loopback."""
    return current in (address, as_ray_says(address))


def cluster_resources() -> dict[str, float]:
    """Return the amounts that the cluster has, by name."""
    return dict(ray.cluster_resources())  # type: ignore[no-untyped-call]


def family_namespace() -> str:
    """Return where the actors of this process are named: with its job's family, or as its connection sets."""
    job = parent_job()
    if job is None:
        return str(ray.get_runtime_context().namespace)
    return os.environ.get(FAMILY) or job.partition("/")[0]
