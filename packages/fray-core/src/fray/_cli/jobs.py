"""`fray list`, `logs`, `wait` and `stop`: jobs that have been launched."""

import functools
import sys
from typing import TYPE_CHECKING, Any

import click

from fray._cli.completion import complete_ids
from fray._cli.job_arguments import grace_option, job_argument, jobs_argument
from fray._cli.log_output import print_lines
from fray._cli.shared import (
    STYLES,
    age,
    as_dict,
    cluster_option,
    duration,
    find_job,
    first_line,
    in_numbers,
    json_option,
    on_each,
    one_line,
    open_cluster,
    print_json,
    print_states,
    progress,
    styled,
    talk,
)
from fray._cli.values import DURATION, MOMENT, pairs

if TYPE_CHECKING:
    from fray._values.jobs import JobInfo


@click.command("list")
@cluster_option
@click.option("--name", metavar="PATTERN", help="Only those whose name or id matches, e.g. 'train*'.")
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="KEY=VALUE",
    help="Only those with this label; * matches anything.",
)
@click.option(
    "--status", "only", multiple=True, type=click.Choice([*STYLES]), help="Only jobs in this state."
)
@click.option("--since", type=MOMENT, metavar="TIME", help="Only those launched since: 2h, 7d, or a time.")
@click.option(
    "--parent", metavar="ID", shell_complete=complete_ids,
    help="Only those that this job launched, or the members of this sweep.",
)  # fmt: skip
@click.option("--limit", type=click.IntRange(min=0), metavar="N", help="Only the last N.")
@click.option(
    "--sort", metavar="KEY", default="submitted", show_default=True,
    help="Sort by submitted, finished, name or status; -KEY reverses the order.",
)  # fmt: skip
@json_option
def list_jobs(
    spec: str | None, only: tuple[str, ...], labels: tuple[str, ...], as_json: bool, **given: Any
) -> None:
    """List the jobs of the cluster, the latest last; a sweep is one row."""
    cluster = open_cluster(spec)
    if given["parent"] is not None:
        given["parent"] = find_job(cluster, given["parent"])
    given |= {"labels": pairs("--label", labels), "status": only}
    if given["sort"] == "submitted":
        given["sort"] = None  # as it is without options
    with one_line():
        infos = cluster.list_jobs(
            **{key: value for key, value in given.items() if value not in (None, (), {})}
        )
    if as_json:
        print_json([as_dict(info) for info in infos])
        return
    from fray._cli.output import print_rows

    columns = ["id", "status", "replicas", "launched", "ran", "message"]
    print_rows(
        columns, [_row(info) for info in infos], STYLES, shrink=[("message", 24), ("id", 24), ("message", 10)]
    )


def _row(info: "JobInfo") -> list[str]:
    message = info.error_message or info.pending_reason
    if info.progress is not None and not message:
        message = in_numbers(info.progress)
    return [
        info.job_id,
        str(info.status),
        progress(info),
        age(info.submitted_at),
        duration(info.started_at, info.finished_at),
        first_line(message),
    ]


@click.command()
@cluster_option
@click.option("-f", "--follow/--no-follow", default=False, help="Follow the log until the job is finished.")
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
@job_argument
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
@jobs_argument
def wait(spec: str | None, timeout: float | None, as_json: bool, job_ids: tuple[str, ...]) -> int:
    """Wait until jobs are finished; the exit code is that of the first one that did not succeed."""
    cluster = open_cluster(spec)
    infos = cluster.wait([find_job(cluster, job_id) for job_id in job_ids], timeout=timeout)
    if as_json:
        print_json([as_dict(info) for info in infos])
    else:
        for info in infos:
            click.echo(f"{info.job_id}  {styled(info)}")
            if info.error_message:
                talk(info.error_message)
    return next((info.exit_code for info in infos if info.exit_code), 0)


@click.command()
@cluster_option
@grace_option
@json_option
@jobs_argument
def stop(spec: str | None, grace: float, as_json: bool, job_ids: tuple[str, ...]) -> None:
    """Stop jobs, and the jobs that they launched; returns when no process of theirs is left."""
    cluster = open_cluster(spec)
    show = functools.partial(print_states, cluster, as_json=as_json)
    on_each(cluster, job_ids, lambda job_id: cluster.terminate(job_id, grace=grace), show)
