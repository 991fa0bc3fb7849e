"""How a job is found in Ray's table: its runs, the members of a sweep, what a retry has. Needs no cluster."""

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import pytest
from fake_dashboard import FakeDashboard, fake_dashboard

from fray import ClusterUnavailableError, JobNotFoundError, ResourceConfig
from fray.cluster import Entrypoint, ExitReason, JobInfo, JobRequest, JobStatus
from fray_ray import RayCluster

ABOUT = {"entrypoint": "train", "labels": {"team": "a"}, "resources": ResourceConfig(cpu=2).to_dict()}
ENTRY = "/api/jobs/"


@pytest.fixture
def table() -> Iterator[FakeDashboard]:
    with fake_dashboard() as dashboard:
        yield dashboard


def add(
    table: FakeDashboard,
    job_id: str,
    status: str = "RUNNING",
    *,
    tries: int = 1,
    state: str | None = None,
    **more: Any,
) -> None:
    """Add an entry as Ray gives it, with the state that a driver wrote."""
    named = {"job_id": job_id, "name": "train", "owner": "somebody", "replicas": "1", "tries": str(tries)}
    if state is not None:
        task = {"replica": 0, "status": state, "attempt": tries}
        info: dict[str, Any] = {"job_id": job_id, "name": "train", "status": state, "tasks": [task]}
        if "members" in more:
            info["progress"] = {"failed": 1}
        named["info"] = json.dumps(info)
    metadata = {f"fray.{name}": text for name, text in {**named, "about": json.dumps(ABOUT), **more}.items()}
    submission = job_id.replace("/", "~") + ("" if tries == 1 else f"-r{tries}")
    table.add(submission, status, metadata, start_time=1_000, end_time=2_000)


def found(table: FakeDashboard, job_id: str) -> JobInfo:
    return RayCluster(table.url).poll(job_id)


def test_a_job_is_what_its_latest_run_is(table: FakeDashboard) -> None:
    add(table, "a-1", "RUNNING", tries=2, state="running")
    add(table, "a-1", "FAILED", state="failed")
    cluster = RayCluster(table.url)
    assert cluster.poll("a-1").status is JobStatus.RUNNING
    assert [(info.job_id, info.status) for info in cluster.list_jobs()] == [("a-1", JobStatus.RUNNING)]
    with pytest.raises(JobNotFoundError):
        cluster.poll("a-2")


def test_a_job_keeps_its_place_in_the_list_when_ray_starts_its_process(table: FakeDashboard) -> None:
    """Ray makes an entry of its own then, and that is younger."""
    add(table, "waited-1", since="500")
    assert found(table, "waited-1").submitted_at == 0.5


def test_a_job_is_in_lists_while_ray_takes_it(table: FakeDashboard) -> None:
    """Ray takes no job whose id its table has: meanwhile the entry of one that waited is under another id."""
    add(table, "waited-1", "PENDING", waits="1")
    standing = table.entries.pop("waited-1")
    table.add("waited-1.starting", "PENDING", standing["metadata"], start_time=1_000)
    cluster = RayCluster(table.url)

    def listed() -> list[tuple[str, JobStatus]]:
        return [(info.job_id, info.status) for info in cluster.list_jobs()]

    assert listed() == [("waited-1", JobStatus.PENDING)]
    add(table, "waited-1", state="running")
    assert listed() == [("waited-1", JobStatus.RUNNING)]


@pytest.mark.parametrize(("status", "state"), [("RUNNING", "running"), ("SUCCEEDED", "succeeded")])
def test_a_run_that_succeeded_or_goes_on_is_the_last(table: FakeDashboard, status: str, state: str) -> None:
    add(table, "a-1", status, state=state)
    assert found(table, "a-1").status == state
    assert [path for path in table.asked if path.startswith(ENTRY)] == [f"{ENTRY}a-1"]


def test_what_was_asked_for_is_shown_with_the_state(table: FakeDashboard) -> None:
    add(table, "a-1", state="running")
    info = found(table, "a-1")
    assert (info.command, info.labels, info.resources) == ("train", {"team": "a"}, ResourceConfig(cpu=2))


def add_sweep(table: FakeDashboard, status: str = "RUNNING", state: str | None = None, **more: Any) -> None:
    members = [{"name": f"try-{each}", "replicas": 2, "labels": {}, "after": []} for each in range(3)]
    add(table, "s-1", status, state=state, count="3", members=json.dumps(members), **more)


def test_a_member_that_waits_is_found_in_its_sweep_until_it_has_an_entry(table: FakeDashboard) -> None:
    add_sweep(table)
    member = found(table, "s-1/1")
    assert (member.name, member.status, len(member.tasks)) == ("try-1", JobStatus.PENDING, 2)
    with pytest.raises(JobNotFoundError):
        found(table, "s-1/3")
    whole = found(table, "s-1")
    assert (whole.is_sweep, whole.progress) == (True, {"pending": 3})
    add(table, "s-1/1", state="running")
    assert found(table, "s-1/1").status is JobStatus.RUNNING
    members = RayCluster(table.url).list_jobs(parent="s-1")
    assert sorted((info.job_id, info.status) for info in members) == [
        ("s-1/0", JobStatus.PENDING),
        ("s-1/1", JobStatus.RUNNING),
        ("s-1/2", JobStatus.PENDING),
    ]
    add(table, "b-1")  # a job that is no sweep
    with pytest.raises(JobNotFoundError):
        found(table, "b-1/0")


def test_members_that_never_ran_end_as_their_sweep_says(table: FakeDashboard) -> None:
    ended = {"1": {"status": "failed", "reason": "dependency_failed", "message": "another failed"}}
    add_sweep(table, "FAILED", "failed", unstarted=json.dumps(ended))
    by_reason, lost = (found(table, f"s-1/{position}") for position in (1, 2))
    assert by_reason.tasks[0].reason is ExitReason.DEPENDENCY_FAILED
    assert by_reason.error_message == "another failed"
    assert (lost.status, lost.tasks[0].reason) == (JobStatus.FAILED, ExitReason.LOST)
    add_sweep(table, "STOPPED")
    assert found(table, "s-1/0").status is JobStatus.STOPPED


def test_a_job_whose_id_is_too_long_for_the_name_of_a_file_is_refused(
    table: FakeDashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, cluster = JobRequest("deep", Entrypoint.from_binary("true")), RayCluster(table.url)
    monkeypatch.setenv("FRAY_JOB_ID", "/".join(["a" * 47] * 4))
    with pytest.raises(ValueError, match="has 203 characters"):
        cluster.launch(request)
    with pytest.raises(ValueError, match="has 205 characters"):
        cluster.launch_many([request])
    assert not table.stored
    monkeypatch.setenv("FRAY_JOB_ID", "/".join(["a" * 46] * 4))
    assert len(cluster.launch(request)) == 199


def test_a_launch_that_is_interrupted_has_launched_nothing(
    table: FakeDashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def store(path: str, data: bytes) -> None:
        store_in_table(path, data)
        if path.endswith(".queued") and data != b"-":
            os.kill(os.getpid(), signal.SIGINT)

    table.takes_jobs, store_in_table = False, table.store
    monkeypatch.setattr(table, "store", store)
    with pytest.raises(KeyboardInterrupt):
        RayCluster(table.url).launch(JobRequest("interrupted", Entrypoint.from_binary("true")))
    left = {path.rpartition(".")[2]: data for path, data in table.stored.items()}
    assert left == {"plan": b"-", "waiting": b"-", "queued": b"-", "stop": b"0.0", "forget": b"-"}


def test_opening_a_cluster_leaves_the_environment_as_it_is_and_does_not_follow_it(
    table: FakeDashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(path: str) -> tuple[int, Any]:  # on a thread of the dashboard, while the cluster is opened
        seen.append(os.environ.get("RAY_ADDRESS"))
        return answer_of_table(path)

    seen: list[str | None] = []
    answer_of_table = table.answer
    monkeypatch.setattr(table, "answer", answer)
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
        assert RayCluster(table.url).list_jobs() == []
    assert set(seen) == {"http://127.0.0.1:1"}


@pytest.mark.parametrize(
    "row", [None, [], {}, {"metadata": "x"}, {"metadata": {"fray.job_id": 3}}, {"status": 7, "message": []}]
)
def test_what_ray_says_of_other_jobs_is_passed_over(table: FakeDashboard, row: Any) -> None:
    add(table, "a-1", state="running")
    table.odd.append(row)
    assert [info.job_id for info in RayCluster(table.url).list_jobs()] == ["a-1"]


def test_another_run_has_the_jobs_key_its_own_number_and_the_secrets_that_are_brought(
    table: FakeDashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = json.dumps({"withheld": ["SERVICE_TOKEN"], "runtime_env": {"env_vars": {"A": "1"}}})
    add(table, "a-1", "FAILED", state="failed", key="k", kept=kept)
    cluster = RayCluster(table.url)
    monkeypatch.delenv("SERVICE_TOKEN", raising=False)
    with pytest.raises(ValueError, match="SERVICE_TOKEN in env_vars, and the values of such"):
        cluster.retry("a-1")
    monkeypatch.setenv("SERVICE_TOKEN", "brought-by-who-runs-it-again")
    assert cluster.retry("a-1") == "a-1"
    ((submission, run),) = table.queued.items()
    assert (submission, run["runtime_env"]) == ("a-1-r2", {"env_vars": {"A": "1"}})
    metadata = run["metadata"]
    assert (metadata["fray.job_id"], metadata["fray.key"], metadata["fray.tries"]) == ("a-1", "k", "2")
    assert not {"fray.info", "fray.kept"} & metadata.keys()
    assert "brought" not in json.dumps(run)
    assert any(b"brought-by-who-runs-it-again" in data for data in table.stored.values())


def test_a_job_that_is_lost_is_run_again_with_its_secrets_when_its_scheduler_has_settled_it(
    table: FakeDashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(path: str) -> tuple[int, Any]:
        looks.append(path)
        if len(looks) == 20:
            kept = json.dumps({"withheld": ["SERVICE_TOKEN"], "runtime_env": {}})
            add(table, "a-1", "FAILED", state="failed", kept=kept)
        return answer_of_table(path)

    looks: list[str] = []
    add(table, "a-1", "FAILED", state="running")
    cluster = RayCluster(table.url)
    assert cluster.poll("a-1").tasks[0].reason is ExitReason.LOST
    answer_of_table = table.answer
    monkeypatch.setattr(table, "answer", answer)
    monkeypatch.setenv("SERVICE_TOKEN", "brought-by-who-runs-it-again")
    assert cluster.retry("a-1") == "a-1"
    assert any(b"brought-by-who-runs-it-again" in data for data in table.stored.values())


def test_keys_are_those_of_the_job_that_launches(
    table: FakeDashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def launch(key: str, within: str | None = None) -> str:
        if within is None:
            monkeypatch.delenv("FRAY_JOB_ID", raising=False)
        else:
            monkeypatch.setenv("FRAY_JOB_ID", within)
        request = JobRequest("keyed", Entrypoint.from_binary("true"))
        return RayCluster(table.url).launch(request, key=key)

    first, again, within, other = launch("k"), launch("k"), launch("k", "a-1"), launch("l")
    assert first == again
    assert len({first, within, other}) == 3
    assert "k" not in {job["metadata"]["fray.key"] for job in table.queued.values()}


def test_a_job_that_is_handed_over_is_found_although_the_dashboard_fails_for_a_moment(
    table: FakeDashboard,
) -> None:
    def status() -> int | None:
        if statuses:
            return statuses.pop()
        add(table, "a-1", state="running")
        return None

    statuses = [500]
    table.stored["/api/packages/gcs/fray-a-1.waiting"] = b"{}"
    table.before_a_package = status
    assert found(table, "a-1").status is JobStatus.RUNNING


def test_a_job_that_nobody_ends_is_not_waited_for_without_end(
    table: FakeDashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(table, "a-1", "PENDING", waits="1")
    now = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: 100.0 * now())
    with pytest.raises(ClusterUnavailableError, match=r"a-1 was not ended .* scheduler"):
        RayCluster(table.url).terminate("a-1", grace=0.0)
    assert [job["entrypoint"] for job in table.submitted], "another scheduler was started"


def test_prune_asks_for_the_table_once_however_many_jobs_go(table: FakeDashboard) -> None:
    ended = [f"a-{number}" for number in range(10)]
    for job_id in ended:
        add(table, job_id, "SUCCEEDED", state="succeeded")
        add(table, f"{job_id}/b-1", "FAILED", state="failed")
    add(table, "c-1", state="running")
    add(table, "d-1", "SUCCEEDED", state="succeeded")
    add(table, "d-1/e-1", state="running")
    pruned = RayCluster(table.url).prune()
    assert {job_id for job_id in pruned.jobs if "/" not in job_id} == set(ended)
    assert table.entries.keys() == {"c-1", "d-1", "d-1~e-1"}
    assert table.asked.count(ENTRY) == 1


def test_of_two_launches_with_a_key_the_first_stays_although_ray_was_given_it_later(
    table: FakeDashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = table.store

    def store_and_show(path: str, data: bytes) -> None:
        store(path, data)
        for submission, job in list(table.queued.items()):  # the other one has its entry again
            table.entries[submission]["start_time"] = 2_000
            metadata = {**job["metadata"], "fray.job_id": "first-1", "fray.since": "1000"}
            table.add("first-1", "RUNNING", metadata, start_time=3_000)
        if path.endswith(".stop"):
            stopped.append(path.rpartition("/")[2])
            table.entries[stopped[0].removeprefix("fray-").removesuffix(".stop")]["status"] = "STOPPED"

    stopped: list[str] = []
    monkeypatch.setattr(table, "store", store_and_show)
    request = JobRequest("keyed", Entrypoint.from_binary("true"))
    assert RayCluster(table.url).launch(request, key="k") == "first-1"
    (second,) = table.queued
    assert stopped == [f"fray-{second}.stop"]


def test_an_answer_that_is_cut_off_is_asked_for_again(table: FakeDashboard) -> None:
    add(table, "a-1", "SUCCEEDED", state="succeeded")
    cluster = RayCluster(table.url)
    table.cut = 2
    assert cluster.poll("a-1").status is JobStatus.SUCCEEDED
    table.cut = 1
    assert [info.job_id for info in cluster.list_jobs()] == ["a-1"]
    assert table.cut == 0


@pytest.mark.parametrize("kept", ["a-1", "a-1-r2"])
def test_a_job_of_several_runs_that_is_removed_in_part_can_be_removed_again(
    table: FakeDashboard, kept: str
) -> None:
    add(table, "a-1", "FAILED", state="failed")
    add(table, "a-1", "FAILED", tries=2, state="failed")
    cluster = RayCluster(table.url)
    table.kept = {kept}
    with pytest.raises(ValueError, match=f"Ray does not forget {kept}"):
        cluster.remove("a-1")
    assert cluster.poll("a-1").status is JobStatus.FAILED
    table.kept = set()
    cluster.remove("a-1")
    assert table.entries == {}


def test_lines_of_usage_that_are_none_are_left_out(table: FakeDashboard) -> None:
    add(table, "a-1", "SUCCEEDED", state="succeeded")
    table.files["fray-usage-a-1.txt"] = "0 1 1000.5 4096 0.25\nodd\n0 1 x 4096 0.25\n0 1 1001.5 8192 0.5\n"
    assert [sample.memory for sample in RayCluster(table.url).usage("a-1")] == [4096, 8192]


def test_rays_table_shows_what_a_job_that_is_run_again_and_a_sweep_run(table: FakeDashboard) -> None:
    add(table, "a-1", "FAILED", state="failed", kept=json.dumps({"withheld": [], "runtime_env": {}}))
    cluster = RayCluster(table.url)
    cluster.retry("a-1")
    assert table.queued["a-1-r2"]["command"].endswith("# train: train")
    same, other = (JobRequest("try", Entrypoint.from_binary("echo", [word])) for word in "ab")
    for requests, shown in (([same, same], "echo a"), ([same, other], "2 jobs")):
        sweep = cluster.launch_many(requests, name="many")
        assert table.queued[sweep]["command"].endswith(f"# many: {shown}")


def test_a_head_that_takes_no_job_may_have_another_version(table: FakeDashboard) -> None:
    table.takes_jobs = False
    cluster = RayCluster(table.url, scheduler_timeout=0.2)
    with pytest.raises(
        ClusterUnavailableError, match=f"the head needs fray-ray {re.escape(version('fray-ray'))}"
    ):
        cluster.launch(JobRequest("job", Entrypoint.from_binary("true")))
