"""The options of `fray run`: a flag for each field of a `JobRequest`, and the request that they make."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fray._cli.completion import complete_ids
from fray._cli.shared import one_line
from fray._cli.values import DURATION, literal, pairs

if TYPE_CHECKING:
    from fray._values.entrypoint import Entrypoint
    from fray._values.environment import EnvironmentConfig
    from fray._values.jobs import JobRequest
    from fray_resources import DeviceConfig, ResourceConfig

F = TypeVar("F", bound=Callable[..., Any])
_option = click.option
_OPTIONS = [
    _option("--name", help="The job's name, with which its id begins; by default made from the command."),
    _option(
        "-n", "--replicas", default="1", show_default=True, metavar="N",
        help="How many replicas; with --tpu, how many slices. "
        "4,2: either (local: the first for which there is room; Ray: the largest).",
    ),
    _option("--cpu", type=float, default=1, show_default=True, help="CPUs of each replica."),
    _option("--ram", default="1g", show_default=True, help="Memory of each replica, e.g. 512m or 8g."),
    _option("--disk", default="16g", show_default=True, help="Disk space of each replica."),
    _option(
        "--gpu", metavar="[TYPE:]N", help="GPUs of each replica: 1 of any type, H100, H100:8."
    ),
    _option(
        "--tpu", metavar="TYPE[:N]",
        help="A TPU slice, e.g. v5litepod-16; v5litepod-8:4 is one whose hosts have 4 chips each.",
    ),
    _option("--topology", metavar="XxY", help="The topology of the TPU slice, if its type has several."),
    _option(
        "--preemptible/--no-preemptible", default=True, show_default=True,
        help="Whether the job may run on machines that can be preempted.",
    ),
    _option("--region", "regions", multiple=True, help="Where the job may run; the first is preferred."),
    _option(
        "--gang/--no-gang", default=None,
        help="Whether replicas start, end and are retried together; by default those with devices are.",
    ),
    _option(
        "-e", "--env", "variables", multiple=True, metavar="KEY[=VALUE]",
        help="Set a variable; without =VALUE, to its value in this environment.",
    ),
    _option(
        "--env-file", type=click.Path(exists=True, dir_okay=False), help="Set variables from KEY=VALUE lines."
    ),
    _option("--context", metavar="SPEC", help="The context that the job finds, e.g. process or ray."),
    _option("--pip", "packages", multiple=True, metavar="REQUIREMENT", help="Install a package for the job."),
    _option("--extra", "extras", multiple=True, help="Install an extra of the project in the workspace."),
    _option("--group", "groups", multiple=True, help="Install a dependency group of that project."),
    _option("--python", metavar="VERSION", help="The Python of the job, e.g. 3.12."),
    _option("--image", metavar="REFERENCE", help="The container image, on clusters that run containers."),
    _option("--snapshot", is_flag=True, help="Run a copy of the workspace as it is now."),
    _option(
        "--workdir", type=click.Path(exists=True, file_okay=False), help="The workspace; here by default."
    ),
    _option("--timeout", type=DURATION, metavar="TIME", help="How long an attempt may run: 90, 30m, 2h."),
    _option(
        "--retries", type=int, default=0, show_default=True, help="How often a failed replica starts again."
    ),
    _option(
        "--retries-preemption", type=int, default=100, show_default=True,
        help="How often it is started again after its machine was taken away.",
    ),
    _option(
        "--after", multiple=True, metavar="ID", shell_complete=complete_ids,
        help="Wait until this job has succeeded; fail if it does not.",
    ),
    _option(
        "--port", "ports", multiple=True, metavar="NAME",
        help="Give each replica a free port, in the variable FRAY_PORT_ followed by NAME.",
    ),
    _option("--log-limit", metavar="SIZE", help="How much of a replica's output is kept, e.g. 64m."),
    _option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="A text to find the job by."),
    _option(
        "--on-exit", metavar="CMD",
        help="A shell command that runs once when the job has ended; FRAY_JOB_STATUS says how.",
    ),
    _option(
        "--backend", "native", multiple=True, metavar="CLUSTER.OPTION=VALUE",
        help="A native option of one kind of cluster, e.g. slurm.partition=gpu.",
    ),
]  # fmt: skip
_RESOURCES = ("replicas", "cpu", "ram", "disk", "gpu", "tpu", "topology", "preemptible", "regions")
_ENVIRONMENT = (
    "workdir", "packages", "variables", "env_file", "context", "extras", "groups", "python", "image",
)  # fmt: skip


def request_options(command: F) -> F:
    """Add the options that make a request."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def request_of(entrypoint: "Entrypoint", name: str, given: dict[str, Any]) -> "JobRequest":
    """Make a request of what the options gave; of `--env-file`, the variables.

    Raises:
        UsageError: An option is wrong; the message names it and its value.
    """
    from fray._values.jobs import JobRequest

    with one_line():
        return JobRequest(
            name=given["name"] or name,
            entrypoint=entrypoint,
            resources=_resources(**{key: given[key] for key in _RESOURCES}),
            environment=_environment(**{key: given[key] for key in _ENVIRONMENT}),
            max_retries_failure=given["retries"],
            max_retries_preemption=given["retries_preemption"],
            timeout=given["timeout"],
            gang=given["gang"],
            after=given["after"],
            labels=pairs("--label", given["labels"]),
            ports=given["ports"],
            snapshot=given["snapshot"],
            log_limit=given["log_limit"],
            backend=_native(given["native"]),
            on_exit=given["on_exit"],
        )


def _resources(
    *,
    replicas: str,
    gpu: str | None,
    tpu: str | None,
    topology: str | None,
    regions: tuple[str, ...],
    **amounts: Any,
) -> "ResourceConfig":
    from fray_resources import ResourceConfig

    numbers = [_replicas(text) for text in replicas.split(",")]
    return ResourceConfig(
        device=_device(gpu, tpu, topology),
        replicas=numbers if len(numbers) > 1 else numbers[0],
        regions=regions or None,
        **amounts,
    )


def _replicas(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise click.UsageError(f"--replicas takes a number, or several as 4,2, got {text!r}") from None


def _device(gpu: str | None, tpu: str | None, topology: str | None) -> "DeviceConfig":
    from fray_resources import CpuConfig, GpuConfig, TpuConfig

    if gpu and tpu:
        raise click.UsageError(f"a replica has --gpu or --tpu, got both ({gpu}, {tpu})")
    if topology and not tpu:
        raise click.UsageError(f"--topology {topology} is of a TPU slice: give --tpu TYPE too")
    if tpu:
        kind, chips = _counted(tpu, "--tpu takes TYPE or TYPE:N, e.g. v5litepod-16 or v5litepod-8:4")
        return TpuConfig(kind, chips, topology=topology)
    if gpu is None:
        return CpuConfig()
    if gpu.isdigit():
        return GpuConfig(count=int(gpu))
    kind, count = _counted(gpu, "--gpu takes N, TYPE or TYPE:N, e.g. 1, H100 or H100:8")
    return GpuConfig(kind, 1 if count is None else count)


def _counted(text: str, takes: str) -> tuple[str, int | None]:
    """Return a type, and how many of it there are where that is said."""
    kind, _, count = text.partition(":")
    if count and not count.isdigit():
        raise click.UsageError(f"{takes}, got {text!r}")
    return kind, int(count) if count else None


def _environment(
    *,
    workdir: str | None,
    packages: tuple[str, ...],
    variables: tuple[str, ...],
    env_file: Mapping[str, str],
    context: str | None,
    extras: tuple[str, ...],
    groups: tuple[str, ...],
    python: str | None,
    image: str | None,
) -> "EnvironmentConfig":
    from fray._values.environment import EnvironmentConfig

    env_vars = dict(env_file)
    for variable in variables:
        key, given, value = variable.partition("=")
        if not given and key not in os.environ:
            raise click.UsageError(
                f"-e {key} takes its value from here, where it is not set; give -e {key}=VALUE"
            )
        env_vars[key] = value if given else os.environ[key]
    if context is not None:
        env_vars["FRAY_CONTEXT_SPEC"] = context
    return EnvironmentConfig(
        workspace=workdir,
        docker_image=image,
        pip_packages=packages,
        env_vars=env_vars,
        extras=extras,
        dependency_groups=groups,
        python=python,
    )


def _native(given: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for key, value in pairs("--backend", given).items():
        cluster, dot, option = key.partition(".")
        if not dot or not option or not cluster:
            raise click.UsageError(
                f"--backend takes CLUSTER.OPTION=VALUE, e.g. slurm.partition=gpu, got {key}={value}"
            )
        found.setdefault(cluster, {})[option] = literal(value)
    return found


def read_env_file(path: Path) -> dict[str, str]:
    """Read KEY=VALUE lines: `#` starts a comment line, `export` is passed over, quotes around a value go.

    Read it once: it may be a pipe.

    Raises:
        UsageError: A line is none of these, or the file is no UTF-8.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # a value may have other ends of lines
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{path} is to be UTF-8 text: {error}") from error
    found = {}
    for number, line in enumerate(lines, 1):
        text = line.strip().removeprefix("export ")
        if not text or text.startswith("#"):
            continue
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise click.UsageError(f"{path}, line {number}: expected KEY=VALUE")
        value = value.strip()
        if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        found[key.strip()] = value
    return found
