"""A request of Fray as one of Iris: `LaunchJobRequest` in its JSON form, with the files of the workspace."""

import inspect
import io
import json
import os
import sys
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from fray import UnsupportedError
from fray.backend import FAMILY, Spec, invalid, path_in_copy, runner
from fray.cluster import EnvironmentConfig, JobPlan, JobRequest, TpuConfig, redacted
from fray_iris import _in_task
from fray_iris._bundle import Bundle, zipped
from fray_iris._in_task.words import HIDDEN_VARIABLE, PLAN
from fray_iris._resources import constraints_to_iris, coscheduling_to_iris, resources_to_iris

ABOUT = "fray-request"
"""The word before what is noted of a request in Iris's `submit_argv`, which it keeps and does not read."""
_REPLICA, _RUNNER, _PAYLOAD = "_fray_replica.pyz", "_fray_runner.py", "_fray_payload.pkl"
_UNBUFFERED = "PYTHONUNBUFFERED"
_START = ["bash", "-c", f"exec $IRIS_PYTHON -u $IRIS_WORKDIR/{_REPLICA}"]
_OWN = frozenset({"FRAY_JOB_ID", "FRAY_REPLICA_COUNT", FAMILY})  # of a plan's variables
_OF_CONTEXTS = frozenset({"controller", "user", "shared_files"})
# Options of Iris that Fray's interface has no word for, by their names in `LaunchJobRequest`.
NATIVE: dict[str, Any] = {
    "priority_band": str,
    "scheduling_timeout": float,
    "preemption_policy": str,
    "reservation": list,
    "constraints": list,
    "group_by": str,
    "task_image": str,
}
_WORDS = {
    "priority_band": ("production", "interactive", "batch"),
    "preemption_policy": ("terminate_children", "preserve_children"),
}


_READ_BY_IRIS = ("IRIS_", "UV_", "PIP_")  # names of variables that configure how an environment is made
_PIECE = 32 << 10  # of a variable; the system takes 128 KiB, and Iris puts all into one once more
_NOTHING: Mapping[str, str] = {}
_MAIN = """import os, sys
from fray_iris._in_task.replica import main
main(os.path.dirname(os.path.abspath(sys.argv[0])))
"""


class IrisLaunch(NamedTuple):
    """What is sent to Iris."""

    request: dict[str, Any]
    files: dict[str, bytes]
    bundle: bytes | None


def native_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Check `backend={"iris": {...}}`; return the fields of Iris's request that it sets.

    Raises:
        ValueError: An option is none of Iris's that may be set so, or its value is wrong.
    """
    found: dict[str, Any] = {}
    for name, value in given.items():
        kind = NATIVE.get(name)
        if kind is None:
            raise invalid("each key of backend['iris']", f"one of {', '.join(sorted(NATIVE))}", name)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (kind is float and value <= 0):
            what = {float: "seconds", list: "a list of Iris's messages as dicts", str: "a text"}[kind]
            raise invalid(f"backend['iris'][{name!r}]", what, value)
        if name in _WORDS and str(value).lower() not in _WORDS[name]:
            raise invalid(f"backend['iris'][{name!r}]", f"one of {', '.join(_WORDS[name])}", value)
        found[name] = value
    return found


def check_request(request: JobRequest) -> None:
    """Refuse what Iris cannot do.

    Raises:
        UnsupportedError: The message says what was asked, and what can be.
    """
    environment = request.environment or EnvironmentConfig()
    if environment.dependency_groups:
        groups = ", ".join(environment.dependency_groups)
        raise UnsupportedError(
            f"IrisCluster installs no dependency groups for job {request.name!r} ({groups}): Iris syncs the "
            f"workspace "
            "without its groups; make them extras"
        )
    native_options(request.backend.get("iris", {}))
    hosts = _hosts(request)
    coscheduling_to_iris(request.resources, gang=request.is_gang, hosts=hosts)


def launch_of(
    request: JobRequest,
    plan: JobPlan,
    name: str,
    spec: Spec,
    variables: Mapping[str, str] = _NOTHING,
    *,
    shared_files: bool,
) -> IrisLaunch:
    """Return what is sent to Iris for a request.

    Args:
        plan: Of the request, as every cluster makes it.
        name: What Iris is to call the job.
        spec: What opens the same cluster.
        variables: What its processes have besides.
        shared_files: Whether workers see the launcher's files, so that jobs run in the workspace itself.
    """
    environment = request.environment or EnvironmentConfig()
    native = native_options(request.backend.get("iris", {}))
    copied = request.snapshot or not shared_files
    found: dict[str, Any] = {
        "name": name,
        "entrypoint": {"run_command": {"argv": _START}},
        "resources": resources_to_iris(request.resources),
        "environment": {
            "pip_packages": list(environment.pip_packages),
            "extras": list(environment.extras),
            "env_vars": variables_of(environment.env_vars),
            "python_version": environment.python or f"{sys.version_info.major}.{sys.version_info.minor}",
        },
        "constraints": [*constraints_to_iris(request.resources), *native.get("constraints", ())],
        "replicas": plan.replicas,
        "max_retries_failure": request.max_retries_failure,
        "max_retries_preemption": request.max_retries_preemption,
        "ports": list(request.ports),
        "existing_job_policy": "EXISTING_JOB_POLICY_ERROR",
        "task_image": environment.docker_image or native.get("task_image", ""),
        "submit_argv": [ABOUT, json.dumps(_about(plan))],
    }
    group = {"group_by": native["group_by"]} if "group_by" in native else None
    coscheduling = coscheduling_to_iris(request.resources, gang=request.is_gang, hosts=plan.replicas)
    if coscheduling:
        found["coscheduling"] = group or coscheduling
    found |= _native_fields(native)
    files = {_REPLICA: replica_program(), _RUNNER: Path(runner.__file__).read_bytes()}
    if plan.payload is not None:
        files[_PAYLOAD] = plan.payload
    bundle = zipped(Path(plan.workspace)) if copied else None
    files[PLAN] = json.dumps(_plan_file(request, plan, spec, variables, bundle)).encode()
    return IrisLaunch(found, files, bundle and bundle.archive)


def variables_of(given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a request as Iris gets them: under names whose values it shows nobody.

    Those that it reads itself, when it makes an environment, keep their names.
    """
    found = {name: value for name, value in given.items() if name.startswith(_READ_BY_IRIS)}
    hidden = json.dumps({name: value for name, value in given.items() if name not in found})
    pieces = range(0, len(hidden), _PIECE) if len(found) < len(given) else ()
    return found | {f"{HIDDEN_VARIABLE}{at // _PIECE}": hidden[at : at + _PIECE] for at in pieces}


def about_of(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was noted of a job's request at its launch; nothing where Fray did not launch it."""
    argv = list(request.get("submit_argv", ()))
    if len(argv) != 2 or argv[0] != ABOUT:
        return {}
    try:
        about = json.loads(argv[1])
    except ValueError:
        return {}
    return about if isinstance(about, dict) else {}


@cache
def replica_program() -> bytes:
    """Return the program that each task runs: `_in_task`, as an archive that Python starts by its path."""
    folder = Path(_in_task.__file__).parent
    # Of the package around it there is nothing but the name: it needs Fray.
    files = {"__main__.py": _MAIN, "fray_iris/__init__.py": ""}
    files |= {
        f"fray_iris/{folder.name}/{path.name}": path.read_text() for path in sorted(folder.glob("*.py"))
    }
    files[f"fray_iris/{folder.name}/redaction.py"] = inspect.getsource(sys.modules[redacted.__module__])
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name), text)  # of no date: the same bytes for each job
    return packed.getvalue()


def _hosts(request: JobRequest) -> int:
    wanted, device = request.resources.replicas, request.resources.device
    count = wanted if isinstance(wanted, int) else wanted[0]
    return count * device.hosts if isinstance(device, TpuConfig) else count


def _about(plan: JobPlan) -> dict[str, Any]:
    return {
        **plan.shown,
        "submitted_at": plan.submitted_at,
        "family": plan.environ.get(FAMILY),
        "launch": uuid4().hex,
    }


def _plan_file(
    request: JobRequest, plan: JobPlan, spec: Spec, variables: Mapping[str, str], bundle: Bundle | None
) -> dict[str, Any]:
    environment = request.environment or EnvironmentConfig()
    workspace = Path(plan.workspace)
    own = {name: value for name, value in plan.environ.items() if name in _OWN}
    # Folders of the workspace are where its copy is; no other is there, where files are not shared.
    inside = [
        os.path.relpath(path, workspace) for path in map(os.path.abspath, sys.path) if _is_in(path, workspace)
    ]
    return {
        "files": [_RUNNER, _PAYLOAD] if plan.payload is not None else [],
        "command": [] if plan.payload is not None else list(_words(request)),
        "environ": {
            **({} if _UNBUFFERED in environment.env_vars else {_UNBUFFERED: "1"}),
            "FRAY_JOB_CONTEXT": str(_context(spec)),
            **own,
            **variables,
            "FRAY_CLUSTER_SPEC": str(spec),
        },
        "secrets": sorted(environment.env_vars),
        "workspace": os.fspath(workspace) if bundle is None else None,
        "paths": [] if bundle is None else inside,
        "executables": [] if bundle is None else bundle.executables,
        "replicas": plan.replicas,
        "gang": list(plan.gang) if plan.gang is not None else None,
        "max_retries_failure": request.max_retries_failure,
        "timeout": request.timeout,
        "ports": list(request.ports),
        "packages": list(environment.pip_packages),
        "python": environment.python,
        "extras": list(environment.extras),
        "image": environment.docker_image or request.backend.get("iris", {}).get("task_image"),
    }


def _context(spec: Spec) -> Spec:
    """What a job has for a context where nothing else says it: its named actors are Iris's too."""
    return Spec(spec.name, {name: text for name, text in spec.options.items() if name in _OF_CONTEXTS})


def _words(request: JobRequest) -> tuple[str, ...]:
    entrypoint: Any = request.entrypoint
    words: tuple[str, ...] = entrypoint.command
    return words


def _is_in(path: str, workspace: Path) -> bool:
    copy = Path("/copy")
    return path_in_copy(path, workspace, copy) != path


def _native_fields(native: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "priority_band" in native:
        found["priority_band"] = f"PRIORITY_BAND_{native['priority_band'].upper()}"
    if "preemption_policy" in native:
        found["preemption_policy"] = f"JOB_PREEMPTION_POLICY_{native['preemption_policy'].upper()}"
    if "scheduling_timeout" in native:
        found["scheduling_timeout"] = {"milliseconds": round(native["scheduling_timeout"] * 1000)}
    if "reservation" in native:
        found["reservation"] = {"entries": list(native["reservation"])}
    return found
