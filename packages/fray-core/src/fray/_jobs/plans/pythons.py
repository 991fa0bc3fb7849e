"""Which Python a job runs: the one of `python=`, else what the project of its workspace requires."""

import functools
import re
import shutil
import sys
import tomllib
from pathlib import Path

from fray._jobs.plans.refusals import refuse_other_python
from fray._values.environment import EnvironmentConfig
from fray._values.errors import UnsupportedError
from fray._values.jobs import JobRequest

_CLAUSE = re.compile(r"\s*(===|==|!=|<=|>=|~=|<|>)\s*(\d{1,9}(?:\.\d{1,9})*)(\.\*)?\s*")


def python_for(request: JobRequest, environment: EnvironmentConfig, workspace: Path) -> str:
    """Return the interpreter of an environment, or what uv finds one by.

    Raises:
        ValueError: The job is a callable, which does not travel to another minor version of Python.
    """
    here, wanted = this_python(), environment.python
    if wanted is not None:
        refuse_other_python(request, wanted)
        return sys.executable if f"{here}.".startswith(f"{wanted}.") else wanted
    required = required_python(workspace)
    if required is None or fits(here, required):
        return sys.executable
    if getattr(request.entrypoint, "callable", None) is not None:
        raise ValueError(
            f"job {request.name!r} is a callable, pickled by Python {here}, and its project requires Python "
            f"{required}: launch it from such a Python, or as a module or command"
        )
    return required


def find_uv() -> str:
    """Return the program that builds environments.

    Raises:
        UnsupportedError: There is none.
    """
    try:
        from uv import find_uv_bin

        return str(find_uv_bin())
    except (ImportError, FileNotFoundError):  # it may also be a folder of the workspace, or have no program
        found = shutil.which("uv")
        if found is None:
            raise UnsupportedError(
                "an environment of the job's own needs uv: pip install uv, or have one on the PATH"
            ) from None
        return found


def required_python(workspace: Path) -> str | None:
    """Return the `requires-python` of the project in a folder; None where it has none."""
    path = workspace / "pyproject.toml"
    try:
        return _required_by(path, path.stat().st_mtime_ns)
    except (OSError, ValueError, RecursionError):  # uv will report what is wrong with it
        return None


@functools.lru_cache(maxsize=16)  # the members of a sweep have one project
def _required_by(path: Path, _changed_at: int) -> str | None:
    project = tomllib.loads(path.read_text()).get("project")
    required = project.get("requires-python") if isinstance(project, dict) else None
    return required if isinstance(required, str) and required.strip() else None


def this_python() -> str:
    """Return the version of this interpreter: `3.11.7`."""
    return ".".join(map(str, sys.version_info[:3]))


def fits(version: str, required: str) -> bool:
    """Whether a version is one that `requires-python` allows; what cannot be read allows every version."""
    clauses = [_CLAUSE.fullmatch(clause) for clause in required.split(",") if clause.strip()]
    if not all(clauses):
        return True
    return all(_holds(_numbers(version), *clause.groups()) for clause in clauses if clause)


def _holds(version: tuple[int, ...], operator: str, text: str, wildcard: str | None) -> bool:
    wanted = _numbers(text)
    same = version[: len(wanted)] == wanted if wildcard else _padded(version) == _padded(wanted)
    match operator:
        case "==" | "===":
            return same
        case "!=":
            return not same
        case "~=":
            return _padded(version) >= _padded(wanted) and version[: len(wanted) - 1] == wanted[:-1]
        case ">=":
            return _padded(version) >= _padded(wanted)
        case "<=":
            return _padded(version) <= _padded(wanted)
        case ">":
            return _padded(version) > _padded(wanted)
        case _:
            return _padded(version) < _padded(wanted)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def _padded(version: tuple[int, ...]) -> tuple[int, ...]:
    return (*version, 0, 0, 0)[:3]
