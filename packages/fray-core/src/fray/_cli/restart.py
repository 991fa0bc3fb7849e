"""`fray retry` and `fray restart`: run again what did not succeed, or what runs."""

from typing import TYPE_CHECKING

import click

from fray._cli.completion import complete_ids
from fray._cli.shared import (
    as_dict,
    cluster_option,
    find_job,
    json_option,
    one_line,
    open_cluster,
    print_json,
    styled,
)
from fray._cli.values import DURATION

if TYPE_CHECKING:
    from fray._contracts.cluster import Cluster
    from fray._values.jobs import JobId


@click.command()
@cluster_option
@json_option
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True, shell_complete=complete_ids)
def retry(spec: str | None, as_json: bool, job_ids: tuple[str, ...]) -> None:
    """Run again what did not succeed: a job, or the failed and stopped members of a sweep.

    It runs as it was submitted and under the same id; earlier attempts and their logs stay.
    """
    cluster = open_cluster(spec)
    found = [find_job(cluster, job_id) for job_id in job_ids]
    for job_id in found:
        with one_line():
            cluster.retry(job_id)
    _tell(cluster, found, as_json)


@click.command()
@cluster_option
@click.option(
    "--replica",
    type=click.IntRange(min=0),
    metavar="N",
    help="Only this one of a job that runs; not of a gang.",
)
@click.option(
    "--grace", type=DURATION, default=10.0, show_default=True, metavar="TIME", help="From SIGTERM to SIGKILL."
)
@json_option
@click.argument("job_id", metavar="ID", shell_complete=complete_ids)
def restart(spec: str | None, replica: int | None, grace: float, as_json: bool, job_id: str) -> None:
    """End a job that runs and start it again, or run again one that has ended and did not succeed.

    A restart is counted against no budget of retries. With --replica the others run on.
    """
    cluster = open_cluster(spec)
    found = find_job(cluster, job_id)
    info = cluster.poll(found)
    with one_line():
        if not info.finished:
            cluster.restart(found, replica, grace)
        elif replica is not None:
            raise click.UsageError(
                f"{found} has {info.status}: `fray retry {found}` runs it again, with all of its replicas"
            )
        else:
            cluster.retry(found)
    _tell(cluster, [found], as_json)


def _tell(cluster: "Cluster", job_ids: "list[JobId]", as_json: bool) -> None:
    infos = [cluster.poll(job_id) for job_id in job_ids]
    if as_json:
        print_json([as_dict(info) for info in infos])
        return
    for info in infos:
        click.echo(f"{info.job_id}  {styled(info)}")
