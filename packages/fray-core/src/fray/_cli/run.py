"""`fray run`: launch a command, follow it, answer with its exit code."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fray._cli.log_output import print_lines
from fray._cli.shared import (
    as_dict,
    cluster_option,
    first_line,
    json_option,
    one_line,
    open_cluster,
    print_json,
    talk,
)

if TYPE_CHECKING:
    from fray._contracts.cluster import Cluster
    from fray._values.environment import EnvironmentConfig
    from fray._values.jobs import JobId, JobRequest
    from fray_resources import ResourceConfig

_ENVIRONMENT = ("workdir", "packages", "variables", "env_file", "extras", "groups", "python")


@click.command(context_settings={"allow_interspersed_args": False})
@cluster_option
@click.option("--name", help="The id starts with it; made of the command by default.")
@click.option("--replicas", type=int, default=1, show_default=True, help="How many to run; of a TPU, slices.")
@click.option("--cpu", type=float, default=1, show_default=True, help="CPUs of each replica.")
@click.option("--ram", default="1g", show_default=True, help="Memory of each replica, e.g. 512m or 8g.")
@click.option("--disk", default="16g", show_default=True, help="Disk space of each replica.")
@click.option("--gpu", metavar="TYPE[:N]", help="GPUs of each replica, e.g. H100:8.")
@click.option("--tpu", metavar="TYPE", help="A TPU slice, e.g. v5litepod-16.")
@click.option(
    "-e", "--env", "variables", multiple=True, metavar="KEY[=VALUE]",
    help="Set a variable; without a value it is taken from here, and stays out of the command line.",
)  # fmt: skip
@click.option(
    "--env-file", type=click.Path(exists=True, dir_okay=False), help="Set variables from KEY=VALUE lines."
)
@click.option(
    "--pip", "packages", multiple=True, metavar="REQUIREMENT", help="Install a package for this job."
)
@click.option("--extra", "extras", multiple=True, help="Install an extra of the project in the workspace.")
@click.option("--group", "groups", multiple=True, help="Install a dependency group of that project.")
@click.option("--python", metavar="VERSION", help="The Python of the job, e.g. 3.12.")
@click.option("--snapshot", is_flag=True, help="Run a copy of the workspace as it is now.")
@click.option(
    "--workdir", type=click.Path(exists=True, file_okay=False), help="The workspace; here by default."
)
@click.option("--timeout", type=float, metavar="SECONDS", help="End the job when it has run so long.")
@click.option(
    "--retries", type=int, default=0, show_default=True, help="Start a failed replica again so often."
)
@click.option("--log-limit", metavar="SIZE", help="Keep so much of what a replica writes, e.g. 64m.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="A text to find the job by.")
@click.option("--key", help="Names this launch: another with the same key gives the first one's job.")
@click.option("--detach", is_flag=True, help="Print the id and return; the job goes on.")
@click.option("--stop-on-interrupt", is_flag=True, help="Ctrl-C stops the job instead of leaving it.")
@click.option("--dry-run", is_flag=True, help="Print what would be launched, and launch nothing.")
@json_option
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(
    spec: str | None,
    as_json: bool,
    detach: bool,
    stop_on_interrupt: bool,
    dry_run: bool,
    key: str | None,
    **given: Any,
) -> int:
    """Launch COMMAND as a job and follow its log; the exit code is the job's.

    \b
    fray run -- python train.py --lr 0.1
    fray run --replicas 4 --gpu H100:8 -e WANDB_API_KEY --detach -- python train.py
    """
    request = _request(**given)
    if dry_run:
        _show(request, as_json)
        _show_script(spec, request)
        return 0
    cluster = open_cluster(spec)
    with one_line():
        job_id = cluster.launch(request) if key is None else cluster.launch(request, key=key)
    if detach:
        if as_json:
            print_json(as_dict(cluster.poll(job_id)))
        else:
            click.echo(job_id)
        return 0
    talk(f"launched {job_id}")
    try:
        return _follow(cluster, job_id, as_json)
    except KeyboardInterrupt:
        return _interrupted(cluster, job_id, stop_on_interrupt)


def _follow(cluster: "Cluster", job_id: "JobId", as_json: bool) -> int:
    # With --json stdout is one JSON document; what the job writes is talk then.
    out = sys.stderr if as_json else sys.stdout
    stream = cluster.monitor(job_id)
    print_lines(stream, out)
    info = stream.info
    if as_json:
        print_json(as_dict(info))
    talk(f"{job_id} {info.status}" + (f": {first_line(info.error_message)}" if info.error_message else ""))
    return info.exit_code or 0


def _interrupted(cluster: "Cluster", job_id: "JobId", stop: bool) -> int:
    if stop:
        talk(f"\nstopping {job_id} ...")
        cluster.terminate(job_id)
    else:
        talk(f"\ndetached: {job_id} goes on\n  fray logs -f {job_id}\n  fray stop {job_id}")
    return 130


def _request(
    *,
    name: str | None,
    command: tuple[str, ...],
    timeout: float | None,
    retries: int,
    snapshot: bool,
    log_limit: str | None,
    labels: tuple[str, ...],
    **given: Any,
) -> "JobRequest":
    from fray._jobs.cluster_context import job_name
    from fray._values.entrypoint import Entrypoint
    from fray._values.jobs import JobRequest

    with one_line():
        return JobRequest(
            name=name or job_name(" ".join(command)),
            entrypoint=Entrypoint.from_binary(command[0], command[1:]),
            resources=_resources(
                **{key: given[key] for key in ("replicas", "cpu", "ram", "disk", "gpu", "tpu")}
            ),
            environment=_environment(**{key: given[key] for key in _ENVIRONMENT}),
            timeout=timeout,
            max_retries_failure=retries,
            labels=_labels(labels),
            snapshot=snapshot,
            log_limit=log_limit,
        )


def _resources(
    *, replicas: int, cpu: float, ram: str, disk: str, gpu: str | None, tpu: str | None
) -> "ResourceConfig":
    from fray_resources import CpuConfig, DeviceConfig, GpuConfig, ResourceConfig, TpuConfig

    if gpu and tpu:
        raise click.UsageError(f"a replica has --gpu or --tpu, got both ({gpu}, {tpu})")
    device: DeviceConfig = CpuConfig()
    if tpu:
        device = TpuConfig(tpu)
    if gpu:
        kind, _, count = gpu.partition(":")
        if count and not count.isdigit():
            raise click.UsageError(f"--gpu takes TYPE or TYPE:N, e.g. H100:8, got {gpu!r}")
        device = GpuConfig(kind, int(count or 1))
    return ResourceConfig(cpu=cpu, ram=ram, disk=disk, device=device, replicas=replicas)


def _environment(
    *,
    workdir: str | None,
    packages: tuple[str, ...],
    variables: tuple[str, ...],
    env_file: str | None,
    extras: tuple[str, ...],
    groups: tuple[str, ...],
    python: str | None,
) -> "EnvironmentConfig":
    from fray._values.environment import EnvironmentConfig

    env_vars = _read_env_file(Path(env_file)) if env_file else {}
    for variable in variables:
        key, given, value = variable.partition("=")
        if not given and key not in os.environ:
            raise click.UsageError(
                f"-e {key} takes its value from here, where it is not set; give -e {key}=VALUE"
            )
        env_vars[key] = value if given else os.environ[key]
    return EnvironmentConfig(
        workspace=workdir,
        pip_packages=packages,
        env_vars=env_vars,
        extras=extras,
        dependency_groups=groups,
        python=python,
    )


def _labels(given: tuple[str, ...]) -> dict[str, str]:
    labels = {}
    for label in given:
        key, equals, value = label.partition("=")
        if not equals or not key:
            raise click.UsageError(f"--label takes KEY=VALUE, got {label!r}")
        labels[key] = value
    return labels


def _read_env_file(path: Path) -> dict[str, str]:
    """Read KEY=VALUE lines: `#` starts a comment line, `export` is passed over, quotes around a value go."""
    found = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
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


def _show_script(spec: str | None, request: "JobRequest") -> None:
    """Print what a cluster would hand to its scheduler, where it has such a thing, on stderr."""
    script_of = getattr(open_cluster(spec), "batch_script", None) if spec else None
    if script_of is not None:
        with one_line():
            click.echo(script_of(request), err=True)


def _show(request: "JobRequest", as_json: bool) -> None:
    shown = request.to_dict()
    if as_json:
        print_json(shown)
        return
    flat = {key: value for key, value in shown.items() if key not in ("resources", "environment")}
    flat |= shown["resources"] | shown["environment"]
    for key, value in flat.items():
        text = " ".join(map(str, value.values())) if isinstance(value, dict) else value
        text = ", ".join(text) if isinstance(text, list) else text
        if text not in (None, ""):
            click.echo(f"{key.replace('_', ' '):24} {text}")
