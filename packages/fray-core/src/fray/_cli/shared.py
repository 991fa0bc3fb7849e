"""What the verbs on jobs share: which cluster, which job, how it is shown."""

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fray._values.errors import FrayError
from fray._values.words import age as age
from fray._values.words import duration as duration
from fray._values.words import in_words as in_words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fray._contracts.cluster import Cluster
    from fray._values.jobs import JobId, JobInfo

F = TypeVar("F", bound=Callable[..., Any])
_MOST_SHOWN = 10
SHORTENED = "…"
STYLES = {"succeeded": "green", "failed": "red", "stopped": "yellow", "running": "cyan", "pending": "dim"}


def cluster_option(command: F) -> F:
    """Add `--cluster SPEC`."""
    decorate: Callable[[F], F] = click.option(
        "--cluster",
        "spec",
        metavar="SPEC",
        help="The cluster, e.g. local or ray, or a name that `fray config` gives one; else the current one.",
    )
    return decorate(command)


def json_option(command: F) -> F:
    """Add `--json`."""
    decorate: Callable[[F], F] = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
    return decorate(command)


@contextlib.contextmanager
def one_line() -> Iterator[None]:
    """Report a refused call, or an error of the system, in one line instead of a traceback.

    Around calls that take what the command line gave, no more: elsewhere such an error is unexpected.
    """
    try:
        yield
    except (FrayError, BrokenPipeError):  # known to all verbs
        raise
    except OSError as error:  # a certificate that is not good is also a ValueError
        # Only `getcwd` finds nothing under no name.
        gone = isinstance(error, FileNotFoundError) and error.filename is None
        message = "the current directory is not there any more; change to another" if gone else str(error)
        raise click.ClickException(message) from error
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def open_cluster(spec: str | None) -> "Cluster":
    """Return the cluster of a spec, or of a name that a file gives to one; without, the current one."""
    from fray._discovery.current import create_cluster, current_cluster

    named, chosen = _named(spec)
    with one_line():
        return current_cluster() if chosen else create_cluster(named)


def cluster_spec(spec: str | None) -> str | None:
    """Return the spec of the cluster that `open_cluster` would open; None where nothing names one."""
    return _named(spec)[0]


def _named(spec: str | None) -> tuple[str | None, bool]:
    """Return the spec that is meant, and whether it is that of the current cluster.

    The current cluster of the program or its environment, which may have such a name too, wins over that of
    a file.
    """
    from fray._cli.settings import settings
    from fray._discovery.current import cluster_is_chosen, cluster_of_environment

    said = settings()
    if spec is None and not cluster_is_chosen():
        spec = said.text("cluster")
    name = spec or cluster_of_environment()
    named = said.text(f"clusters.{name}") if name else None
    return named or name, named is None and spec is None


def find_job(cluster: "Cluster", text: str) -> "JobId":
    """Return the one job whose id, or the last part of whose id, starts with `text` or ends with it.

    A job takes precedence over those that it launched, whose ids start as its own does. `SWEEP/3` may shorten
    the sweep's id too, and an id that a list has shortened (`long-na…-3f9a2c`) is taken as it is shown.

    Raises:
        JobNotFoundError: There is none.
        UsageError: There are several; the message lists them.
    """
    from fray._values.errors import JobNotFoundError

    with contextlib.suppress(JobNotFoundError, ValueError):
        return cluster.poll(text).job_id  # the whole id, as a rule: no need to look at all others
    head, slash, leaf = text.rpartition("/")
    if slash and head:
        parent = find_job(cluster, head)
        with contextlib.suppress(JobNotFoundError, ValueError):
            return cluster.poll(f"{parent}/{leaf}").job_id
        infos = {info.job_id: info for info in cluster.list_jobs(parent=parent)}
    else:
        infos = {info.job_id: info for info in cluster.list_jobs()}
    found = [job_id for job_id in infos if leaf and _fits(job_id, leaf)]
    found = [job_id for job_id in found if not is_below(job_id, set(found))]
    if len(found) > 1:
        # The latest last, where the eye is: it is the one that is meant, as a rule.
        rows = [f"  {each}  {infos[each].status}" for each in found[-_MOST_SHOWN:]]
        more = [f"  and {len(found) - _MOST_SHOWN} older ones"] if len(found) > _MOST_SHOWN else []
        lines = "\n".join([*more, *rows])
        raise click.UsageError(f"{text!r} fits {len(found)} jobs, give more of the id:\n{lines}")
    if not found:
        spec = getattr(cluster, "spec", None)
        where = "this cluster" if spec is None else f"the cluster {spec!r}"
        raise JobNotFoundError(text, f"{where}; `fray list` shows its jobs")
    return found[0]


def on_each(
    cluster: "Cluster",
    texts: "Sequence[str]",
    act: "Callable[[JobId], object]",
    show: "Callable[[list[JobId]], None]",
) -> None:
    """Do something to the jobs that these name, once each of them is found; show those to which it was done.

    A job that refuses does not keep it from the others. The errors are printed, and one of them is raised.
    """
    done: list[JobId] = []
    errors: list[click.ClickException | FrayError] = []
    for job_id in [find_job(cluster, text) for text in texts]:
        try:
            with one_line():
                act(job_id)
        except (click.ClickException, FrayError) as error:
            errors.append(error)
        else:
            done.append(job_id)
    if done:
        try:
            with one_line():
                show(done)
        except (click.ClickException, FrayError) as error:
            talk(f"done, but cannot be shown: {' '.join(done)}")
            errors.append(error)
    if errors:
        # The last one has the exit code: that of a wrong call only where every error is one.
        *others, last = sorted(errors, key=lambda each: not isinstance(each, click.UsageError))
        for each in others:
            talk(f"fray: {each}")
        raise last


def _fits(job_id: "JobId", text: str) -> bool:
    start, shortened, end = text.partition(SHORTENED)
    if shortened:
        return any(each.startswith(start) and each.endswith(end) for each in (job_id, job_id.leaf))
    return job_id.startswith(text) or job_id.leaf.startswith(text) or job_id.endswith(f"-{text}")


def is_below(job_id: "JobId", others: "set[JobId]") -> bool:
    """Return whether one of `others` launched a job, itself or by the jobs that it launched."""
    parent = job_id.parent
    while parent is not None:
        if parent in others:
            return True
        parent = parent.parent
    return False


def as_dict(info: "JobInfo") -> dict[str, Any]:
    """Return a job as `--json` prints it."""
    return {**info.to_dict(), "exit_code": info.exit_code}


def print_json(value: Any) -> None:
    """Print data for programs."""
    click.echo(json.dumps(value, indent=2))


def talk(text: str) -> None:
    """Print a message for people: on stderr, apart from the data."""
    click.echo(text, err=True)


def styled(info: "JobInfo") -> str:
    """Return the status of a job in its colour."""
    # click drops the colour where stdout is not a terminal.
    colour = STYLES[info.status]
    return click.style(info.status, dim=True) if colour == "dim" else click.style(info.status, fg=colour)


def print_states(cluster: "Cluster", job_ids: "Sequence[JobId]", *, as_json: bool) -> None:
    """Print how jobs read now, a line for each."""
    infos = [cluster.poll(job_id) for job_id in job_ids]
    if as_json:
        print_json([as_dict(info) for info in infos])
        return
    for info in infos:
        click.echo(f"{info.job_id}  {styled(info)}")


def progress(info: "JobInfo") -> str:
    """How many replicas of how many are in the job's own state: `2/8`; of a sweep, members that succeeded."""
    if info.progress is not None:
        return f"{info.progress.get('succeeded', 0)}/{sum(info.progress.values())}"
    return f"{sum(task.status == info.status for task in info.tasks)}/{len(info.tasks)}"


def in_numbers(counts: "Mapping[str, int]") -> str:
    """Write how many members of a sweep have each status: `3 succeeded, 1 running`."""
    return ", ".join(f"{count} {status}" for status, count in counts.items() if count)


def first_line(text: str | None) -> str:
    """Return what of a message fits a table."""
    return text.partition("\n")[0] if text else ""
