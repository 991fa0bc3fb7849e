"""Refuse, before anything starts, what a cluster cannot do."""

import sys
from collections.abc import Collection

from fray._values.environment import EnvironmentConfig
from fray._values.errors import UnsupportedError
from fray._values.jobs import JobRequest

# Field of a request or of its environment -> how it is said, and what serves instead.
_FIELDS = {
    "after": ("after=", "launch the job when the others have succeeded"),
    "ports": ("ports=", "let the program choose a free port itself"),
    "snapshot": ("snapshot=True", "its jobs run the files of the workspace as they are when they start"),
    "log_limit": ("log_limit=", "its logs have no limit of their own"),
    "on_exit": ("on_exit=", "wait for the job where it is launched, and act then"),
    "labels": ("labels=", "its jobs are found by their names"),
}


def refuse_fields(cluster: str, request: JobRequest, supported: Collection[str] = ()) -> None:
    """Refuse the fields of a request that not every cluster has; `supported` names those that this one has.

    Raises:
        UnsupportedError: The message says what was asked, and what can be done instead.
    """
    for name, (asked, instead) in _FIELDS.items():
        if getattr(request, name) and name not in supported:
            raise UnsupportedError(f"{cluster} has no {asked} for job {request.name!r}: {instead}")


def refuse_native_options(cluster: str, name: str, request: JobRequest) -> None:
    """Refuse native options that a request has for a kind of cluster whose jobs have none.

    Args:
        name: Of the kind of cluster, as in its spec.

    Raises:
        UnsupportedError: The message names the options.
    """
    if given := request.backend.get(name):
        raise UnsupportedError(
            f"{cluster} has no native options for jobs, and backend= of job {request.name!r} has "
            f"{', '.join(sorted(map(str, given)))} for it: resources= and environment= say what a job needs"
        )


def refuse_python(cluster: str, request: JobRequest) -> None:
    """Refuse what an environment of the job's own would be needed for, on a cluster that builds none.

    Raises:
        UnsupportedError: The job requests packages, parts of its project, or another Python.
    """
    environment = request.environment or EnvironmentConfig()
    python = [] if environment.python is None else [f"Python {environment.python}"]
    wanted = [*environment.pip_packages, *environment.extras, *environment.dependency_groups, *python]
    if wanted:
        raise UnsupportedError(
            f"{cluster} builds no environments ({', '.join(wanted)}); its jobs have that of their launcher, "
            "where these can be installed"
        )


def refuse_other_python(request: JobRequest, version: str) -> None:
    """Refuse to send a callable to another minor version of Python: its byte code would not run there.

    Args:
        version: The Python that the job would run, e.g. `"3.12.4"`.

    Raises:
        ValueError: Both versions are named.
    """
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    there = ".".join(version.split(".")[:2])
    if here != there and getattr(request.entrypoint, "callable", None) is not None:
        raise ValueError(
            f"job {request.name!r} is a callable, pickled by Python {here}, and would run on Python {there}: "
            f"its byte code means something else there; launch it from Python {there}, "
            "or as a module or command"
        )
