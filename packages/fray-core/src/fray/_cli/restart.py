"""`fray retry` and `fray restart`: run again what did not succeed, or what runs."""

import functools

import click

from fray._cli.job_arguments import grace_option, job_argument, jobs_argument
from fray._cli.shared import (
    cluster_option,
    find_job,
    json_option,
    on_each,
    one_line,
    open_cluster,
    print_states,
)


@click.command()
@cluster_option
@json_option
@jobs_argument
def retry(spec: str | None, as_json: bool, job_ids: tuple[str, ...]) -> None:
    """Run a job that did not succeed again, or the failed and stopped members of a sweep.

    It runs as it was submitted and under the same id; earlier attempts and their logs stay.
    """
    cluster = open_cluster(spec)
    on_each(cluster, job_ids, cluster.retry, functools.partial(print_states, cluster, as_json=as_json))


@click.command()
@cluster_option
@click.option(
    "--replica",
    type=click.IntRange(min=0),
    metavar="N",
    help="Only this replica of a running job; not of a gang.",
)
@grace_option
@json_option
@job_argument
def restart(spec: str | None, replica: int | None, grace: float, as_json: bool, job_id: str) -> None:
    """End a running job and start it again, or run a job again that ended without success.

    A restart is counted against no budget of retries. With --replica the other replicas run on.
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
    print_states(cluster, [found], as_json=as_json)
