"""A disk of two megabytes for a cluster's records, which a test fills or makes read-only."""

import contextlib
import os
import subprocess
from pathlib import Path

from fray._jobs.clusters.directory_cluster import DirectoryCluster
from fray.testing.cluster_fixtures import until


class SmallDisk:
    """A file system of two megabytes in memory; not mounted where that is not allowed."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.path, self.folder = path, folder
        self.cluster: DirectoryCluster | None = None
        self._protected = False
        path.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", "size=2m,mode=0700", "fray-test", os.fspath(path)]
        self.mounted = os.geteuid() == 0 and self._run(command) == 0

    def fill(self) -> None:
        with (self.path / "filler").open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"x" * 4096)

    def clear(self) -> None:
        (self.path / "filler").unlink()

    def protect(self) -> None:
        """Make it read-only for all that is opened from here on."""
        path = os.fspath(self.path)
        assert self._run(["mount", "--bind", path, path]) == 0
        assert self._run(["mount", "-o", "remount,bind,ro", path]) == 0
        self._protected = True

    def release(self) -> None:
        """Let it be written again."""
        until(lambda: self._run(["umount", os.fspath(self.path)]) == 0, "the disk is writable", 20.0)
        self._protected = False

    def close(self) -> None:
        if not self.mounted:
            return
        if self._protected:
            self.release()
        if self.cluster is not None:
            for info in self.cluster.list_jobs():
                self.cluster.terminate(info.job_id, grace=0.0)
                record = self.cluster.record(info.job_id)
                until(lambda record=record: not record.alive(), "its supervisor ends", 20.0)  # type: ignore[misc]
        until(lambda: self._run(["umount", os.fspath(self.path)]) == 0, "the disk is free", 20.0)

    def _run(self, command: list[str]) -> int:
        return subprocess.run(command, capture_output=True, check=False).returncode
