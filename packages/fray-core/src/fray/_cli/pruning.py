"""`fray rm` and `fray prune`: remove jobs."""

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from fray._cli.job_arguments import jobs_argument
from fray._cli.shared import (
    cluster_option,
    in_words,
    is_below,
    json_option,
    on_each,
    one_line,
    open_cluster,
    print_json,
)
from fray._cli.values import AGE

if TYPE_CHECKING:
    from fray._values.jobs import JobId, Pruned


@click.command("rm")
@cluster_option
@click.option("--force", is_flag=True, help="Also jobs that are not known to have ended.")
@json_option
@jobs_argument
def remove(spec: str | None, force: bool, as_json: bool, job_ids: tuple[str, ...]) -> None:
    """Remove finished jobs, and those that they launched: their records, logs and files."""
    cluster = open_cluster(spec)

    def show(removed: "list[JobId]") -> None:
        if as_json:
            print_json(removed)
            return
        for job_id in removed:
            click.echo(f"{job_id} removed")

    gone: set[JobId] = set()

    def act(job_id: "JobId") -> None:
        if job_id not in gone and not is_below(job_id, gone):  # else it went with the job that launched it
            cluster.remove(job_id, force=force)
            gone.add(job_id)

    on_each(cluster, job_ids, act, show)


@click.command()
@cluster_option
@click.option(
    "--older-than",
    type=AGE,
    default="7d",
    show_default=True,
    metavar="AGE",
    help="How long ago a job must have ended: 30m, 12h, 7d.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be removed, and its size; remove nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
def prune(spec: str | None, older_than: float, dry_run: bool, yes: bool, as_json: bool) -> int:
    """Remove jobs that ended long ago, and environments that no job uses.

    On a terminal it first prints what would be removed and its size, and asks for confirmation.
    """
    cluster = open_cluster(spec)
    asks = sys.stdin.isatty() and sys.stderr.isatty() and not (yes or as_json)
    looked_at = time.time()
    if dry_run or asks:
        with one_line():
            found = cluster.prune(older_than, dry_run=True)
        if as_json:
            print_json(_as_dict(found))
            return 0
        click.echo(_in_words(found))
        if dry_run or not (found.jobs or found.environments):
            return 0
        if not click.confirm("Remove these?", err=True):
            return 1
    with one_line():
        # What has become old enough since was not shown.
        pruned = cluster.prune(older_than + (time.time() - looked_at if asks else 0.0))
    if as_json:
        print_json(_as_dict(pruned))
    else:
        click.echo(f"removed: {_in_words(pruned)}" if not asks else "removed")
    return 0


def _in_words(pruned: "Pruned") -> str:
    kinds = ", ".join(f"{kind} {in_words(size)}" for kind, size in pruned.sizes.items() if size)
    total = in_words(pruned.size) + (f" ({kinds})" if kinds else "")
    return f"{len(pruned.jobs)} jobs, {pruned.environments} environments, {total}"


def _as_dict(pruned: "Pruned") -> dict[str, Any]:
    return {
        "jobs": list(pruned.jobs),
        "environments": pruned.environments,
        "size": pruned.size,
        "sizes": dict(pruned.sizes),
    }
