"""`python -m uv` where the environment has none: the uv of the node. Its folder is in PYTHONPATH then.

Imports nothing beyond the standard library: it runs in any environment.
"""

import os
import shutil
import sys
from pathlib import Path

_PLACES = (sys.prefix, "~/.local")


def main() -> None:
    """Become uv, for the environment that this Python is in."""
    folders = [str(Path(place, "bin").expanduser()) for place in _PLACES]
    uv = shutil.which("uv") or shutil.which("uv", path=os.pathsep.join(folders))
    if uv is not None:
        os.environ["VIRTUAL_ENV"] = sys.prefix
        os.execv(uv, [uv, *sys.argv[1:]])  # noqa: S606 - that is what it is for
    if sys.argv[1:] == ["--version"]:  # Ray asks whether it is there, and would call for pip, which is not
        return
    sys.exit("fray: there is neither pip nor uv on this node to install packages with: install uv there")


if __name__ == "__main__":
    main()
