"""What a job used over time, as the scheduler wrote it down."""

from collections.abc import Iterable

from fray.cluster import UsageSample
from fray_ray._jobs_client import JobsClient
from fray_ray._log_names import usage_name


def usage_of(client: JobsClient, runs: Iterable[str]) -> list[UsageSample]:
    """Return the samples of all runs of a job, by replica, attempt and time."""
    found: list[UsageSample] = []
    for submission in runs:
        entry = client.entry(submission)
        if entry is not None and entry.node:
            lines = client.file_of_node(entry.node, usage_name(submission)).splitlines()
            found += filter(None, map(_sample, lines))
    return sorted(found, key=lambda sample: (sample.replica, sample.attempt, sample.time))


def _sample(line: str) -> UsageSample | None:
    """Return the sample of a line; None where it is none: the attempt itself can write there."""
    try:
        replica, attempt, when, memory, cpu_time = line.split()
        return UsageSample(
            replica=int(replica),
            attempt=int(attempt),
            time=float(when),
            memory=int(memory),
            cpu_time=float(cpu_time),
        )
    except ValueError:
        return None
