"""The list of jobs, and of the members of a sweep: filtered, sorted and cut to pages here."""

from collections.abc import Mapping, Sequence

from fray._cli.shared import age, duration, first_line, in_numbers, progress
from fray._ui.listing import Column, Query, choices, hidden_inputs, page_of, pager, row, search_field, table
from fray._ui.markup import NOTHING, Html, join, shortened, stranger, tag
from fray._ui.pictures import shares
from fray._ui.shared_calls import Looked
from fray._ui.shell import action, empty, failure, loading, more_loading
from fray._ui.watching import JobList
from fray._values.job_states import JobInfo, TaskStatus
from fray._values.job_words import JobStatus

STATUSES = ("pending", "running", "failed", "succeeded", "stopped")
SORTS = ("-submitted", "submitted", "-finished", "finished", "name", "-name", "status", "-status")
_LONGEST_MESSAGE = 300
_COLUMNS = (
    Column("job", "name", "name"),
    Column("status", "status"),
    Column("replicas", None, "number"),
    Column("launched", "submitted", "short"),
    Column("ran", None, "short"),
    Column("message", None, "message"),
    Column("", None, "acts"),
)


def jobs_filter(query: Query, label: str) -> Html:
    """Return the form that filters a list of jobs."""
    given = query.text("q")
    field = search_field("q", given, "name, id, label or message")
    kept = hidden_inputs(query, "cluster", "id", "status", "sort")
    send = tag("noscript", tag("button", "Filter", type="submit"))
    return tag("form", tag("label", label, for_="q"), field, kept, send, class_="filter", method="get")


def jobs_part(looked: Looked[JobList], query: Query, *, what: str = "jobs") -> Html:
    """Return a list of jobs as an address requests it."""
    status = query.choice("status", ("", *STATUSES))
    by_place = what == "members"
    sort = query.choice("sort", ("submitted", *SORTS) if by_place else SORTS)
    problem = failure(looked, f"list of {what}")
    if looked.loading:
        return loading(what)
    if looked.value is None:
        return problem
    jobs = looked.value
    if jobs.unread:
        known = f"{len(jobs.infos):,} of {len(jobs.infos) + jobs.unread:,} {what}"
        problem = join([problem, more_loading(f"Reading {what}: {known} are shown and searched so far…")])
    elif not jobs.infos:
        return join(
            [problem, empty(f"No {what} yet. ", tag("code", "fray run -- COMMAND"), " launches one.")]
        )
    chosen = jobs.choose(query.text("q"), status, sort)
    found, counts = chosen.infos, chosen.counts
    named = sum(counts.values())
    options = [("", f"all {named:,}"), *((each, f"{each} {counts.get(each, 0):,}") for each in STATUSES)]
    chips = choices("Status", "status", options, query, status, page=None)
    if not found:
        none = empty(f"None of {len(jobs.infos):,} {what} fits. ", tag("a", "Show all", href=_all(query)))
        return join([problem, chips, none])
    shown, number = page_of(found, query.number("page"))
    first = number * 100 + 1
    keys = _labels_apart(jobs.infos) if by_place else ()
    columns = _with_labels(keys)
    rows = [
        row(columns, _cells(info, query, keys), key=info.job_id, place=place)
        for place, info in enumerate(shown, first)
    ]
    below = pager(query, number, len(shown), len(found), what)
    return join(
        [problem, chips, table(f"List of {what}", columns, rows, query, sort=sort, total=len(found)), below]
    )


def badge(status: JobStatus | str) -> Html:
    """Return a state: its name, and a colour."""
    return tag("span", str(status), class_=f"badge {status}")


def state(info: JobInfo) -> Html:
    """Return the state of a job with its reason beside it."""
    reason = reason_of(info)
    return join([badge(info.status), tag("span", f" {reason}", class_="reason") if reason else None])


def reason_of(info: JobInfo) -> str:
    """Return why a job ended as it did: the reason of the first replica that did; empty where plain."""
    return next(
        (said for task in info.tasks if (said := task_reason(task)) and task.status == info.status), ""
    )


def task_reason(task: TaskStatus) -> str:
    """Return why an attempt ended, where that is not plain."""
    if task.reason is None or task.status is JobStatus.SUCCEEDED or task.reason == str(task.status):
        return ""
    code = "" if task.exit_code is None else f" ({task.exit_code})"
    return f"{task.reason.replace('_', ' ')}{code}"


def job_link(job_id: str, query: Query, title: str | None = None) -> Html:
    """Return a link to a job's page; without a title, of its id."""
    cluster = query.text("cluster") or None
    href = Query({}).link("job", cluster=cluster, id=job_id)
    return tag("a", stranger(title or job_id), href=href, title=job_id)


def _all(query: Query) -> str:
    return query.link(q=None, status=None, page=None)


def _cells(info: JobInfo, query: Query, keys: Sequence[str]) -> list[Html | str]:
    message = info.error_message or info.pending_reason
    said: Html | str = first_line(message)[:_LONGEST_MESSAGE]
    if info.progress is not None and not message:
        said = in_numbers(info.progress)
    if info.warnings:
        warned = tag("span", f"{len(info.warnings)} warnings" if len(info.warnings) > 1 else "warning")
        said = join([said, " " if said else "", tag("span", warned, class_="warned")])
    count: Html | str = progress(info)
    if info.progress is not None:
        count = join([shares(info.progress), " ", count])
    ran = duration(info.started_at, info.finished_at)
    title = info.job_id if info.sweep is None or not keys else info.job_id.leaf
    return [
        join(
            [
                job_link(info.job_id, query, title),
                tag("span", " sweep", class_="kind") if info.is_sweep else None,
            ]
        ),
        state(info),
        count,
        age(info.submitted_at),
        ran,
        *(stranger(shortened(info.labels.get(key, ""), 200)) for key in keys),
        said,
        job_action(info, query, short=True) or "",
    ]


def job_action(info: JobInfo, query: Query, *, short: bool = False) -> Html | None:
    """Return what may be done about a job: to stop it, or to run it again where it did not succeed.

    Args:
        short: It is one of many such buttons: it names its job to users who do not see its row.
    """
    body = {"id": info.job_id, "cluster": query.text("cluster")}
    key = f"act {info.job_id}"
    what = f"sweep {info.job_id}, all its members" if info.is_sweep else f"job {info.job_id}"
    if not info.finished:
        question = (
            f"Stop {what} and the jobs that it launched? Their processes get SIGTERM, 10 s later SIGKILL."
        )
        label = f"Stop {info.job_id}" if short else None
        return action("Stop", "job/stop", body, question, danger=True, label=label, key=key)
    if info.status is JobStatus.SUCCEEDED:
        return None
    again = "what did not succeed of it runs again" if info.is_sweep else "it runs again as it was submitted"
    label = f"Retry {info.job_id}" if short else None
    return action(
        "Retry", "job/retry", body, f"Retry {what}? Under the same id {again}.", label=label, key=key
    )


def _with_labels(keys: Sequence[str]) -> tuple[Column, ...]:
    *first, message, acts = _COLUMNS
    return (*first, *(Column(key, None, "label") for key in keys), message, acts)


def _labels_apart(members: Sequence[JobInfo]) -> list[str]:
    """Return the labels by which the members of a sweep differ, the first few."""
    from fray._cli.status import parameters

    return parameters(members)[:6]


def place_choice(label: str, path: str, key: str, names: Sequence[str], query: Query) -> Html:
    """Return links to the jobs of each cluster, or the queues of each server, where there are several."""
    if len(names) < 2:
        return tag("span", stranger(names[0]), class_="where") if names else NOTHING
    chosen = query.text(key) or names[0]
    links = [
        tag(
            "a",
            stranger(name),
            href=Query({}).link(path, **{key: name}),
            class_="chip",
            aria_current="true" if name == chosen else None,
        )
        for name in names
    ]
    return tag("nav", *links, class_="chips", aria_label=label)


def facts_list(facts: Mapping[str, Html | str]) -> Html:
    """Return what is known of something, as terms and values."""
    rows = [join([tag("dt", what), tag("dd", said)]) for what, said in facts.items()]
    return tag("dl", *rows, class_="facts")
