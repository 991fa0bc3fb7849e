"""How jobs, sweeps and clusters show themselves in a notebook.

A notebook that is not trusted, and a site that shows one, drop the style: then the plain text is seen.
"""

from __future__ import annotations

import html
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from fray._values.words import age, duration

_MOST_ROWS = 20
_LONGEST = 200
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_COLOURS = {
    "succeeded": "#1a7f4b",
    "failed": "#c62f2f",
    "stopped": "#8a6100",
    "running": "#1f5fd6",
    "pending": "#5b6572",
}
_STYLE = """<style>
.fray-text { display: none; }
.fray-shown { display: block !important; }
.fray-shown td, .fray-shown th { text-align: left !important; }
</style>"""


class ShownJob(Protocol):
    """What is shown of a job; see `JobInfo`."""

    @property
    def job_id(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def submitted_at(self) -> float | None: ...
    @property
    def started_at(self) -> float | None: ...
    @property
    def finished_at(self) -> float | None: ...
    @property
    def progress(self) -> Mapping[str, int] | None: ...
    @property
    def tasks(self) -> Sequence[Any]: ...
    @property
    def error_message(self) -> str | None: ...
    @property
    def pending_reason(self) -> str | None: ...
    @property
    def warnings(self) -> Sequence[str]: ...


def job_html(info: ShownJob) -> str:
    """Return a job, or a sweep, as a notebook shows it."""
    facts = [
        ("status", _status(info)),
        ("ran", _text(duration(info.started_at, info.finished_at))),
        ("launched", _text(age(info.submitted_at))),
    ]
    if info.progress is not None:
        counts = ", ".join(f"{count} {status}" for status, count in info.progress.items() if count)
        facts.append(("members", _text(counts)))
    elif info.tasks:
        facts.append(("replicas", _text(len(info.tasks))))
    said = info.error_message or info.pending_reason
    if said:
        facts.append(("message", f"<pre>{_text(said[:2000], lines=True)}</pre>"))
    facts += [("warning", _text(warning)) for warning in info.warnings]
    rows = "".join(f"<tr><th>{what}</th><td>{text}</td></tr>" for what, text in facts)
    return _shown(repr(info), f"<strong>{_text(info.job_id)}</strong><table>{rows}</table>")


def jobs_html(title: str, infos: Sequence[ShownJob] | str) -> str:
    """Return a cluster with its latest jobs as a notebook shows it; a text says why there are none."""
    head = f"<strong>{_text(title)}</strong>"
    if isinstance(infos, str):
        return _shown(f"{title}\n{infos}", f"{head}<p>{_text(infos)}</p>")
    latest = list(infos)[-_MOST_ROWS:][::-1]
    rows = "".join(_row(info) for info in latest)
    columns = "".join(f"<th>{name}</th>" for name in ("job", "status", "launched", "ran", "message"))
    more = len(infos) - len(latest)
    rest = f"<p>and {more:,} older ones</p>" if more else ""
    shown = f"{head}<table><tr>{columns}</tr>{rows}</table>{rest}" if latest else f"{head}<p>no jobs yet</p>"
    plain = "\n".join([title, *(f"{info.job_id}  {info.status}" for info in latest)])
    return _shown(plain, shown)


def bar_html(label: str, done: int, total: int | None, seconds: float) -> str:
    """Return a bar of progress as a notebook shows it."""
    of = "" if total is None else f"/{total}"
    passed = duration(0.0, seconds)
    told = f"{_text(label)} {done}{of} {passed}"
    limit = "" if total is None else f' value="{done}" max="{max(total, 1)}"'
    return f"<progress{limit}></progress> {told}"


def notebook_display() -> Any:
    """Return `IPython.display` where this is a notebook, and None elsewhere; imports nothing."""
    ipython = sys.modules.get("IPython")
    if ipython is None:
        return None
    shell = ipython.get_ipython()
    # A terminal has no kernel: what is not text is not shown there.
    if shell is None or getattr(shell, "kernel", None) is None:
        return None
    from importlib import import_module

    return import_module("IPython.display")


def _row(info: ShownJob) -> str:
    said = (info.error_message or info.pending_reason or "").partition("\n")[0]
    cells = [
        _text(info.job_id),
        _status(info),
        _text(age(info.submitted_at)),
        _text(duration(info.started_at, info.finished_at)),
        _text(said),
    ]
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _status(info: ShownJob) -> str:
    reason = next(
        (task.reason for task in info.tasks if task.status == info.status and task.reason is not None), None
    )
    why = f" {_text(reason.replace('_', ' '))}" if reason is not None and info.status != "succeeded" else ""
    return f'<span style="color: {_COLOURS[info.status]}">{info.status}</span>{why}'


def _shown(plain: str, shown: str) -> str:
    fallback = f'<pre class="fray-text">{_text(plain[:20_000], lines=True)}</pre>'
    return f'<div>{_STYLE}{fallback}<div class="fray-shown" style="display: none">{shown}</div></div>'


def _text(value: object, *, lines: bool = False) -> str:
    given = str(value) if lines else str(value)[:_LONGEST]
    kept = (
        "\n".join(_CONTROLS.sub("\ufffd", line) for line in given.split("\n"))
        if lines
        else _CONTROLS.sub("\ufffd", given)
    )
    return html.escape(kept)
