"""Find out at launch, not after an hour in the queue, that the nodes do not see the folder of records."""

import os
import secrets
import socket
from collections.abc import Mapping
from pathlib import Path

from fray_slurm._client import SlurmClient, SlurmError
from fray_slurm._settings import SlurmSettings

# Kinds of file systems that many hosts mount; a folder on one of these is taken for shared.
_SHARED = (
    *("nfs", "lustre", "gpfs", "beegfs", "ceph", "wekafs", "panfs", "cifs", "smb", "afs", "gfs", "ocfs"),
    *("glusterfs", "fuse", "virtiofs", "9p", "orangefs", "pvfs", "vast", "daos", "quobyte"),
)


def check_shared(client: SlurmClient, folder: Path, settings: SlurmSettings) -> None:
    """Refuse a folder that a node does not see; where no node is free for the check, the job will report it.

    Raises:
        SlurmError: A node was checked and does not see it.
    """
    if kind_of(folder).startswith(_SHARED) or not _elsewhere(client.nodes()):
        return
    probe = folder / f".probe-{secrets.token_hex(8)}"
    probe.touch(mode=0o600)
    try:
        seen = client.sees(probe, settings.partition, settings.account)
    finally:
        probe.unlink()
    if seen is False:
        raise SlurmError(
            f"the nodes do not see {os.fspath(folder)!r}, which is on this host's own disk "
            f"({kind_of(folder)}): records must be in a folder that all nodes share; say which, as in "
            "'slurm?root=/shared/me/fray', or by FRAY_STATE_DIR"
        )


def kind_of(folder: Path, mounts: str | None = None) -> str:
    """Return the kind of the file system that a folder is on; "" where that is not known."""
    text = mounts if mounts is not None else _mounts()
    place_of_it = os.path.realpath(folder)  # a link leads to another file system, as a rule
    best, kind = "", ""
    for line in text.splitlines():
        words = line.split()
        if len(words) < 3:
            continue
        place = words[1].replace("\\040", " ")
        inside = place == "/" or f"{place_of_it}/".startswith(f"{place}/")
        if inside and len(place) >= len(best):
            best, kind = place, words[2]
    return kind


def _mounts() -> str:
    try:
        return Path("/proc/mounts").read_text()
    except OSError:
        return ""


def _elsewhere(nodes: Mapping[str, Mapping[str, str]]) -> bool:
    """Whether any node is another host than this one."""
    here = socket.gethostname().partition(".")[0]
    return any(fields.get("NodeHostName", name).partition(".")[0] != here for name, fields in nodes.items())
