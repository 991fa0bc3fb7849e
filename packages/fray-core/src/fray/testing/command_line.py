"""The `fray` command, for the tests of a package that adds a verb or a backend to it."""

import subprocess
import sys

from fray._cli.main import fray, main

__all__ = ["COMMAND", "fray", "main", "modules_of"]

COMMAND = (sys.executable, "-m", "fray")
"""What starts it as a process of its own."""


_AND_MODULES = """
import sys
from fray._cli.main import main

code = main()
print(*sys.modules, file=sys.stderr)
sys.exit(code)
"""


def modules_of(*argv: str) -> set[str]:
    """Run one command line as a process; return the names of all modules that are imported at its end.

    Raises:
        subprocess.CalledProcessError: It exited with another code than 0.
    """
    command = [sys.executable, "-c", _AND_MODULES, *argv]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return set(done.stderr.splitlines()[-1].split())
