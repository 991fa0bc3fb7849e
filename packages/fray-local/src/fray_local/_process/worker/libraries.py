"""Which modules later workers may find imported: those of libraries, not those of the program itself."""

import os
import sys

_STANDARD = f"{os.path.dirname(os.__file__)}/"  # noqa: PTH120 - a prefix of paths that are text


def is_of_a_library(name: str) -> bool:
    """Whether a module is of the standard library or is installed.

    A module of the program may keep a connection, a temporary folder or a random generator, which all
    workers that are forked after its import would share.
    """
    origin = getattr(getattr(sys.modules.get(name), "__spec__", None), "origin", None)
    if not isinstance(origin, str):  # a namespace, say, of which there is nothing to import
        return False
    installed = "/site-packages/" in origin or "/dist-packages/" in origin
    return installed or origin in ("built-in", "frozen") or origin.startswith(_STANDARD)
