"""The files of a workspace as Iris takes them along: one archive, in which there are files alone."""

import io
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fray.backend import workspace_files

_LIMIT = 25 << 20  # bytes of the archive, as Iris has it
_CHUNK = 1 << 20
_NAMED = 5  # files in an error
_GONE = (FileNotFoundError, NotADirectoryError)  # deleted since it was listed


class Bundle(NamedTuple):
    """An archive, and the names of its files that can be executed: Iris's workers unpack it without modes."""

    archive: bytes
    executables: list[str]


def zipped(workspace: Path) -> Bundle:
    """Return the files of a workspace, those of a snapshot, as Iris's workers unpack them.

    Raises:
        ValueError: They are more than Iris takes, compressed; found out before all are read.
    """
    packed = io.BytesIO()
    files = list(_files(workspace.resolve()))
    with zipfile.ZipFile(packed, "w") as archive:
        for name, path in files:
            _add(archive, packed, name, path)
            if packed.tell() > _LIMIT:
                raise ValueError(_too_large(workspace, files))
    if packed.tell() > _LIMIT:  # with its list of names
        raise ValueError(_too_large(workspace, files))
    modes = {each.filename: each.external_attr >> 16 for each in archive.infolist()}
    return Bundle(packed.getvalue(), [name for name, mode in modes.items() if mode & stat.S_IXUSR])


def _add(archive: zipfile.ZipFile, packed: io.BytesIO, name: Path, path: Path) -> None:
    """Add a file; one that was deleted meanwhile is left out, and of one that is too large the rest."""
    try:
        # A time before 1980 is none that an archive can have.
        about = zipfile.ZipInfo.from_file(path, name, strict_timestamps=False)
        source = path.open("rb")
    except _GONE:
        return
    about.compress_type = zipfile.ZIP_DEFLATED
    with source, archive.open(about, "w") as target:
        while (chunk := source.read(_CHUNK)) and packed.tell() <= _LIMIT:
            target.write(chunk)


def _too_large(workspace: Path, files: list[tuple[Path, Path]]) -> str:
    largest = sorted(((_size(path), name) for name, path in files), reverse=True)[:_NAMED]
    listed = ", ".join(f"{name} ({size / (1 << 20):.1f} MB)" for size, name in largest)
    return (
        f"the files of the workspace {workspace} are more than the {_LIMIT >> 20} MB, compressed, that Iris "
        f"takes along with a job; the largest are {listed}: exclude what the job does not need in a "
        ".gitignore, which holds for files that git does not track; let the job read large data from a store"
    )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _files(workspace: Path) -> Iterator[tuple[Path, Path]]:
    """Yield where each file is in the archive, and here; those that a link to a folder leads to as well."""
    names = list(map(Path, workspace_files(workspace)))
    for name in names:
        path = workspace / name
        if path.is_file():
            yield name, path
        elif path.is_dir():  # a link: of its folder the files that are sent anyway, and no others
            target = path.resolve()
            for other in names:
                file = workspace / other
                if file.is_relative_to(target) and file.is_file():
                    yield name / file.relative_to(target), file
