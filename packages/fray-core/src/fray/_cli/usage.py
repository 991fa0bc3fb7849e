"""`fray usage`: what the replicas of a job used over time."""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import click

from fray._cli.job_arguments import job_argument
from fray._cli.shared import cluster_option, find_job, in_words, json_option, open_cluster, print_json
from fray._values.errors import UnsupportedError

if TYPE_CHECKING:
    from fray._contracts.cluster import Cluster
    from fray._values.usage import UsageSample


@click.command()
@cluster_option
@json_option
@job_argument
def usage(spec: str | None, as_json: bool, job_id: str) -> None:
    """Show what the replicas of a job used over time: memory, and CPU in cores."""
    cluster = open_cluster(spec)
    samples = samples_of(cluster, find_job(cluster, job_id))
    if as_json:
        print_json([sample.to_dict() for sample in samples])
        return
    from fray._cli.output import print_table

    rows = [
        [
            str(sample.replica),
            str(sample.attempt),
            time.strftime("%H:%M:%S", time.localtime(sample.time)),
            in_words(sample.memory),
            f"{cores:.2f}",
        ]
        for sample, cores in with_cores(samples)
    ]
    print_table(["replica", "attempt", "time", "memory", "cpu"], rows)


def samples_of(cluster: "Cluster", job_id: str) -> "list[UsageSample]":
    """Return what a cluster has recorded of a job.

    Raises:
        UnsupportedError: It records nothing over time.
    """
    found: Callable[[str], list[UsageSample]] | None = getattr(cluster, "usage", None)
    if found is None:
        kind = type(cluster).__name__
        raise UnsupportedError(
            f"{kind} does not record what jobs use over time; their peaks are in `fray status`"
        )
    return found(job_id)


def with_cores(samples: "Sequence[UsageSample]") -> "Iterator[tuple[UsageSample, float]]":
    """Yield each sample with the cores that were busy since the one before it."""
    for _, attempt in groupby(samples, key=lambda sample: (sample.replica, sample.attempt)):
        before: UsageSample | None = None
        for sample in attempt:
            passed = 0.0 if before is None else sample.time - before.time
            used = 0.0 if before is None else sample.cpu_time - before.cpu_time
            yield sample, max(0.0, used / passed) if passed > 0 else 0.0
            before = sample
