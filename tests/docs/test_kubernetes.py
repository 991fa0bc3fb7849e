"""What docs/a-kubernetes-cluster.md says of pods is what its sketch reads in them."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fray.cluster import Entrypoint, ExitReason, JobInfo, JobRequest, JobStatus, ResourceConfig

ROOT = Path(__file__).parents[2]


def sketch() -> ModuleType:
    """Load the sketch, which is in no package."""
    spec = importlib.util.spec_from_file_location("kubernetes_sketch", ROOT / "tests/typing/kubernetes.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


KUBERNETES = sketch()


class FakeApi:
    """Objects by kind and name."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Any] = {}

    def create(self, kind: str, manifest: Any) -> None:
        key = (kind, manifest["metadata"]["name"])
        if key in self.objects:
            raise KUBERNETES.ConflictError(key)
        self.objects[key] = {**manifest, "status": {}}

    def get(self, kind: str, name: str) -> Any:
        return self.objects.get((kind, name))

    def list(self, kind: str, selector: str) -> Any:
        return [thing for (one, _), thing in self.objects.items() if one == kind]

    def delete(self, kind: str, name: str, grace: float) -> None:
        del self.objects[kind, name]

    def log(self, pod: str, offset: int) -> bytes:
        return f"log of {pod}\n".encode()[offset:]


def pod(number: int = 0, **status: Any) -> dict[str, Any]:
    labels = {KUBERNETES.HOST: str(number), KUBERNETES.SLICE: "0", KUBERNETES.HOSTS: "4"}
    return {"metadata": {"name": f"pod-{number}", "labels": labels}, "status": {"phase": "Running", **status}}


def container(**state: Any) -> list[dict[str, Any]]:
    return [{"state": state}]


def condition(kind: str, reason: str, status: str = "True") -> list[dict[str, str]]:
    return [{"type": kind, "status": status, "reason": reason, "message": f"because of {reason}"}]


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (
            {"containerStatuses": container(terminated={"exitCode": 3, "reason": "Error"})},
            ("failed", 3, "exited"),
        ),
        (
            {"containerStatuses": container(terminated={"exitCode": 137, "reason": "OOMKilled"})},
            ("failed", 137, "out_of_memory"),
        ),
        (
            {"containerStatuses": container(terminated={"exitCode": 0, "reason": "Completed"})},
            ("succeeded", 0, "exited"),
        ),
        (
            {"conditions": condition("DisruptionTarget", "PreemptionByScheduler")},
            ("failed", None, "preempted"),
        ),
        (
            {"conditions": condition("DisruptionTarget", "EvictionByEvictionAPI")},
            ("failed", None, "preempted"),
        ),
        (
            {
                "containerStatuses": container(
                    waiting={"reason": "ImagePullBackOff", "message": "no such image"}
                )
            },
            ("failed", None, "could_not_start"),
        ),
        ({"containerStatuses": container(running={})}, ("running", None, None)),
        ({"phase": "Unknown"}, ("running", None, None)),
        ({"phase": "Pending"}, ("pending", None, None)),
    ],
    ids=str,
)
def test_a_pod_says_why_it_ended(
    status: dict[str, Any], expected: tuple[str, int | None, str | None]
) -> None:
    task = KUBERNETES.task_of(pod(2, **status))
    assert (task.replica, task.attempt) == (2, 1)
    state, code, reason = expected
    assert (task.status, task.exit_code) == (JobStatus(state), code)
    assert task.reason == (None if reason is None else ExitReason(reason))


def test_a_job_that_waits_for_a_node_has_the_schedulers_words() -> None:
    waiting = pod(phase="Pending", conditions=condition("PodScheduled", "Unschedulable", "False"))
    info = KUBERNETES.info_of(KUBERNETES.JobId("train-1"), {"metadata": {}, "status": {}}, [waiting])
    assert isinstance(info, JobInfo)
    assert info.status is JobStatus.PENDING
    assert info.pending_reason == "Unschedulable: because of Unschedulable"


def test_a_pod_asks_for_its_gpus() -> None:
    any_two, eight = ResourceConfig.with_gpu(count=2), ResourceConfig.with_gpu("H100", 8)
    assert KUBERNETES.requests_of(any_two)["nvidia.com/gpu"] == 2
    assert KUBERNETES.node_selector(any_two) == {}
    assert KUBERNETES.requests_of(eight)["nvidia.com/gpu"] == 8
    assert KUBERNETES.node_selector(eight) == {"fray.gpu": "H100"}


def test_a_launch_makes_a_secret_and_a_set_once_for_a_key() -> None:
    api = FakeApi()
    cluster = KUBERNETES.KubernetesCluster(api)
    entrypoint = Entrypoint.from_callable(print, args=["hidden words"])
    request = JobRequest("train", entrypoint, resources=ResourceConfig.with_tpu("v4-16"))
    job_id = cluster.launch(request, key="once")
    assert cluster.launch(request, key="once") == job_id
    assert sorted(kind for kind, _ in api.objects) == ["ConfigMap", "JobSet", "Secret"]
    assert [info.job_id for info in cluster.list_jobs()] == [job_id]
    shown = str(api.objects["JobSet", KUBERNETES.object_name(job_id)])
    assert "google.com/tpu" in shown
    assert "hidden words" not in shown
    cluster._stop(job_id, 10.0)
    assert cluster.list_jobs() == []
