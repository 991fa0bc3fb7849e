"""One launch key is one job, whatever becomes of launchers and schedulers. Nothing of Ray runs."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_dashboard import FakeDashboard, fake_dashboard
from head_in_memory import SCHEDULER, HeadInMemory, scheduler_of
from replicas_in_memory import EmptyCluster, ReplicasInMemory

from fray import ClusterUnavailableError, JobNotFoundError
from fray.cluster import Entrypoint, JobRequest, JobStatus
from fray.testing.gates import until
from fray_ray import RayCluster
from fray_ray._jobs_client import JobsClient

REQUEST = JobRequest("keyed", Entrypoint.from_binary("true"))
Launch = Callable[[], str]


@pytest.fixture
def dashboard(head: HeadInMemory, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDashboard]:
    with fake_dashboard(head) as dashboard:
        monkeypatch.setattr(f"{SCHEDULER}._client", lambda: JobsClient(dashboard.url))
        yield dashboard


@pytest.fixture(params=["a job", "a sweep"])
def launch(request: pytest.FixtureRequest, dashboard: FakeDashboard) -> Launch:
    """Launch with one key."""
    cluster = RayCluster(dashboard.url, reconnect_timeout=0.0)
    if request.param == "a job":
        return lambda: cluster.launch(REQUEST, key="k")
    return lambda: cluster.launch_many([REQUEST, REQUEST], key="k")


class Launching(threading.Thread):
    """A launch that goes on beside the test, and what it returned."""

    def __init__(self, launch: Launch) -> None:
        super().__init__()
        self.launch, self.job_id = launch, ""
        self.start()

    def run(self) -> None:
        self.job_id = self.launch()

    def ended(self) -> str:
        self.join(60)
        return self.job_id


def queued(head: HeadInMemory) -> list[str]:
    """Which jobs are queued, or carried."""
    return [name.removeprefix("fray-") for name in head.packages if name.endswith(".queued")]


def listed(head: HeadInMemory) -> list[str]:
    """The jobs with a key in Ray's table."""
    return [name for name, entry in head.entries().items() if "fray.key" in str(entry["metadata"])]


def die_when_queued(dashboard: FakeDashboard, launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launch, and have the answer to the last upload be lost."""
    store = dashboard.store

    def store_and_fail(path: str, data: bytes) -> None:
        store(path, data)
        if path.endswith(".queued"):
            dashboard.instead["upload"] = 503, b"the dashboard is going away", {}

    monkeypatch.setattr(dashboard, "store", store_and_fail)
    with pytest.raises(ClusterUnavailableError):
        launch()
    monkeypatch.setattr(dashboard, "store", store)
    dashboard.instead.clear()


def test_of_two_launches_with_one_key_at_the_same_moment_one_starts_a_job(
    launch: Launch,
    dashboard: FakeDashboard,
    head: HeadInMemory,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    launches = [Launching(launch) for _ in range(2)]
    until(lambda: len(queued(head)) == 2, "the scheduler is still starting, and finds both")
    with scheduler_of(head, monkeypatch, tmp_path):
        (job_id,) = {each.ended() for each in launches}
        assert listed(head) == [job_id]
        assert queued(head) == [f"{job_id}.queued"]


def test_a_launch_finds_the_job_of_a_launcher_that_ended_before_the_job_was_taken(
    launch: Launch,
    dashboard: FakeDashboard,
    head: HeadInMemory,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    die_when_queued(dashboard, launch, monkeypatch)
    (first,) = queued(head)
    again = Launching(launch)
    until(lambda: len(queued(head)) == 2, "it does not know of the first one")
    with scheduler_of(head, monkeypatch, tmp_path):
        assert again.ended() == first.removesuffix(".queued")
        assert launch() == again.job_id
        assert listed(head) == [again.job_id]


def test_a_job_that_was_taken_keeps_its_key_under_another_scheduler(
    dashboard: FakeDashboard, head: HeadInMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The one before was killed before the job was in Ray's table."""
    cluster = RayCluster(dashboard.url, reconnect_timeout=0.0)
    with scheduler_of(head, monkeypatch, tmp_path):
        first = cluster.launch(REQUEST, key="k")
    head.remove_entry(first)
    again = Launching(lambda: cluster.launch(REQUEST, key="k"))
    until(lambda: len(queued(head)) == 2, "it does not know of the first one")
    for name, data in head.packages.items():
        if name.startswith(f"fray-{first}."):  # the last in the list of names
            head.remove(name)
            head.put(name, data)
    with scheduler_of(head, monkeypatch, tmp_path):
        assert again.ended() == first
        assert listed(head) == [first]


def test_a_job_that_has_begun_goes_on_although_another_version_started_one_with_its_key(
    dashboard: FakeDashboard, head: HeadInMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with scheduler_of(head, monkeypatch, tmp_path):
        job_id = RayCluster(dashboard.url).launch(REQUEST, key="k")
    entry = head.entry(job_id) or {}
    other = {**entry["metadata"], "fray.job_id": "other-1", "fray.since": "1"}
    head.add_entry("other-1", {**entry, "metadata": other})
    head.calls.clear()
    with scheduler_of(head, monkeypatch, tmp_path):
        until(lambda: f"put fray-{job_id}.environ" in head.calls, "it is carried")


def test_a_job_whose_launch_was_looked_after_is_taken_when_ray_has_forgotten_what_was_looked_at(
    dashboard: FakeDashboard, head: HeadInMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its launcher has ended; Ray deletes a package ten minutes after a look at it."""
    die_when_queued(dashboard, lambda: RayCluster(dashboard.url).launch(REQUEST, key="k"), monkeypatch)
    (first,) = (name.removesuffix(".queued") for name in queued(head))
    monkeypatch.setattr(dashboard, "forgets_packages", True)
    with pytest.raises(JobNotFoundError):
        RayCluster(dashboard.url).poll(first)
    with scheduler_of(head, monkeypatch, tmp_path):
        until(lambda: listed(head) == [first], "it is taken")


def test_a_job_that_has_waited_is_found_while_ray_takes_it_when_ray_has_forgotten_what_was_looked_at(
    dashboard: FakeDashboard,
    head: HeadInMemory,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    def submit(job: dict[str, Any]) -> tuple[int, Any]:
        polls.append(Launching(lambda: cluster.poll(job_id).status))
        look = f"/api/packages/gcs/fray-{job_id}.waiting"
        until(lambda: dashboard.asked.count(look) > looks + 1 or not polls[0].is_alive(), "it looks again")
        return take(job)

    take, polls = dashboard.submit, list[Launching]()
    cluster = RayCluster(dashboard.url, reconnect_timeout=0.0)
    with scheduler_of(head, monkeypatch, tmp_path):
        job_id = cluster.launch(REQUEST, key="k")
    head.remove(f"fray-{job_id}.waiting")
    looks = dashboard.asked.count(f"/api/packages/gcs/fray-{job_id}.waiting")
    ReplicasInMemory(monkeypatch)
    monkeypatch.setattr(dashboard, "submit", submit)
    with scheduler_of(head, monkeypatch, tmp_path, EmptyCluster):
        until(lambda: bool(polls), "it is given to Ray")
        assert polls[0].ended() == JobStatus.PENDING


def test_a_retry_that_the_head_has_lost_says_that_no_scheduler_took_it(
    dashboard: FakeDashboard, head: HeadInMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def store_nothing_of_it(path: str, data: bytes) -> None:
        if "-r2." not in path:
            store(path, data)

    store = dashboard.store
    cluster = RayCluster(dashboard.url, scheduler_timeout=0.5)
    with scheduler_of(head, monkeypatch, tmp_path):
        job_id = cluster.launch(REQUEST, key="k")
        cluster.terminate(job_id, grace=0.0)
    monkeypatch.setattr(dashboard, "store", store_nothing_of_it)
    with pytest.raises(ClusterUnavailableError, match="did not take job"):
        cluster.retry(job_id)


def test_a_key_is_free_when_its_job_was_removed(
    dashboard: FakeDashboard, head: HeadInMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster = RayCluster(dashboard.url)
    head.add_entry("odd", {"status": "RUNNING", "metadata": 5})
    with scheduler_of(head, monkeypatch, tmp_path):
        first = cluster.launch(REQUEST, key="k")
        cluster.terminate(first, grace=0.0)
        cluster.remove(first)
        second = cluster.launch(REQUEST, key="k")
        assert second != first
        assert cluster.launch(REQUEST, key="k") == second
        assert listed(head) == [second]
