"""Run a module in a bare interpreter: no site packages, and `fray` without what programs use of it.

Importing `fray` as a program does takes longer than all that a supervisor, or a step of a job, does itself.
"""

from __future__ import annotations

import os
import sys

_PACKAGE = (
    "core, paths = sys.argv[2:4]; sys.path += paths.split(':'); "
    "fray = sys.modules['fray'] = type(sys)('fray'); fray.__path__ = [core]; "
)
_MODULE = (
    f"import sys; {_PACKAGE}module = sys.argv[1]; del sys.argv[1:4]; "
    "from importlib import import_module; import_module(module).main()"
)


def bare_command(module: str, paths: list[str]) -> list[str]:
    """Return a command that calls `main` of a module; what follows it is in `sys.argv`, from 1 on.

    Of `fray`, only `fray.backend` and what lies below `fray._...` can be imported there.

    Args:
        paths: Where it may import from.
    """
    return bare_interpreter(_MODULE, module, paths)


def bare_interpreter(code: str, word: str, paths: list[str]) -> list[str]:
    """Return the command of an interpreter that runs `code`, with a word by which it is recognised."""
    here = os.path.abspath(__file__)
    core = os.path.dirname(os.path.dirname(os.path.dirname(here)))
    return [sys.executable, "-I", "-S", "-c", code, word, core, os.pathsep.join(paths)]


def with_bare_package(code: str) -> str:
    """Return code for `bare_interpreter` that can import `fray._...`."""
    return f"{_PACKAGE}{code}"
