"""What a replica finds: its variables, and whether what was requested is installed."""

import contextlib
import json
import os
import re
import sys
import urllib.parse

from fray_iris._in_task.controller import Controller, CouldNotStart
from fray_iris._in_task.peers import free_port, host_address
from fray_iris._in_task.words import HIDDEN_VARIABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def environ_of(
    plan: "dict[str, Any]", folder: str, notice: str, index: int, controller: Controller
) -> "dict[str, str]":
    """Return the variables of a replica, but for those of a gang.

    Args:
        plan: What to run.
        folder: Where Iris has put what came along.
        notice: The file that says that its host is to go.
        index: Which replica it is.
        controller: That of its attempt; it gets the ports.
    """
    bin_ = os.path.dirname(sys.executable)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(HIDDEN_VARIABLE)}
    environ = {**inherited, **hidden_variables(), **plan["environ"]}
    environ["PATH"] = os.pathsep.join([bin_, environ.get("PATH") or os.defpath])
    environ |= {
        "FRAY_REPLICA_ID": str(index),
        "FRAY_ATTEMPT": str(controller.attempt + 1),
        "FRAY_HOST_ADDRESS": host_address(),
        "FRAY_PREEMPTION_NOTICE": notice,
    }
    for name in ("FRAY_CLUSTER_SPEC", "FRAY_JOB_CONTEXT", "FRAY_CONTEXT_SPEC"):
        if name in plan["environ"] and controller.address:  # as it is reached from here
            environ[name] = with_controller(plan["environ"][name], controller.address)
    if plan["paths"] and not plan["workspace"]:
        paths = [os.path.join(folder, path) for path in plan["paths"]]
        environ["PYTHONPATH"] = os.pathsep.join([*paths, environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    for name in plan["ports"]:
        given = int(os.environ.get(f"IRIS_PORT_{name.upper()}") or 0)
        controller.ports[name] = given or free_port()
        environ["FRAY_PORT_" + name.upper().replace("-", "_")] = str(controller.ports[name])
    if controller.ports:
        controller.tell()
    return environ


def hidden_variables() -> "dict[str, str]":
    """Return the variables of the request, which came in pieces under names that Iris takes for secret."""
    pieces: list[str] = []
    while (piece := os.environ.get(f"{HIDDEN_VARIABLE}{len(pieces)}")) is not None:
        pieces.append(piece)
    found: dict[str, str] = json.loads("".join(pieces) or "{}")
    return found


def check_environment(plan: "dict[str, Any]") -> None:
    """Refuse to run without what was requested: some workers of Iris install nothing.

    Raises:
        CouldNotStart: A package, or the version of Python, is not there.
    """
    from importlib.metadata import PackageNotFoundError, distribution

    wanted = plan["python"]
    if wanted and ".".join(map(str, sys.version_info[:3])).split(".")[: wanted.count(".") + 1] != (
        wanted.split(".")
    ):
        raise CouldNotStart(f"Python {wanted} was asked for, and the worker has {sys.version.split()[0]}")
    for requirement in plan["packages"]:
        name = distribution_name(requirement)
        try:
            if name is not None:
                distribution(name)
        except (PackageNotFoundError, ValueError):
            raise CouldNotStart(
                f"{requirement!r} was asked for and is not installed in the task: this worker of Iris "
                "installs no packages, as those of a local Iris do not"
            ) from None


def make_executable(plan: "dict[str, Any]", folder: str) -> None:
    """Let files be executed that could be where they came from, by all who may read them.

    Iris unpacks an archive without modes.
    """
    for name in plan["executables"]:
        path = os.path.join(folder, name)
        with contextlib.suppress(OSError):  # the environment's setup removed it, or its folder is read-only
            mode = os.stat(path).st_mode
            os.chmod(path, mode | (mode & 0o444) >> 2)


def with_controller(spec: str, address: str) -> str:
    """Return a spec of Iris with the address of its controller as it is here; any other as it is."""
    name, mark, query = spec.partition("?")
    if name != "iris":
        return spec
    pairs = [pair for pair in query.split("&") if mark and not pair.startswith("controller=")]
    return "iris?" + "&".join(
        [f"controller={urllib.parse.quote(address, safe=':/,@')}", *filter(None, pairs)]
    )


def distribution_name(requirement: str) -> "str | None":
    """Return the name that a requirement begins with; None where it names none, or may not hold here.

    What a bare URL or a path installs is called as its project says. A marker is read by installers alone.
    """
    requirement, _, marker = requirement.strip().partition(";")
    found = re.match(
        r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?\s*(?:\[[^]]*\]\s*)?(?=$|[(<>=!~@])", requirement
    )
    name = re.split(r"[\s\[]", found.group())[0] if found and not marker.strip() else None
    return None if name is None or name.endswith((".whl", ".gz", ".zip")) else name
