"""A callable on its way to the replicas, as `fray.backend.runner` reads it."""

import os
import sys
from pathlib import Path

from fray.backend import dumps, dumps_call
from fray.cluster import Entrypoint


def payload_of(entrypoint: Entrypoint, shipped: Path | None) -> bytes | None:
    """Return the call, behind the folders that its modules may be imported from; None for a command.

    Args:
        shipped: The workspace that is uploaded. Folders of this machine then mean nothing where the call
            is made, but those of the workspace are below the working directory.
    """
    if entrypoint.callable is None:
        return None
    paths = [str(Path(path).absolute()) for path in sys.path]
    if shipped is not None:
        inside = [Path(path).resolve() for path in paths if Path(path).resolve().is_relative_to(shipped)]
        paths = [os.fspath(path.relative_to(shipped)) for path in inside if "site-packages" not in path.parts]
    call = dumps_call(entrypoint.callable, tuple(entrypoint.args), dict(entrypoint.function_args))
    return dumps(paths, "sys.path") + call
