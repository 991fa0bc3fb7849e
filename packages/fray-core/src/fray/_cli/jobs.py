"""`fray list`, `status`, `logs`, `wait` and `stop`: jobs that have been launched."""

import sys
from typing import TYPE_CHECKING, Any

import click

from fray._cli.completion import complete_ids
from fray._cli.log_output import print_lines
from fray._cli.shared import (
    STYLES,
    as_dict,
    cluster_option,
    duration,
    find_job,
    first_line,
    in_words,
    json_option,
    one_line,
    open_cluster,
    print_json,
    talk,
)
from fray._cli.values import DURATION, MOMENT

if TYPE_CHECKING:
    from fray._values.jobs import JobInfo
    from fray_resources import ResourceConfig


@click.command("list")
@cluster_option
@click.option(
    "--status", "only", multiple=True, type=click.Choice([*STYLES]), help="Only jobs in this state."
)
@json_option
def list_jobs(spec: str | None, only: tuple[str, ...], as_json: bool) -> None:
    """List the jobs of the cluster, the latest last."""
    infos = [info for info in open_cluster(spec).list_jobs() if not only or info.status in only]
    if as_json:
        print_json([as_dict(info) for info in infos])
        return
    from fray._cli.output import print_table

    rows = [
        [
            info.job_id,
            str(info.status),
            _progress(info),
            f"{duration(info.submitted_at, None)} ago",
            duration(info.started_at, info.finished_at),
            first_line(info.error_message or info.pending_reason),
        ]
        for info in infos
    ]
    print_table(["id", "status", "replicas", "launched", "ran", "message"], rows, STYLES)


@click.command()
@cluster_option
@json_option
@click.argument("job_id", metavar="ID", shell_complete=complete_ids)
def status(spec: str | None, as_json: bool, job_id: str) -> None:
    """Show a job and each of its replicas."""
    cluster = open_cluster(spec)
    info = cluster.poll(find_job(cluster, job_id))
    if as_json:
        print_json(as_dict(info))
        return
    from fray._cli.output import print_table

    click.echo(f"{info.job_id}  {_styled(info)}  ran {duration(info.started_at, info.finished_at)}")
    if info.pending_reason or info.error_message:
        click.echo(info.pending_reason or info.error_message)
    for warning in info.warnings:
        click.echo(f"warning: {warning}")
    for what, text in _facts(info):
        click.echo(f"  {what:10} {text}")
    rows = [
        [
            str(task.replica),
            str(task.status),
            str(task.attempt),
            "-" if task.exit_code is None else str(task.exit_code),
            str(task.reason or "-"),
            duration(task.started_at, task.finished_at),
            "-" if task.cpu_time is None else f"{task.cpu_time:.1f}s",
            "-" if task.peak_memory is None else in_words(task.peak_memory),
        ]
        for replica in info.tasks
        for task in (*replica.previous, replica)
    ]
    columns = ["replica", "status", "attempt", "exit code", "reason", "ran", "cpu", "memory"]
    print_table(columns, rows, STYLES)


@click.command()
@cluster_option
@click.option("-f", "--follow/--no-follow", default=False, help="Go on until the job is finished.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines.")
@click.option(
    "--since",
    type=MOMENT,
    metavar="TIME",
    help="Only what was written since: 30s, 10m, 2h, 1d ago, or at a time.",
)
@click.option("--grep", metavar="REGEX", help="Only lines in which this is found.")
@click.option("--replica", type=int, metavar="N", help="Only the lines of this replica.")
@json_option
@click.argument("job_id", metavar="ID", shell_complete=complete_ids)
def logs(spec: str | None, as_json: bool, job_id: str, **chosen: Any) -> None:
    """Print what a job has written."""
    cluster = open_cluster(spec)
    found = find_job(cluster, job_id)
    given = {name: value for name, value in chosen.items() if value is not None}
    with one_line():
        lines = cluster.monitor(found, **given)
    if as_json:
        print_json(list(lines))
        return
    print_lines(lines, sys.stdout)


@click.command()
@cluster_option
@click.option("--timeout", type=DURATION, metavar="TIME", help="Give up waiting after so long: 90, 30m, 2h.")
@json_option
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True, shell_complete=complete_ids)
def wait(spec: str | None, timeout: float | None, as_json: bool, job_ids: tuple[str, ...]) -> int:
    """Wait until jobs are finished; the exit code is that of the first one that did not succeed."""
    cluster = open_cluster(spec)
    infos = cluster.wait([find_job(cluster, job_id) for job_id in job_ids], timeout=timeout)
    if as_json:
        print_json([as_dict(info) for info in infos])
    else:
        for info in infos:
            click.echo(f"{info.job_id}  {_styled(info)}")
            if info.error_message:
                talk(info.error_message)
    return next((info.exit_code for info in infos if info.exit_code), 0)


@click.command()
@cluster_option
@click.option(
    "--grace",
    type=DURATION,
    default=10.0,
    show_default=True,
    metavar="TIME",
    help="From SIGTERM to SIGKILL, in seconds or as 1m.",
)
@json_option
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True, shell_complete=complete_ids)
def stop(spec: str | None, grace: float, as_json: bool, job_ids: tuple[str, ...]) -> None:
    """Stop jobs, and the jobs that they launched; returns when no process of theirs is left."""
    cluster = open_cluster(spec)
    found = [find_job(cluster, job_id) for job_id in job_ids]
    for job_id in found:
        with one_line():
            cluster.terminate(job_id, grace=grace)
    infos = [cluster.poll(job_id) for job_id in found]
    if as_json:
        print_json([as_dict(info) for info in infos])
        return
    for info in infos:
        click.echo(f"{info.job_id}  {_styled(info)}")


def _facts(info: "JobInfo") -> list[tuple[str, str]]:
    """What is known of a job beside its state."""
    commit = "" if info.commit is None else info.commit[:10] + (" with changes" if info.dirty else "")
    facts = [
        ("name", info.name),
        ("command", info.command or ""),
        ("directory", info.directory or ""),
        ("commit", commit),
        ("resources", "" if info.resources is None else _resources_of(info.resources)),
        ("labels", " ".join(f"{key}={value}" for key, value in info.labels.items())),
        ("user", info.user or ""),
        ("children", " ".join(info.children)),
        ("logs", "\n             ".join(info.logs)),
    ]
    return [(what, text) for what, text in facts if text]


def _resources_of(resources: "ResourceConfig") -> str:
    device = "" if resources.device.kind == "cpu" else f", {resources.device}"
    return f"{resources.cpu:g} CPU, {in_words(resources.ram_bytes)}{device} for each replica"


def _styled(info: "JobInfo") -> str:
    # click drops the colour where stdout is no terminal.
    colour = STYLES[info.status]
    return click.style(info.status, dim=True) if colour == "dim" else click.style(info.status, fg=colour)


def _progress(info: "JobInfo") -> str:
    """How many replicas of how many are in the job's own state: `2/8`."""
    return f"{sum(task.status == info.status for task in info.tasks)}/{len(info.tasks)}"
