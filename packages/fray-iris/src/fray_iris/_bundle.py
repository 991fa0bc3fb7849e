"""The files of a workspace as Iris takes them along: one archive, in which there are files alone."""

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

from fray.backend import workspace_files


def zipped(workspace: Path) -> bytes:
    """Return the files of a workspace, those of a snapshot, as Iris's workers unpack them."""
    packed = io.BytesIO()
    # A time before 1980 is none that an archive can have.
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        for name, path in _files(workspace.resolve()):
            archive.write(path, name)
    return packed.getvalue()


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
