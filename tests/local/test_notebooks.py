"""What notebooks show of jobs, sweeps and clusters, and of `map(progress=True)`."""

import sys
from collections.abc import Iterable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fray.cluster import ClusterBase, JobId, JobInfo, JobPlan, JobStatus, TaskStatus
from fray.job import JobContext, ThreadContext

HOSTILE = "<img src=x onerror=alert(1)>\x1b[31m\u202e"


def info(job_id: str = "train-1", **more: Any) -> JobInfo:
    task = TaskStatus(replica=0, status=JobStatus.FAILED, attempt=1, exit_code=1, reason="out_of_memory")  # type: ignore[arg-type]
    given: dict[str, Any] = {"name": job_id, "status": JobStatus.FAILED, "tasks": (task,)}
    return JobInfo(job_id=JobId(job_id), **(given | more))


def html_of(shown: Any) -> str:
    written: str = shown._repr_html_()
    return written


def test_a_job_says_how_it_ended() -> None:
    shown = html_of(info(error_message="replica 0 was killed\nits last lines:", warnings=("files changed",)))
    for text in (
        "train-1",
        ">failed</span> out of memory",
        "replica 0 was killed\nits last lines:",
        "files changed",
    ):
        assert text in shown
    assert '<pre class="fray-text">JobInfo(' in shown  # where the style is dropped this is what is seen


def test_a_sweep_counts_its_members() -> None:
    shown = html_of(info(tasks=(), progress={"succeeded": 3, "failed": 1, "running": 0}))
    assert "3 succeeded, 1 failed<" in shown


def test_text_of_strangers_stays_text() -> None:
    shown = html_of(
        info(HOSTILE, name=HOSTILE, error_message=f"{HOSTILE}\n{HOSTILE}", labels={HOSTILE: HOSTILE})
    )
    assert "<img" not in shown
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "<script" not in shown


class Listed(ClusterBase):
    """Has jobs, or a reason to have none."""

    def __init__(self, jobs: Iterable[JobInfo] | Exception) -> None:
        super().__init__("listed?at=<here>")
        self._jobs = jobs

    def _ids(self) -> Iterable[str]:
        if isinstance(self._jobs, Exception):
            raise self._jobs
        return [job.job_id for job in self._jobs]

    def _info(self, job_id: str) -> JobInfo | None:
        assert not isinstance(self._jobs, Exception)
        return next((job for job in self._jobs if job.job_id == job_id), None)

    def _submit(self, plan: JobPlan) -> None:
        raise NotImplementedError

    def _read_log(self, job_id: str, replica: int | None, attempt: int, offset: int) -> bytes:
        return b""

    def _stop(self, job_id: str, grace: float) -> None:
        raise NotImplementedError


def test_a_cluster_shows_its_latest_jobs() -> None:
    shown = html_of(Listed([info(f"train-{number:02}", submitted_at=float(number)) for number in range(30)]))
    assert "listed?at=&lt;here&gt;" in shown
    assert shown.index("train-29") < shown.index("train-28")
    assert "train-09" not in shown
    assert "and 10 older ones" in shown
    assert "no jobs yet" in html_of(Listed([]))


def test_a_cluster_that_is_away_says_so() -> None:
    assert "cannot be listed: ConnectionError: no head" in html_of(Listed(ConnectionError("no head")))


@pytest.fixture
def context() -> Iterator[JobContext]:
    with ThreadContext(max_workers=2) as context:
        yield context


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stand in for a notebook's IPython: return what the place of a bar has shown."""
    shown: list[str] = []
    place = SimpleNamespace(update=shown.append)

    def display(first: str, *, display_id: bool) -> SimpleNamespace:
        assert display_id
        shown.append(first)
        return place

    ipython, module = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    module.display, module.HTML = display, str  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return shown


def test_map_has_its_bar_in_a_notebook(notebook: list[str], context: JobContext) -> None:
    assert list(context.map(abs, range(-50, 0), progress=True)) == list(range(50, 0, -1))
    assert 'value="0" max="50"' in notebook[0]
    assert 'value="50" max="50"' in notebook[-1]


def test_a_bar_without_a_length_has_no_end(notebook: list[str], context: JobContext) -> None:
    assert list(context.map(abs, (number for number in (-1, -2)), progress=True)) == [1, 2]
    assert "<progress></progress>" in notebook[-1]
    assert "2 0." in notebook[-1]
