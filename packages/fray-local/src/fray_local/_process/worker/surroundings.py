"""The working directory and the environment that a worker was given: each of its tasks starts there."""

import contextlib
import os
import sys
from typing import Any

from fray_local._process.protocol.messages import WorkerSettings


class Surroundings:
    """Takes over the owner's variables and directory, and restores them after a task that changed them."""

    def __init__(self, settings: WorkerSettings) -> None:
        os.environ.clear()
        os.environ.update(settings.env)
        sys.path[:] = settings.path
        self._cwd = settings.cwd
        self._change_directory()
        self._variables = _variables()

    def restore(self) -> None:
        """Be again where the worker started."""
        if _variables() != self._variables:
            self._restore_variables()
        try:
            if os.getcwd() == self._cwd:  # noqa: PTH109 - compared for each task
                return
        except OSError:  # the directory is gone
            pass
        self._change_directory()

    def _restore_variables(self) -> None:
        for name in [name for name in _variables() if name not in self._variables]:
            del os.environb[name]
        for name, value in self._variables.items():
            os.environb[name] = value

    def _change_directory(self) -> None:
        with contextlib.suppress(OSError):
            os.chdir(self._cwd)


def _variables() -> dict[bytes, bytes]:
    # `os.environ` decodes each variable that is read; what lies below it compares in a microsecond.
    data: Any = os.environ._data  # type: ignore[attr-defined]
    return dict(data)
