"""Delete folders that jobs have written to."""

import contextlib
import os
import shutil


def remove_tree(path: str) -> None:
    """Delete a folder and what is in it, also below folders that their owner made read-only.

    What cannot be deleted stays, and is no error: what another user made, or all of a read-only disk.
    """
    shutil.rmtree(path, ignore_errors=True)
    if not os.path.isdir(path):
        return
    _open_up(path)
    for folder, names, _ in os.walk(path):  # opens each folder before it reads it
        for name in names:
            _open_up(os.path.join(folder, name))
    shutil.rmtree(path, ignore_errors=True)


def _open_up(folder: str) -> None:
    if not os.path.islink(folder):
        with contextlib.suppress(OSError):
            os.chmod(folder, 0o700)
