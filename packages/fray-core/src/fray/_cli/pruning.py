"""`fray rm` and `fray prune`: forget jobs."""

import click

from fray._cli.completion import complete_ids
from fray._cli.shared import (
    cluster_option,
    find_job,
    in_words,
    json_option,
    one_line,
    open_cluster,
    print_json,
)
from fray._cli.values import AGE


@click.command("rm")
@cluster_option
@click.option("--force", is_flag=True, help="Also jobs that are not known to have ended.")
@json_option
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True, shell_complete=complete_ids)
def remove(spec: str | None, force: bool, as_json: bool, job_ids: tuple[str, ...]) -> None:
    """Forget finished jobs, and those that they launched: their records, logs and files."""
    cluster = open_cluster(spec)
    found = [find_job(cluster, job_id) for job_id in job_ids]
    for job_id in found:
        with one_line():
            cluster.remove(job_id, force=force)
    if as_json:
        print_json(found)
        return
    for job_id in found:
        click.echo(f"{job_id} removed")


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
@json_option
def prune(spec: str | None, older_than: float, as_json: bool) -> None:
    """Forget jobs that ended long ago, and environments that nothing uses any more."""
    with one_line():
        pruned = open_cluster(spec).prune(older_than)
    if as_json:
        print_json({"jobs": list(pruned.jobs), "environments": pruned.environments, "size": pruned.size})
        return
    click.echo(f"{len(pruned.jobs)} jobs, {pruned.environments} environments, {in_words(pruned.size)}")
