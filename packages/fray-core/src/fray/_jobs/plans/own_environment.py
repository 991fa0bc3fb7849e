"""Plan a job that runs in an environment of its own, which is built when the job starts, where it starts."""

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from fray._jobs.plans.environment_folder import ENVIRONMENT_LINK
from fray._jobs.plans.environments import BuildEnvironment
from fray._jobs.plans.plan import JobPlan
from fray._jobs.plans.planning import (
    import_paths,
    path_in_copy,
    path_inside,
    payload_of,
    plan_of,
    workspace_of,
)
from fray._jobs.plans.pythons import find_uv, fits, python_for, required_python, this_python
from fray._values.entrypoint import Entrypoint
from fray._values.environment import EnvironmentConfig
from fray._values.job_states import JobId
from fray._values.jobs import JobRequest

_PATH_VARIABLES = ("PYTHONPATH", "PYTHONHOME")  # of the launcher's interpreter, not of an isolated one


def plan_with_environment(
    request: JobRequest,
    job_id: JobId,
    spec: str,
    variables: Mapping[str, str],
    *,
    record: Path,
    folder: Path,
    units: int | None = None,
) -> JobPlan:
    """Plan a job as `plan_of` does, with an environment of its own.

    Args:
        folder: Where environments are kept; jobs with the same needs share one.

    Raises:
        UnsupportedError: uv, which builds environments, is not installed.
        ValueError: The request is wrong, or a callable would run on another Python.
    """
    environment = request.environment or EnvironmentConfig()
    workspace = workspace_of(environment)
    python = own_python(record)
    plan = plan_of(
        request, job_id, spec, variables, record=os.fspath(record), python=os.fspath(python), units=units
    )
    payload = plan.payload
    if payload is not None:
        payload = payload_of(Entrypoint.of(request.entrypoint), _paths(workspace, Path(plan.workspace)))
    environ = {
        name: value
        for name, value in plan.environ.items()
        if name not in _PATH_VARIABLES or name in environment.env_vars
    }
    if "VIRTUAL_ENV" not in environment.env_vars:
        environ["VIRTUAL_ENV"] = os.fspath(python.parent.parent)
    plan = plan._replace(payload=payload, environ=environ)
    wanted = python_for(request, environment, workspace)
    return plan._replace(preparation=_build(environment, workspace, wanted, plan, folder))


def own_python(record: Path) -> Path:
    """Return the interpreter of a job that has an environment of its own."""
    return record / ENVIRONMENT_LINK / "bin" / "python"


def warn_of_another_python(workspace: Path, instead: str) -> tuple[str, ...]:
    """Warn where a project requires another Python than its launcher's, which the job runs.

    Args:
        instead: How it gets one that fits.
    """
    required = required_python(workspace)
    if required is None or fits(this_python(), required):
        return ()
    return (
        f"the project requires Python {required}, and the job runs its launcher's, {this_python()}; "
        f"with {instead} it gets one that fits",
    )


def _paths(workspace: Path, runs_in: Path) -> list[str]:
    """The folders that a callable's modules may come from in an isolated environment: the workspace's."""
    return [
        path_in_copy(path, workspace, runs_in)
        for path in import_paths()
        if path_inside(path, workspace) is not None and "site-packages" not in path
    ]


def _build(
    environment: EnvironmentConfig, workspace: Path, python: str, plan: JobPlan, folder: Path
) -> BuildEnvironment:
    """What the environment is made of, and with what."""
    cloudpickle = find_spec("cloudpickle")
    assert cloudpickle is not None
    assert cloudpickle.origin is not None
    return BuildEnvironment(
        uv=find_uv(),
        python=python,
        cloudpickle=os.fspath(Path(cloudpickle.origin).parent),
        workspace=plan.workspace,
        folder=os.fspath(folder),
        environ=plan.environ,
        pip_packages=tuple(environment.pip_packages),
        extras=tuple(sorted(environment.extras)),
        groups=tuple(sorted(environment.dependency_groups)),
        project=(workspace / "pyproject.toml").is_file(),
        lock=(workspace / "uv.lock").is_file(),
    )
