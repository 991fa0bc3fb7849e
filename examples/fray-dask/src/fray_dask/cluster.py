"""The cluster `dask`: jobs beside the workers of a Dask cluster."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from fray.backend import Spec
from fray.cluster import DirectoryCluster
from fray_dask import connection

BACKGROUND = '"$@" > /dev/null 2>&1 < /dev/null &'  # in a shell that ends: no child of the worker's


def _run(command: Sequence[str]) -> None:
    subprocess.run(["/bin/sh", "-c", BACKGROUND, "sh", *command], start_new_session=True, check=True)


class DaskCluster(DirectoryCluster):
    """Jobs on the machines of a Dask cluster; spec `dask?address=tcp://host:8786&root=FOLDER`.

    Args:
        address: The scheduler's; without one, workers of this machine.
        root: Where records are kept, on all machines the same folder; `~/.fray-dask`.
    """

    def __init__(self, *, address: str | None = None, root: str | None = None) -> None:
        self._address = address
        root = root or str(Path.home() / ".fray-dask")
        options = {"address": address, "root": root} if address else {"root": root}
        super().__init__(str(Spec("dask", options)), root)

    def _start(self, job_id: str, command: Sequence[str]) -> None:
        with connection.connect(self._address) as client:
            client.submit(_run, list(command), pure=False).result()
