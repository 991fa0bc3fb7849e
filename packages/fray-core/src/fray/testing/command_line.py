"""The `fray` command, for the tests of a package that adds a verb or a backend to it."""

import sys

from fray._cli.main import fray, main

__all__ = ["COMMAND", "fray", "main"]

COMMAND = (sys.executable, "-m", "fray")
"""What starts it as a process of its own."""
