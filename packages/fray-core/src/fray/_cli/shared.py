"""What the verbs on jobs share: which cluster, which job, how it is shown."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fray._values.errors import FrayError

if TYPE_CHECKING:
    from fray._contracts.cluster import Cluster
    from fray._values.jobs import JobId, JobInfo

F = TypeVar("F", bound=Callable[..., Any])
STYLES = {"succeeded": "green", "failed": "red", "stopped": "yellow", "running": "cyan", "pending": "dim"}


def cluster_option(command: F) -> F:
    """Add `--cluster SPEC`."""
    decorate: Callable[[F], F] = click.option(
        "--cluster",
        "spec",
        metavar="SPEC",
        help="The cluster, e.g. local or ray; the current one by default.",
    )
    return decorate(command)


def json_option(command: F) -> F:
    """Add `--json`."""
    decorate: Callable[[F], F] = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
    return decorate(command)


@contextlib.contextmanager
def one_line() -> Iterator[None]:
    """Tell what a call refuses, or the system denies it, in one line instead of a traceback.

    Around calls that take what the command line gave, no more: elsewhere such an error is unexpected.
    """
    try:
        yield
    except (FrayError, BrokenPipeError):  # known to all verbs
        raise
    except OSError as error:  # a certificate that is not good is also a ValueError
        raise click.ClickException(str(error)) from error
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def open_cluster(spec: str | None) -> "Cluster":
    """Return the cluster of a spec, the current one without."""
    from fray._discovery.current import create_cluster, current_cluster

    with one_line():
        return current_cluster() if spec is None else create_cluster(spec)


def find_job(cluster: "Cluster", text: str) -> "JobId":
    """Return the one job whose id, or the last part of whose id, starts with `text`.

    Raises:
        JobNotFoundError: There is none.
        UsageError: There are several; the message lists them.
    """
    from fray._values.errors import JobNotFoundError

    ids = [info.job_id for info in cluster.list_jobs()]
    exact = [job_id for job_id in ids if job_id == text]
    found = exact or [
        job_id for job_id in ids if text and (job_id.startswith(text) or job_id.leaf.startswith(text))
    ]
    if len(found) > 1:
        shown = ", ".join(found[:5]) + (", ..." if len(found) > 5 else "")
        raise click.UsageError(f"{text!r} fits {len(found)} jobs: {shown}")
    if not found:
        raise JobNotFoundError(text)
    return found[0]


def as_dict(info: "JobInfo") -> dict[str, Any]:
    """Return a job as `--json` prints it."""
    return {**info.to_dict(), "exit_code": info.exit_code}


def print_json(value: Any) -> None:
    """Print data for programs."""
    click.echo(json.dumps(value, indent=2))


def talk(text: str) -> None:
    """Say something to a person: on stderr, where it is in no data."""
    click.echo(text, err=True)


def duration(start: float | None, end: float | None) -> str:
    """Write the time from `start` to `end`, or to now: `0.4s`, `42s`, `3m10s`, `2h05m`, `3d4h`."""
    if start is None:
        return "-"
    passed = max(0.0, (time.time() if end is None else end) - start)
    if passed < 10:
        return f"{passed:.1f}s"
    minutes, seconds = divmod(int(passed), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours}h"
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{seconds:02}s" if minutes else f"{seconds}s"


def first_line(text: str | None) -> str:
    """Return what of a message fits a table."""
    return text.partition("\n")[0] if text else ""


def in_words(size: int) -> str:
    """Write an amount of memory or disk: `800 MiB`."""
    from fray._jobs.usage import in_words as words

    return words(size)
