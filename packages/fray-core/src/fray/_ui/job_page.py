"""A job: its state with the reason, what may be done about it, its attempts over time, what is known."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fray._cli.shared import age, duration, in_words
from fray._cli.status import endpoints_of, facts_of
from fray._ui.jobs_page import badge, facts_list, job_action, job_link, reason_of, task_reason
from fray._ui.listing import Column, Query, page_of, pager, row, table
from fray._ui.markup import NOTHING, UNKNOWN, Html, join, shortened, stranger, tag
from fray._ui.pictures import timeline
from fray._ui.shared_calls import Looked
from fray._ui.shell import failure, loading
from fray._values.job_states import JobInfo, TaskStatus

if TYPE_CHECKING:
    from fray._contracts.cluster import Cluster
    from fray._values.endpoints import Endpoint

_MOST_CHILDREN = 100
_LONGEST_MESSAGE = 20_000
_COLUMNS = (
    Column("replica", None, "number"),
    Column("attempt", None, "number"),
    Column("status"),
    Column("started", None, "short"),
    Column("ran", None, "short"),
    Column("CPU", None, "number"),
    Column("memory", None, "number"),
    Column("message", None, "message"),
)


@dataclass(frozen=True)
class JobView:
    """What is known of a job beside its state, which does not wait for it."""

    info: JobInfo
    endpoints: "Sequence[Endpoint]" = ()
    children: Sequence[JobInfo] = field(default_factory=list)


def look_at(cluster: "Cluster", job_id: str) -> JobView:
    """Read what is known of a job; the members of a sweep are a list of their own."""
    info = cluster.poll(job_id)
    below = cluster.list_jobs(parent=job_id) if info.children and not info.is_sweep else []
    return JobView(info, endpoints_of(cluster, info), below)


def job_part(looked: Looked[JobInfo], query: Query) -> Html:
    """Return how a job is doing."""
    if looked.loading:
        return loading("job")
    if looked.value is None:
        return failure(looked, "job")
    info = looked.value
    return join(
        [
            failure(looked, "job"),
            _head(info, query),
            _message(info),
            *(tag("p", f"Warning: {warning}", class_="warning") for warning in info.warnings),
            _unseen(info),
            NOTHING if info.is_sweep else _attempts(info, query),
        ]
    )


def about_part(looked: Looked[JobView], query: Query) -> Html:
    """Return what does not change of a job, or little."""
    if looked.loading:
        return loading("job")
    problem = failure(looked, "description of the job")
    return problem if looked.value is None else join([problem, facts_list(_facts(looked.value, query))])


def _head(info: JobInfo, query: Query) -> Html:
    reason = reason_of(info)
    said = [badge(info.status)]
    if reason:
        said.append(tag("span", reason, class_="reason"))
    ran = f"ran {duration(info.started_at, info.finished_at)}" if info.started_at else "has not run"
    said.append(tag("span", f"{ran}, launched {age(info.submitted_at)}", class_="when"))
    return tag("div", *said, tag("span", job_action(info, query), class_="actions"), class_="head")


def _message(info: JobInfo) -> Html:
    said = info.error_message or info.pending_reason
    if not said:
        return NOTHING
    first, _, rest = said[:_LONGEST_MESSAGE].partition("\n")
    more = tag("pre", rest, tabindex="0") if rest else None
    return tag(
        "div", tag("p", tag("strong", first)), more, class_="said failed" if info.error_message else "said"
    )


def _unseen(info: JobInfo) -> Html:
    seen = info.last_seen
    if seen is None:
        return NOTHING
    where = f"{seen.host}, {age(seen.time)}"
    return tag(
        "p",
        f"Warning: this host cannot check whether it runs; its supervisor was last seen on {where}.",
        class_="warning",
    )


def _attempts(info: JobInfo, query: Query) -> Html:
    attempts = [task for replica in info.tasks for task in (*replica.previous, replica)]
    shown, number = page_of(attempts, query.number("attempts"))
    first = number * 100 + 1
    rows = [
        row(_COLUMNS, _attempt(task), key=f"{task.replica}.{task.attempt}", place=place)
        for place, task in enumerate(shown, first)
    ]
    listed = table("Attempts of each replica", _COLUMNS, rows, query, total=len(attempts))
    below = pager(query, number, len(shown), len(attempts), "attempts", "attempts")
    return join([tag("h2", "Attempts"), timeline(info, time.time()), listed, below])


def _attempt(task: TaskStatus) -> list[Html | str]:
    reason = task_reason(task)
    started = task.started_at
    first = (task.error_message or "").partition("\n")[0][:300]
    return [
        str(task.replica),
        str(task.attempt) if task.attempt else UNKNOWN,
        join([badge(task.status), tag("span", f" {reason}", class_="reason") if reason else None]),
        UNKNOWN if started is None else time.strftime("%m-%d %H:%M:%S", time.localtime(started)),
        duration(started, task.finished_at).replace("-", UNKNOWN),
        UNKNOWN if task.cpu_time is None else f"{task.cpu_time:.1f} s",
        UNKNOWN if task.peak_memory is None else in_words(task.peak_memory),
        first,
    ]


def _facts(view: JobView, query: Query) -> Mapping[str, Html | str]:
    """The facts that `fray status` prints; other jobs are links."""
    info = view.info
    said: dict[str, Html | str] = {"id": stranger(info.job_id)}
    said |= {what: shortened(text) for what, text in facts_of(info, view.endpoints, ())}
    if info.after:
        said["after"] = _links(info.after, query)
    if info.sweep is not None:
        said["sweep"] = job_link(info.sweep, query)
    elif info.job_id.parent is not None:
        said["launched by"] = job_link(info.job_id.parent, query)
    if view.children:
        latest = view.children[-_MOST_CHILDREN:]
        rows = [tag("li", badge(each.status), " ", job_link(each.job_id, query)) for each in latest]
        more = len(view.children) - len(latest)
        said["children"] = tag("ul", *rows, tag("li", f"{more} older ones") if more else None)
    else:
        said.pop("children", None)
    return said


def _links(job_ids: Sequence[str], query: Query) -> Html:
    more = len(job_ids) - _MOST_CHILDREN
    rows = [tag("li", job_link(each, query)) for each in job_ids[:_MOST_CHILDREN]]
    return tag("ul", *rows, tag("li", f"{more} more") if more > 0 else None)
