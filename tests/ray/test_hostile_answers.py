"""Whatever stands in Ray's job table: one bad row, or one clear error, and the others as they were.

Everybody who may give Ray a job can write into it, and Ray answers a list with all of it. And whatever an
address answers at all, such as a proxy before a dashboard: each call works, or raises an error of ours.
"""

import base64
import json
import os
import pickle
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fake_dashboard import KINDS, FakeDashboard, fake_dashboard
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fray import ClusterUnavailableError, FrayError
from fray.cluster import (
    Endpoint,
    Entrypoint,
    JobId,
    JobInfo,
    JobRequest,
    JobStatus,
    TaskStatus,
    create_environment,
)
from fray_ray import RayCluster

DRAWN = settings(
    max_examples=50 * int(os.environ.get("TORTURE", "1")),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
DEEP, LONG = "[" * 100_000, "9" * 5_000
SPLICES = st.sampled_from(
    ["", "{", "null", "[]", '"', LONG, "-1", "true", "NaN", "1e999", DEEP, "[5]", "1e12"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def packed(tasks: str) -> str:
    return base64.b64encode(zlib.compress(tasks.encode())).decode()


def columns(count: Any, **changed: Any) -> dict[str, Any]:
    """The replicas of a job, a column for each of their fields."""
    every: dict[str, Any] = {name: {"all": None} for name in ("exit_code", "reason", "error_message")}
    every |= {name: {"all": None} for name in ("started_at", "finished_at", "peak_memory", "cpu_time")}
    every |= {"status": {"all": "running"}, "attempt": {"all": 1}, "ports": {"all": {}}}
    return {"count": count, "replica": list(range(2)), **every, **changed}


MEMBERS = [{"name": f"try-{each}", "replicas": 2, "labels": {"a": "b"}, "after": []} for each in range(3)]
INFO = JobInfo(
    job_id=JobId("victim-1"),
    name="victim",
    status=JobStatus.RUNNING,
    tasks=(TaskStatus(replica=0, status=JobStatus.RUNNING, attempt=1),),
    progress={"pending": 3},
    submitted_at=1_763_839_200.0,
)
SERVER = Endpoint(name="victim", address="h:1", job_id=INFO.job_id, replica=0, attempt=1, registered_at=1.0)
WHOLE = {
    "job_id": INFO.job_id,
    "name": "victim",
    "owner": "a",
    "replicas": "2",
    "tries": "1",
    "since": "1763839200000",
    "earlier": "0",
    "info": json.dumps(INFO.to_dict()),
    "about": json.dumps({"entrypoint": "train", "labels": {"a": "b"}, "environment": {"a": "b"}}),
    "count": "3",
    "members": json.dumps(MEMBERS),
    "unstarted": json.dumps({"1": {"status": "failed", "reason": "lost", "message": None}}),
    "endpoints": json.dumps([{**SERVER.to_dict(), "family": None}]),
    "kept": json.dumps({"withheld": [], "runtime_env": {}}),
    "tasks": packed(json.dumps({"tasks": columns(2), "earlier": columns(0, replica=[])})),
}


@pytest.fixture
def table() -> Iterator[FakeDashboard]:
    with fake_dashboard() as dashboard:
        good = {"job_id": "good-1", "name": "good", "owner": "a", "replicas": "1"}
        dashboard.add("good-1", "RUNNING", {f"fray.{name}": text for name, text in good.items()})
        yield dashboard


def look(table: FakeDashboard, metadata: dict[str, str]) -> None:
    """Put two runs of a job into the table, and look at it in every way."""
    named = {f"fray.{name}": text for name, text in metadata.items()}
    table.add("victim-1", "FAILED", named)
    table.add("victim-1-r2", "RUNNING", {**named, "fray.tries": metadata["tries"].replace("1", "2")})
    cluster = RayCluster(table.url)
    rows = {str(info.job_id): info for info in cluster.list_jobs()}
    assert rows["good-1"].status is JobStatus.PENDING
    cluster.endpoints(everywhere=True)
    json.dumps([info.to_dict() for info in rows.values()])
    for act in (
        lambda: cluster.poll("victim-1").to_dict(),
        lambda: cluster.poll("victim-1/1").to_dict(),
        lambda: [info.to_dict() for info in cluster.list_jobs(parent="victim-1")],
        lambda: cluster.usage("victim-1"),
        lambda: list(cluster.monitor("victim-1/1", follow=False)),
    ):
        with suppress(FrayError):
            act()


def test_what_stands_there_as_a_rule_is_read(table: FakeDashboard) -> None:
    look(table, WHOLE)
    cluster = RayCluster(table.url)
    assert [task.status for task in cluster.poll("victim-1").tasks] == ["running"] * 2
    assert [endpoint.name for endpoint in cluster.endpoints()] == ["victim"]
    assert cluster.poll("victim-1/1").status is JobStatus.FAILED
    assert len(cluster.list_jobs(parent="victim-1")) == len(MEMBERS)


@pytest.mark.usefixtures("no_collection")
def test_values_of_any_text(table: FakeDashboard) -> None:
    @DRAWN
    @example("tries", 0.0, 1.0, LONG)
    @example("replicas", 0.0, 1.0, "999999999999")
    @example("count", 0.0, 1.0, "999999999999")
    @example("info", 0.0, 1.0, DEEP)
    @example("members", 0.0, 1.0, DEEP)
    @example("endpoints", 0.0, 1.0, DEEP)
    @given(st.sampled_from(sorted(WHOLE)), st.floats(0, 1), st.floats(0, 1), SPLICES | st.text(max_size=8))
    def damage(name: str, first: float, second: float, splice: str) -> None:
        text = WHOLE[name]
        start, end = sorted((int(first * len(text)), int(second * len(text))))
        without = {} if name != "info" else {"tasks": WHOLE["tasks"]}
        look(table, {**WHOLE, **without, name: text[:start] + splice + text[end:]})

    damage()


def test_fields_of_any_value(table: FakeDashboard) -> None:
    @DRAWN
    @given(st.sampled_from(["info", "about", "endpoints", "unstarted", "members", "kept"]), st.data(), VALUES)
    def change(name: str, data: st.DataObject, value: Any) -> None:
        said = json.loads(WHOLE[name])
        inner = said[0] if isinstance(said, list) else said.get("1", said)
        inner[data.draw(st.sampled_from(sorted(inner)))] = value
        look(table, {**WHOLE, name: json.dumps(said)})

    change()


def test_replicas_of_any_value(table: FakeDashboard) -> None:
    @DRAWN
    @example("ports", {"all": [5]})
    @example("count", "1")
    @example("count", 10**12)
    @given(st.sampled_from(sorted(columns(2))), VALUES | st.lists(VALUES, min_size=2, max_size=2))
    def change(name: str, value: Any) -> None:
        for which in ("tasks", "earlier"):
            said = {"tasks": columns(2), "earlier": columns(2)}
            said[which] = columns(2, **{name: value}) if name != "count" else columns(value)
            look(table, {**WHOLE, "tasks": packed(json.dumps(said))})

    change()


def test_replicas_that_would_fill_the_memory(table: FakeDashboard) -> None:
    named = {f"fray.{name}": text for name, text in WHOLE.items()}
    table.add("victim-1", "RUNNING", {**named, "fray.tasks": packed(" " * 200_000_000)})
    info = RayCluster(table.url).poll("victim-1")
    assert "larger than any of ours" in str(info.error_message)


def test_rows_of_any_value(table: FakeDashboard) -> None:
    fields = ["submission_id", "status", "metadata", "message", "start_time", "end_time", "runtime_env"]

    @DRAWN
    @given(VALUES, st.sampled_from(fields), VALUES)
    def change(row: Any, name: str, value: Any) -> None:
        named = {f"fray.{word}": text for word, text in WHOLE.items()}
        entry = {"submission_id": "victim-1", "status": "FAILED", "metadata": named, name: value}
        table.entries["victim-1"] = entry
        table.odd = [row, {"metadata": row}, {"metadata": {"fray.job_id": row}}]
        cluster = RayCluster(table.url)
        rows = [info.to_dict() for info in cluster.list_jobs()]
        assert "good-1" in {row["job_id"] for row in rows}
        cluster.endpoints(everywhere=True)
        with suppress(FrayError):
            cluster.poll("victim-1").to_dict()

    change()


PAGE = b"<html><body>Sign in to the cluster</body></html>"
KIND_NAMES = [kind for _, _, kind in KINDS]
STATUSES = st.sampled_from([200, 200, 200, 204, 304, 400, 401, 404, 413, 429, 500, 502, 503]) | st.integers(
    200, 599
)
BODIES = (
    VALUES.map(lambda value: json.dumps(value).encode())
    | st.dictionaries(
        st.sampled_from(["ray_version", "submission_id", "stopped", "logs", "status"]), VALUES
    ).map(lambda value: json.dumps(value).encode())
    | st.binary(max_size=30)
    | st.sampled_from([PAGE, b"", DEEP.encode(), LONG.encode()])
)


def connect(table: FakeDashboard) -> RayCluster:
    """A cluster that gives up at once."""
    return RayCluster(
        table.url,
        agent_timeout=0.1,
        scheduler_timeout=0.1,
        reconnect_timeout=0.0,
        driver_exit_timeout=0.1,
        ship_workspace=True,
    )


def calls_of(cluster: RayCluster, workspace: Path) -> list[Callable[[], Any]]:
    """Every call, in an order in which each has something to do."""
    environment = create_environment(workspace=workspace)
    request = JobRequest("new", Entrypoint.from_binary("true"), environment=environment)
    return [
        lambda: cluster.launch(request),
        lambda: cluster.launch(request, key="a key"),
        lambda: cluster.launch_many([request]),
        lambda: cluster.poll("ended-1"),
        cluster.list_jobs,
        lambda: cluster.list_jobs(parent="ended-1"),
        lambda: cluster.endpoints(everywhere=True),
        lambda: cluster.usage("ended-1"),
        lambda: list(cluster.monitor("ended-1", follow=False)),
        lambda: list(cluster.monitor("ended-1", tail=3, follow=False)),
        lambda: list(cluster.monitor("nowhere-1", follow=False)),
        lambda: cluster.restart("going-1"),
        lambda: cluster.terminate("going-1", grace=0.0),
        lambda: cluster.remove("going-1"),
        lambda: cluster.retry("ended-1"),
        cluster.prune,
    ]


def assert_ours(call: Callable[[], Any]) -> None:
    """Make a call, which works, or raises an error of ours: a ValueError of JSON is none."""
    try:
        call()
    except FrayError:
        return
    except ValueError as error:
        if type(error) is not ValueError:
            raise


def fill(table: FakeDashboard) -> None:
    """Put jobs into the table: one that has failed, one whose node is not known, and one that runs."""
    named = {
        f"fray.{name}": text for name, text in WHOLE.items() if name not in ("count", "members", "tasks")
    }
    jobs: list[tuple[str, str, dict[str, Any]]] = [
        ("ended-1", "failed", {}),
        ("nowhere-1", "failed", {"driver_node_id": ""}),
        ("going-1", "running", {}),
    ]
    for job_id, status, more in jobs:
        task = {"replica": 0, "status": status, "attempt": 1}
        info = {"job_id": job_id, "name": "job", "status": status, "tasks": [task]}
        metadata = {**named, "fray.job_id": job_id, "fray.info": json.dumps(info)}
        table.add(job_id, status.upper(), metadata, end_time=2_000, **more)
    table.logs |= {"ended-1": "[fray] replica 0 starts, attempt 1\n[replica-0] a line\n"}


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("kind", KIND_NAMES)
def test_any_answer_is_one_of_a_dashboard_or_an_error_of_ours(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fray_ray._launcher.cluster._SEEN_WITHIN", 0.1)
    monkeypatch.setattr("fray_ray._stopping._MARGIN", 0.0)
    monkeypatch.setattr("fray_ray._stopping._ENDS_WITHIN", 0.5)

    @settings(DRAWN, max_examples=5 * int(os.environ.get("TORTURE", "1")))
    @example(200, PAGE, {})
    @example(200, b"{}", {})
    @example(200, b"null", {})
    @example(200, DEEP.encode(), {})
    @example(503, PAGE, {})
    @example(302, b"", {"Location": "/api/version"})
    @given(STATUSES, BODIES, st.just({}))
    def answer(status: int, body: bytes, headers: dict[str, str]) -> None:
        with fake_dashboard() as table:
            fill(table)
            if kind == "version":
                table.instead[kind] = status, body, headers
                assert_ours(lambda: connect(table))
                return
            cluster = connect(table)
            table.instead[kind] = status, body, headers
            for call in calls_of(cluster, tmp_path):
                begin = time.monotonic()
                assert_ours(call)
                assert time.monotonic() - begin < 10.0

    answer()


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (503, PAGE, "answered 503: <html><body>Sign in"),
        (200, PAGE, "Sign in to the cluster"),
        (200, b"{}", "answered '{}'"),
        (404, b"no such page", "answered 404: no such page"),
    ],
    ids=["away", "a page", "no version", "another server"],
)
def test_an_address_where_no_dashboard_answers_is_said_with_what_it_answers(
    table: FakeDashboard, status: int, body: bytes, said: str
) -> None:
    table.instead["version"] = status, body, {}
    with pytest.raises(ClusterUnavailableError, match=f"no Ray cluster answers at '{table.url}'") as caught:
        RayCluster(table.url)
    assert said in str(caught.value)


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # of `requests`, where it raises so
def test_a_redirection_to_no_address_is_no_cluster(table: FakeDashboard) -> None:
    table.instead["version"] = 302, b"", {"Location": "http://[odd/\xff"}
    with pytest.raises(ClusterUnavailableError, match="redirected to no address"):
        connect(table)


@pytest.mark.parametrize(("status", "body"), [(502, PAGE), (200, PAGE), (200, b"{}"), (500, b"going away")])
def test_a_job_is_launched_although_the_answer_that_its_scheduler_starts_is_lost(
    table: FakeDashboard, status: int, body: bytes
) -> None:
    table.instead["submit"] = status, body, {}
    job_id = RayCluster(table.url).launch(JobRequest("first", Entrypoint.from_binary("true")))
    assert list(table.queued) == [job_id]


def test_a_refusal_of_ray_says_so_in_its_words(table: FakeDashboard) -> None:
    fill(table)
    cluster = connect(table)
    table.instead["delete"] = 400, b"Can only delete submission type jobs", {}
    with pytest.raises(ValueError, match="Can only delete submission type jobs"):
        cluster.remove("ended-1")
    table.instead["delete"] = 503, PAGE, {}
    with pytest.raises(ClusterUnavailableError, match="answered 503"):
        cluster.remove("nowhere-1")
    table.instead["list"] = 400, b"no such page", {}
    with pytest.raises(RuntimeError, match="no such page") as caught:
        cluster.list_jobs()
    assert not isinstance(caught.value, ClusterUnavailableError)
    again = pickle.loads(pickle.dumps(caught.value))  # as a task, or a process pool, hands it on
    assert (type(again), str(again)) == (type(caught.value), str(caught.value))
