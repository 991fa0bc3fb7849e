"""Requests, resources, states and names, to Iris's words and back: without Iris."""

import json
import os
import subprocess
import sys
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fray_iris
from fray import UnsupportedError, create_cluster
from fray.cluster import (
    CpuConfig,
    DeviceConfig,
    Entrypoint,
    ExitReason,
    GpuConfig,
    JobId,
    JobRequest,
    JobStatus,
    ResourceConfig,
    TpuConfig,
    create_environment,
)
from fray_iris.translations import (
    IrisTask,
    about_of,
    constraints_to_iris,
    how_it_ended,
    iris_name,
    job_id_of,
    job_info,
    keyed_id,
    resources_from_iris,
    resources_to_iris,
    task_status,
)

devices: st.SearchStrategy[DeviceConfig] = st.one_of(
    st.just(CpuConfig()),
    st.builds(GpuConfig, st.sampled_from(["H100", "A100", "any", "some-new-gpu"]), st.integers(1, 16)),
    st.builds(TpuConfig, st.sampled_from(["v4-8", "v4-128", "v5litepod-16", "v5p-8", "v6e-8", "v6e-256"])),
)
wanted = st.builds(
    ResourceConfig,
    cpu=st.integers(1, 512_000).map(lambda milli: milli / 1000),
    ram=st.integers(1 << 20, 1 << 42),
    disk=st.integers(1 << 20, 1 << 44),
    device=devices,
    replicas=st.integers(1, 64),
    preemptible=st.booleans(),
    regions=st.none()
    | st.lists(st.sampled_from(["us-east1", "eu-west4", "asia-1"]), min_size=1, unique=True),
)


@settings(deadline=None)  # of a busy machine it says nothing
@given(wanted)
def test_what_is_asked_for_comes_back_from_iris_as_it_was(resources: ResourceConfig) -> None:
    assert isinstance(resources.replicas, int)
    spec, constraints = resources_to_iris(resources), constraints_to_iris(resources)
    json.dumps([spec, constraints])
    assert resources_from_iris(spec, constraints, resources.replicas) == resources


def test_numbers_of_64_bits_are_texts_where_iris_says_them() -> None:
    spec = {"cpu_millicores": 500, "memory_bytes": str(1 << 33), "disk_bytes": str(1 << 34)}
    assert resources_from_iris(spec) == ResourceConfig(cpu=0.5, ram="8g", disk="16g")


def test_devices_are_asked_for_in_the_words_of_iris() -> None:
    gpus = resources_to_iris(ResourceConfig.with_gpu(count=2))
    assert gpus["device"] == {"gpu": {"variant": "auto", "count": 2}}
    tpu = resources_to_iris(ResourceConfig.with_tpu("v5e-16"))["device"]["tpu"]
    assert (tpu["variant"], tpu["count"]) == ("v5litepod-16", 4)
    assert constraints_to_iris(ResourceConfig()) == []


def test_a_job_and_its_children_have_the_same_names_on_both_sides() -> None:
    name = iris_name("ada", "train-3f9a2c/rollout-1b22d0")
    assert name == "/ada/train-3f9a2c/rollout-1b22d0"
    assert job_id_of("ada", name) == "train-3f9a2c/rollout-1b22d0"
    assert job_id_of("bob", name) is None
    assert job_id_of("ada", "/ada/") is None
    assert IrisTask.parse("/ada/train/3:2") == ("/ada/train", 3, 2)
    assert IrisTask.parse("/ada/train/0").log_key == "/ada/train/0:0"
    for wrong in ("", "/ada/train", "train/0", "/ada/train/0:x"):
        with pytest.raises(ValueError, match="an Iris task is named"):
            IrisTask.parse(wrong)


def test_a_key_is_the_name_of_one_job() -> None:
    first = keyed_id("nightly run/7", None)
    assert first == keyed_id("nightly run/7", None)
    assert first != keyed_id("nightly run/8", None)
    assert first.startswith("nightly-run-7-")
    assert len(first.rpartition("-")[2]) == 6  # by which `fray` finds it, as any other
    assert keyed_id("nightly", "train-3f9a2c").startswith("train-3f9a2c/nightly-")


ENDS: dict[str, tuple[str, str, int, dict[str, Any], tuple[JobStatus, ExitReason | None, int | None]]] = {
    "it succeeded": ("SUCCEEDED", "", 0, {}, (JobStatus.SUCCEEDED, ExitReason.EXITED, 0)),
    "it says how it ended": (
        "FAILED",
        "",
        137,
        {"reason": "signalled", "exit_code": -9, "message": "m"},
        (JobStatus.FAILED, ExitReason.SIGNALLED, -9),
    ),
    "an exit": ("FAILED", "Exit code: 3. stderr: x", 3, {}, (JobStatus.FAILED, ExitReason.EXITED, 3)),
    "a signal": (
        "FAILED",
        "Exit code 139: killed by SIGSEGV",
        139,
        {},
        (JobStatus.FAILED, ExitReason.SIGNALLED, -11),
    ),
    "want of memory": (
        "FAILED",
        "Exit code 137: OOM killed (container exceeded memory limit)",
        137,
        {},
        (JobStatus.FAILED, ExitReason.OUT_OF_MEMORY, -9),
    ),
    "a build that failed": (
        "FAILED",
        "uv sync: no solution",
        0,
        {},
        (JobStatus.FAILED, ExitReason.COULD_NOT_START, None),
    ),
    "a user stopped it": (
        "KILLED",
        "Terminated by user",
        0,
        {},
        (JobStatus.STOPPED, ExitReason.STOPPED, None),
    ),
    "its worker died": ("WORKER_FAILED", "", 0, {}, (JobStatus.FAILED, ExitReason.PREEMPTED, None)),
    "it was preempted": ("PREEMPTED", "by /bob/x", 0, {}, (JobStatus.FAILED, ExitReason.PREEMPTED, None)),
    "a peer failed": (
        "WORKER_FAILED",
        "Coscheduled sibling /ada/g/1 failed",
        0,
        {},
        (JobStatus.STOPPED, ExitReason.STOPPED, None),
    ),
    "a peer starts again": (
        "PREEMPTED",
        "Coscheduled sibling /ada/g/1 bounced for atomic re-scheduling",
        0,
        {},
        (JobStatus.STOPPED, ExitReason.STOPPED, None),
    ),
    "a peer failed for good": (
        "COSCHED_FAILED",
        "",
        0,
        {},
        (JobStatus.STOPPED, ExitReason.STOPPED, None),
    ),
    "no worker": ("UNSCHEDULABLE", "timeout", 0, {}, (JobStatus.FAILED, ExitReason.COULD_NOT_START, None)),
    "it runs": ("RUNNING", "", 0, {}, (JobStatus.RUNNING, None, None)),
    "it is built": ("BUILDING", "", 0, {}, (JobStatus.PENDING, None, None)),
}


@pytest.mark.parametrize("how", ENDS)
def test_ends_of_attempts_have_reasons_and_codes(how: str) -> None:
    state, error, code, report, expected = ENDS[how]
    assert how_it_ended(f"TASK_STATE_{state}", error, code, report)[:3] == expected


def attempt(number: int, state: str, **more: Any) -> dict[str, Any]:
    ended = {} if state == "RUNNING" else {"finished_at": {"epoch_ms": "1700000009000"}}
    return {
        "attempt_id": number,
        "state": f"TASK_STATE_{state}",
        "worker_id": "w1",
        "started_at": {"epoch_ms": "1700000001000"},
        **ended,
        **more,
    }


def test_attempts_count_from_one_and_the_latest_is_the_replica_s() -> None:
    task = {
        "task_id": "/ada/job/0",
        "state": "TASK_STATE_RUNNING",
        "attempts": [
            attempt(0, "FAILED", error="Exit code: 5", exit_code=5),
            attempt(1, "WORKER_FAILED"),
            attempt(2, "RUNNING"),
        ],
    }
    status = task_status(task)
    assert (status.attempt, status.status) == (3, JobStatus.RUNNING)
    assert [(each.attempt, each.reason, each.exit_code) for each in status.previous] == [
        (1, ExitReason.EXITED, 5),
        (2, ExitReason.PREEMPTED, None),
    ]
    assert status.started_at == 1_700_000_001.0


BEGUN = {"started_at": {"epoch_ms": "1700000001000"}}


def test_a_job_has_ended_when_its_workers_have_confirmed_it() -> None:
    job = {"state": "JOB_STATE_KILLED", "finished_at": {"epoch_ms": "1700000010000"}}
    unconfirmed = {
        "task_id": "/ada/job/0",
        "state": "TASK_STATE_KILLED",
        "attempts": [{"attempt_id": 0, "state": "TASK_STATE_KILLED", "worker_id": "w1"} | BEGUN],
    }

    def status(task: dict[str, Any], now: float) -> JobStatus:
        return job_info(JobId("job-1"), job, [task], {}, now).status

    assert status(unconfirmed, 1_700_000_011.0) is JobStatus.RUNNING
    assert status(unconfirmed, 1_700_000_100.0) is JobStatus.STOPPED  # no worker is left to confirm it
    never_begun = {"attempts": [{"attempt_id": 0, "state": "TASK_STATE_KILLED", "worker_id": "w1"}]}
    assert status(unconfirmed | never_begun, 1_700_000_011.0) is JobStatus.RUNNING
    assert status(unconfirmed | never_begun, 1_700_000_013.0) is JobStatus.STOPPED
    confirmed = unconfirmed | {"attempts": [attempt(0, "KILLED")]}
    assert status(confirmed, 1_700_000_011.0) is JobStatus.STOPPED


def test_a_gang_whose_tasks_are_all_lost_has_ended_though_iris_says_it_runs() -> None:
    def task(number: int, state: str) -> dict[str, Any]:
        return {"task_id": f"/ada/job-1/{number}", "state": state, "attempts": []}

    lost, running = task(0, "TASK_STATE_WORKER_FAILED"), task(1, "TASK_STATE_RUNNING")
    job = {"state": "JOB_STATE_RUNNING"}
    assert job_info(JobId("job-1"), job, [lost, running], {}).status is JobStatus.RUNNING
    assert (
        job_info(JobId("job-1"), job, [lost, {**lost, "task_id": "/ada/job-1/1"}], {}).status
        is JobStatus.FAILED
    )


@pytest.mark.parametrize("state", ["TASK_STATE_EVICTED", 17], ids=["by name", "by number"])
def test_a_state_that_a_later_iris_has_added_is_an_end_where_iris_says_so(state: Any) -> None:
    def status(**fields: Any) -> tuple[JobStatus, ExitReason | None]:
        task = {"task_id": "/ada/job/0", "state": state, "attempts": [fields | {"state": state}]}
        found = task_status(task)
        return found.status, found.reason

    assert status() == (JobStatus.RUNNING, None)
    time = {"epoch_ms": "1700000009000"}
    assert status(finished_at=time) == (JobStatus.FAILED, ExitReason.LOST)
    earlier = [{"attempt_id": 0, "state": state}, attempt(1, "RUNNING")]
    found = task_status({"task_id": "/ada/job/0", "state": "TASK_STATE_RUNNING", "attempts": earlier})
    assert (found.status, found.previous[0].status) == (JobStatus.RUNNING, JobStatus.FAILED)
    said = 'fray-replica-ended {"reason": "exited", "exit_code": 3, "message": "m"}'
    assert status(finished_at=time, error=said) == (JobStatus.FAILED, ExitReason.EXITED)

    task = {"task_id": "/ada/job-1/0", "state": state, "attempts": [{"state": state}]}
    job = {"state": "JOB_STATE_EVICTED", "finished_at": time}
    info = job_info(JobId("job-1"), job, [task], {})
    assert (info.status, info.tasks[0].status) == (JobStatus.FAILED, JobStatus.FAILED)
    assert info.error_message is not None
    assert str(state) in info.error_message
    assert not job_info(JobId("job-1"), {"state": "JOB_STATE_NEW"}, [task], {}).finished


def test_what_a_replica_says_of_itself_is_read_from_its_error_and_its_status() -> None:
    said = (
        'fray-replica-ended {"reason": "exited", "exit_code": 3, "message": "replica 1 exited with code 3"}'
    )
    error = f"Exit code: 3. stderr: {said}"
    status = 'fray-replica-state {"attempt": 0, "ports": {"http": 4711}}'
    task = {
        "task_id": "/ada/job/1",
        "state": "TASK_STATE_FAILED",
        "status_text_summary_md": status,
        "attempts": [attempt(0, "FAILED", error=error, exit_code=3)],
    }
    found = task_status(task)
    assert (found.exit_code, found.error_message) == (3, "replica 1 exited with code 3")
    assert found.ports == {"http": 4711}
    info = job_info(JobId("job-1"), {"state": "JOB_STATE_FAILED"}, [task], {"name": "a job"}, 0.0)
    assert (info.name, info.error_message) == ("a job", "replica 1 exited with code 3")
    for damaged in ("fray-replica-ended {", "fray-replica-ended", "fray-replica-ended 7"):
        assert how_it_ended("TASK_STATE_FAILED", f"Exit code: 3. stderr: {damaged}", 3, {}).exit_code == 3


def cluster(**options: Any) -> Any:
    return create_cluster("iris?controller=http://127.0.0.1:1", user="ada", **options)


def asked(request: JobRequest, **options: Any) -> Any:
    return cluster(**options).launch_request(request)


def test_a_request_is_one_launch_of_iris(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('hello')")
    (tmp_path / ".gitignore").write_text("*.log\n")
    (tmp_path / "old.log").write_text("x")
    request = JobRequest(
        "train/model",
        Entrypoint.from_binary("python", ["train.py"]),
        resources=ResourceConfig(cpu=0.5, ram="2g", replicas=2, preemptible=False, regions=["us-east1"]),
        environment=create_environment(
            workspace=tmp_path,
            env_vars={"WORD": "abracadabra", "UV_OFFLINE": "1"},
            pip_packages=["numpy"],
            extras=["tpu"],
        ),
        max_retries_failure=3,
        max_retries_preemption=7,
        ports=["http"],
        labels={"team": "a"},
        backend={"iris": {"priority_band": "batch", "scheduling_timeout": 60}, "ray": {"x": 1}},
    )
    made = asked(request)
    found = made.request
    assert found["name"].startswith("/ada/train-model-")
    assert found["resources"] == {"cpu_millicores": 500, "memory_bytes": 2 << 30, "disk_bytes": 16 << 30}
    assert [each["key"] for each in found["constraints"]] == ["preemptible", "region"]
    assert (found["replicas"], found["max_retries_failure"], found["max_retries_preemption"]) == (2, 3, 7)
    assert found["environment"]["pip_packages"] == ["numpy"]
    assert found["environment"]["extras"] == ["tpu"]
    assert found["ports"] == ["http"]
    assert found["priority_band"] == "PRIORITY_BAND_BATCH"
    assert found["scheduling_timeout"] == {"milliseconds": 60_000}
    assert "coscheduling" not in found
    about = about_of(found)
    assert (about["name"], about["labels"]) == ("train/model", {"team": "a"})
    # The secret goes where Iris keeps variables, under a name whose value it shows nobody, and nowhere else.
    assert found["environment"]["env_vars"] == {"FRAY_SECRET_0": '{"WORD": "abracadabra"}', "UV_OFFLINE": "1"}
    del found["environment"]
    assert "abracadabra" not in json.dumps(found)
    assert all(b"abracadabra" not in data for data in made.files.values())
    assert zipfile.ZipFile(BytesIO(made.bundle)).namelist() == [".gitignore", "train.py"]


def test_where_files_are_shared_nothing_is_sent_but_a_snapshot(tmp_path: Path) -> None:
    (tmp_path / "a.py").touch()
    request = JobRequest("job", Entrypoint.from_binary("true"), environment=create_environment(tmp_path))
    assert asked(request, shared_files=True).bundle is None
    copied = JobRequest("job", request.entrypoint, environment=request.environment, snapshot=True)
    assert asked(copied, shared_files=True).bundle is not None


def test_gangs_are_placed_together(tmp_path: Path) -> None:
    def group(resources: ResourceConfig, **fields: Any) -> Any:
        environment = create_environment(tmp_path)
        request = JobRequest("gang", print, resources=resources, environment=environment, **fields)
        return asked(request).request.get("coscheduling")

    assert group(ResourceConfig.with_tpu("v5litepod-16")) == {"group_by": "tpu-name"}
    assert group(ResourceConfig.with_gpu("H100", count=8, replicas=2)) == {"group_by": "pool"}
    assert group(ResourceConfig(replicas=2), gang=True) == {"group_by": "pool"}
    assert group(ResourceConfig(replicas=2)) is None
    assert group(ResourceConfig.with_tpu("v5litepod-4")) is None  # one host needs no company
    own = {"iris": {"group_by": "rack"}}
    assert group(ResourceConfig(replicas=2), gang=True, backend=own) == {"group_by": "rack"}


def test_what_iris_cannot_do_is_refused_in_words_that_help(tmp_path: Path) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"resources": ResourceConfig.with_tpu("v5litepod-16", slices=2)}, "several TPU slices"),
        ({"environment": create_environment(dependency_groups=["dev"])}, "extras"),
        ({"after": ["job-1"]}, "after="),
        ({"on_exit": "true"}, "on_exit="),
        ({"log_limit": "64m"}, "log_limit="),
    ]
    for fields, match in refused:
        with pytest.raises(UnsupportedError, match=match):
            cluster().launch(JobRequest("job", print, **fields))
    with pytest.raises(UnsupportedError, match="launch_many"):
        cluster().launch_many([JobRequest("job", print)])
    for wrong in ({"nodes": 3}, {"priority_band": "urgent"}, {"scheduling_timeout": -1}):
        with pytest.raises(ValueError, match=r"backend\['iris'\]"):
            cluster().launch(JobRequest("job", print, backend={"iris": wrong}))


def test_a_cluster_without_a_controller_says_what_it_needs() -> None:
    with pytest.raises(ValueError, match="address of an Iris controller"):
        create_cluster("iris")


def test_the_controller_of_a_task_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IRIS_CONTROLLER_ADDRESS", "http://10.0.0.5:10000")
    monkeypatch.setenv("IRIS_TASK_ID", "/ada/train-3f9a2c/0:1")
    found: Any = create_cluster("iris")
    assert found.spec == "iris?controller=http://10.0.0.5:10000"
    assert found.iris_name("x-1") == "/ada/x-1"


def test_nothing_of_iris_is_imported_before_it_is_used() -> None:
    code = (
        "import sys; from fray import create_cluster; from fray.cluster import IrisCluster; "
        "create_cluster('iris?controller=http://127.0.0.1:1'); from fray_iris import IrisContext; "
        "print([name for name in sys.modules if name.split('.')[0] in ('iris', 'finelog', 'rigging')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout.strip() == "[]"


def test_where_iris_is_missing_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("iris.rpc.controller_pb2", "iris.rpc.job_pb2", "iris"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"marin-iris.*lib/iris"):
        cluster().poll("job-1")
    assert fray_iris.IrisCluster.capabilities.tpus


def test_keys_that_begin_alike_are_of_different_jobs() -> None:
    """A launch whose key gives the id of another job would start nothing."""
    keys = [f"2026-11-26T05:00:00Z/{'experiments/' * 8}{number}" for number in range(20_000)]
    assert len({keyed_id(key, None) for key in keys}) == len(keys)
