"""`fray run`: launch a command, script, module or function, follow it, answer with its exit code."""

import contextlib
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from fray._cli.entrypoints import Modules, Target, target_of
from fray._cli.log_output import print_lines
from fray._cli.run_options import read_env_file, request_of, request_options
from fray._cli.settings import CONTEXT_VARIABLE, SettingsError, configurable, run_defaults, settings
from fray._cli.shared import (
    as_dict,
    cluster_option,
    cluster_spec,
    find_job,
    first_line,
    json_option,
    one_line,
    open_cluster,
    print_json,
    talk,
)
from fray._cli.sweeps import combinations, member_name, options_of
from fray._values.errors import FrayError

if TYPE_CHECKING:
    from fray._contracts.cluster import Cluster
    from fray._values.jobs import JobId, JobRequest

_VERBATIM = "fray.verbatim"  # in a context: the command stood behind `--`
_AFTERWARDS = "\n  fray logs -f {0}\n  fray stop {0}"
_ADDED_UP = ("variables", "labels")  # what files say of these, and the command line, is taken together


class _RunCommand(click.Command):
    """Knows what stood behind `--`, and takes defaults from files and variables."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, option in configurable(self).items():
            if not option.multiple:
                option.envvar = "_".join(["FRAY", "RUN", *name.upper().split("-")])

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if not extra.get("resilient_parsing"):
            try:
                extra["default_map"] = run_defaults(self)
            except SettingsError:
                # This ends here with the help, where it is asked for.
                super().make_context(info_name, list(args), parent, **extra)
                raise
        return super().make_context(info_name, args, parent, **extra)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        rest = super().parse_args(ctx, args)
        # Options end where the command starts, so the command is the end of what was given.
        behind = len(ctx.params.get("command") or ())
        ctx.meta[_VERBATIM] = len(given) > behind and given[len(given) - behind - 1] == "--"
        return rest


@click.command(cls=_RunCommand, context_settings={"allow_interspersed_args": False})
@cluster_option
@request_options
@click.option("-m", "module", is_flag=True, help="Run a module: `-m pkg.train ARG...`, as python -m does.")
@click.option(
    "--arg", "args", multiple=True, metavar="NAME=VALUE",
    help="An argument of the function: a JSON value, else text. It may also follow the function.",
)  # fmt: skip
@click.option(
    "--sweep",
    "sweeps",
    multiple=True,
    metavar="NAME=VALUES",
    help="Run once for each value: lr=0.1,0.01 or seed=0..9. Several: for each combination.",
)
@click.option(
    "--zip",
    "zips",
    multiple=True,
    metavar="NAME=VALUES",
    help="As --sweep; all --zip axes advance together, value by value.",
)
@click.option(
    "--max-parallel",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many of a sweep run at the same time.",
)
@click.option(
    "--key", help="The name of this launch: a second one with the same key returns the first one's job."
)
@click.option("--detach", is_flag=True, help="Print the id and return; the job continues.")
@click.option("--stop-on-interrupt", is_flag=True, help="Ctrl-C stops the job instead of leaving it.")
@click.option("--dry-run", is_flag=True, help="Print what would be launched, and launch nothing.")
@json_option
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def run(
    ctx: click.Context,
    /,
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
    fray run train.py --lr 0.1                 a script
    fray run -m pkg.train --lr 0.1             a module
    fray run pkg.train:main --arg lr=0.1       a function
    fray run -- sh -c 'make && ./train'        any command
    fray run --sweep lr=0.1,0.01 --sweep seed=0..4 train.py --lr {lr} --seed {seed}
    fray run -n 4 --gpu H100:8 --timeout 2h -e WANDB_API_KEY --detach train.py
    """
    _add_up(ctx, given)
    requests = _requests(ctx, given)
    if dry_run:
        _show_all(requests, as_json)
        _show_script(spec, requests[0])
        return 0
    cluster = open_cluster(spec)
    after = [find_job(cluster, text) for text in given["after"]]
    requests = [replace(request, after=after) for request in requests] if after else requests
    try:
        with one_line():
            job_id = _launch(ctx, cluster, requests, key, given)
    except KeyboardInterrupt:
        talk("\nit may have been launched: `fray list --since 10m` shows it, `fray stop ID` stops it")
        raise
    if detach:
        if as_json:
            talk(f"launched {job_id}")  # it has been, whatever the cluster answers from here on
            print_json(as_dict(cluster.poll(job_id)))
        else:
            click.echo(job_id)
        return 0
    try:
        talk(f"launched {job_id}")
        return _follow(cluster, job_id, as_json)
    except KeyboardInterrupt:
        return _interrupted(cluster, job_id, stop_on_interrupt)


def _add_up(ctx: click.Context, given: dict[str, Any]) -> None:
    """Put the values of files before those of the command line, for options whose values are merged.

    Of the variables that files set, those are left out that an `--env-file` of the command line, or of the
    environment, sets too.
    """
    files = ctx.default_map or {}
    with one_line():
        said_by = _source(ctx, "env_file")
        variables = read_env_file(Path(given["env_file"])) if given["env_file"] else {}
        winning = {} if said_by is ParameterSource.DEFAULT_MAP else variables
        if said_by is ParameterSource.COMMANDLINE and "env_file" in files:
            variables = {**read_env_file(Path(files["env_file"])), **variables}
        given["env_file"] = variables
    for name in _ADDED_UP:
        said = [str(text) for text in files.get(name, ())]
        if name == "variables":
            said = [text for text in said if _key(text) not in winning]
        given[name] = (*said, *(given[name] if _source(ctx, name) is ParameterSource.COMMANDLINE else ()))
    if given["context"] is None and CONTEXT_VARIABLE not in {
        *given["env_file"],
        *map(_key, given["variables"]),
    }:
        said_by_file = settings().text("context")
        given["context"] = said_by_file and (os.environ.get(CONTEXT_VARIABLE) or said_by_file)


def _source(ctx: click.Context, name: str) -> ParameterSource | None:
    return ctx.get_parameter_source(name)


def _key(variable: str) -> str:
    return variable.partition("=")[0]


def _requests(ctx: click.Context, given: dict[str, Any]) -> "list[JobRequest]":
    """Return the requests: of a sweep, one for each combination of its parameters."""
    if not _sweeps(given):
        if given["max_parallel"] is not None:
            raise click.UsageError("--max-parallel is of a sweep: give --sweep or --zip too")
        return [_request(ctx, given)]
    found = []
    for parameters in combinations(given["sweeps"], given["zips"]):
        request = _request(ctx, options_of(given, parameters))
        if request.name != given["name"] and given["name"]:
            found.append(request)  # its name has a placeholder
        else:
            found.append(replace(request, name=member_name(request.name, parameters)))
    return found


def _sweeps(given: dict[str, Any]) -> bool:
    return bool(given["sweeps"] or given["zips"])


def _launch(
    ctx: click.Context,
    cluster: "Cluster",
    requests: "list[JobRequest]",
    key: str | None,
    given: dict[str, Any],
) -> "JobId":
    if not _sweeps(given):
        return cluster.launch(requests[0]) if key is None else cluster.launch(requests[0], key=key)
    name = given["name"]
    if name is None:
        first = combinations(given["sweeps"], given["zips"])[0]
        name = _target(ctx, options_of(given, first)).name
    elif any(request.name == name or not request.name.startswith(name) for request in requests):
        name = None  # it has a placeholder: what the names have in common
    return cluster.launch_many(requests, given["max_parallel"], key=key, name=name)


def _request(ctx: click.Context, given: dict[str, Any]) -> "JobRequest":
    target = _target(ctx, given)
    return request_of(target.entrypoint, target.name, given)


def _target(ctx: click.Context, given: dict[str, Any]) -> Target:
    with one_line():
        return target_of(
            given["command"],
            verbatim=ctx.meta[_VERBATIM],
            module=given["module"],
            args=given["args"],
            folder=Path(given["workdir"] or ".").absolute(),
            modules=_modules(ctx.params["spec"], given),
        )


def _modules(spec: str | None, given: dict[str, Any]) -> Modules:
    """Where the job will find its modules, as far as that is known before the cluster is opened."""
    from fray._discovery.specs import Spec

    variables = {*given["env_file"], *map(_key, given["variables"])}
    named = Spec.parse(cluster_spec(spec) or "local")
    own = any(given[name] for name in ("packages", "extras", "groups", "python", "image"))
    if own or "PYTHONPATH" in variables or "use_isolated_env" in named.options:
        return Modules.ITS_OWN
    return Modules.HERE if named.name == "local" else Modules.ON_THE_CLUSTER


def _follow(cluster: "Cluster", job_id: "JobId", as_json: bool) -> int:
    # With --json stdout is one JSON document; what the job writes is talk then.
    out = sys.stderr if as_json else sys.stdout
    try:
        stream = cluster.monitor(job_id)
        print_lines(stream, out)
        info = stream.info
    except (OSError, FrayError):  # nobody reads it, it has no room, or the cluster is away
        talk(f"{job_id} is not followed any more, and may go on{_AFTERWARDS.format(job_id)}")
        raise
    if as_json:
        print_json(as_dict(info))
    talk(f"{job_id} {info.status}" + (f": {first_line(info.error_message)}" if info.error_message else ""))
    return info.exit_code or 0


def _interrupted(cluster: "Cluster", job_id: "JobId", stop: bool) -> int:
    told = f"stopping {job_id} ..." if stop else f"detached: {job_id} goes on{_AFTERWARDS.format(job_id)}"
    with contextlib.suppress(OSError):  # Ctrl-C ends what reads it too, such as `2>&1 | tee`
        talk(f"\n{told}")
    if stop:
        try:
            cluster.terminate(job_id)
        except BaseException:  # Ctrl-C again, or the cluster is away
            talk(f"{job_id} may go on{_AFTERWARDS.format(job_id)}")
            raise
    return 130


def _show_script(spec: str | None, request: "JobRequest") -> None:
    """Print on stderr what a cluster would submit to its scheduler, such as a batch script."""
    from fray._discovery.plugins import CLUSTERS, load
    from fray._discovery.specs import Spec

    named = cluster_spec(spec)
    with one_line():
        kind = None if named is None else load(CLUSTERS, Spec.parse(named).name)
        if hasattr(kind, "batch_script"):  # others may connect when they are opened
            cluster: Any = open_cluster(spec)
            click.echo(cluster.batch_script(request), err=True)


def _show_all(requests: "list[JobRequest]", as_json: bool) -> None:
    shown = [request.to_dict() for request in requests]
    if as_json:
        print_json(shown if len(shown) > 1 else shown[0])
    else:
        _show(shown[0])
        for request in requests[1:]:
            click.echo(f"{'and':24} {request.name}: {request.entrypoint}")


def _show(shown: dict[str, Any]) -> None:
    flat = {key: value for key, value in shown.items() if key not in ("resources", "environment")}
    flat |= shown["resources"] | shown["environment"]
    for key, value in flat.items():
        pairs = value.values() if key == "device" else map("=".join, value.items()) if key == "labels" else ()
        text = " ".join(map(str, pairs)) if isinstance(value, dict) else value
        text = ", ".join(map(str, text)) if isinstance(text, list) else text
        if text not in (None, ""):
            click.echo(f"{key.replace('_', ' '):24} {text}")
