"""A Kubernetes cluster on paper: what docs/a-kubernetes-cluster.md walks through, primitive by primitive.

The type checker reads it, and a test reads pods with it; nobody has run it on a real API server.
"""

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from fray.backend import (
    ClusterCapabilities,
    HeldKey,
    Meeting,
    plan_of,
    rank_variables,
    refuse_fields,
    refuse_python,
    runner,
)
from fray.cluster import (
    ClusterBase,
    Endpoint,
    ExitReason,
    GpuConfig,
    JobId,
    JobInfo,
    JobPlan,
    JobRequest,
    JobStatus,
    ResourceConfig,
    TaskStatus,
    TpuConfig,
)

Object = Mapping[str, Any]
JOB, HOSTS = "fray.job", "fray.hosts"
GPU = "fray.gpu"  # of a node: Fray's name of its GPUs. The labels of vendors hold names of products.
HOST, SLICE = "batch.kubernetes.io/job-completion-index", "jobset.sigs.k8s.io/job-index"
ATTEMPT = "jobset.sigs.k8s.io/restart-attempt"
MOUNT = "/fray"
NODE_WENT = {"TerminationByKubelet", "EvictionByEvictionAPI", "DeletionByTaintManager"}
START = """import json, os, sys
number = int(os.environ["SLICE"]) * int(os.environ["HOSTS"]) + int(os.environ["JOB_COMPLETION_INDEX"])
os.environ.update(json.load(open("/fray/ranks.json"))[number])
os.execvp(sys.argv[1], sys.argv[1:])
"""  # a replica finds its number, and the variables that go with it
CANNOT_START = {"ImagePullBackOff", "ErrImagePull", "InvalidImageName", "CreateContainerConfigError"}


class ConflictError(Exception):
    """There is an object of that name."""


class Api(Protocol):
    """What is used of the API server; the official client has each under a longer name."""

    def create(self, kind: str, manifest: Object) -> None: ...
    def get(self, kind: str, name: str) -> Object | None: ...
    def list(self, kind: str, selector: str) -> Iterable[Object]: ...
    def annotate(self, kind: str, name: str, annotations: Mapping[str, str]) -> None: ...
    def delete(self, kind: str, name: str, grace: float) -> None: ...
    def log(self, pod: str, offset: int) -> bytes: ...


class KubernetesCluster(ClusterBase):
    """Jobs as JobSets; spec `kubernetes?namespace=NAME`."""

    capabilities = ClusterCapabilities(
        containers=True,
        gpus=True,
        tpus=True,
        multislice=True,
        gangs=True,
        preemptible=True,
        enforced_memory=True,
        admission=True,
        endpoints=True,
        keys=True,
        labels=True,
        shared_between_machines=True,
        tree_kill="cgroup",
    )

    def __init__(self, api: Api, *, namespace: str = "default") -> None:
        super().__init__(f"kubernetes?namespace={namespace}")
        self.api = api

    # The five primitives.

    def _submit(self, plan: JobPlan) -> None:
        name = object_name(plan.job_id)
        self.api.create("Secret", secret_of(name, plan))
        try:
            self.api.create("JobSet", job_set_of(name, plan))
        except BaseException:
            self.api.delete("Secret", name, 0)
            raise

    def _info(self, job_id: str) -> JobInfo | None:
        job_set = self.api.get("JobSet", object_name(job_id))
        return None if job_set is None else info_of(JobId(job_id), job_set, self._pods(job_id))

    def _ids(self) -> Iterable[str]:
        return [str(each["metadata"]["annotations"][JOB]) for each in self.api.list("JobSet", JOB)]

    def _read_log(self, job_id: str, replica: int | None, attempt: int, offset: int) -> bytes:
        for pod in self._pods(job_id):
            if (number_of(pod), attempt_of(pod)) == (replica, attempt):
                return self.api.log(str(pod["metadata"]["name"]), offset)
        return b""

    def _stop(self, job_id: str, grace: float) -> None:
        self.api.delete("JobSet", object_name(job_id), grace)

    # The hooks of what it declares.

    def _plan(self, request: JobRequest, job_id: JobId, variables: Mapping[str, str]) -> JobPlan:
        plan = plan_of(request, job_id, self.spec, variables, record=MOUNT, python="python3", inherit=False)
        image = request.environment.docker_image if request.environment else None
        return plan._replace(
            shown={**plan.shown, "image": image or "python:3.12", "resources": request.resources}
        )

    def _check_supported(self, request: JobRequest) -> None:
        """Refuse no device and no image: what no node has stays pending, and says so."""
        refuse_python("KubernetesCluster", request)
        refuse_fields("KubernetesCluster", request, frozenset({"labels"}))

    @contextmanager
    def _held_key(self, key: str, parent: JobId | None) -> Iterator[HeldKey]:
        """Make an object of the key's name: the second finds the job's id in it."""
        yield KeyObject(self.api, object_name(f"{parent or ''}/{key}"))

    def endpoints(self, prefix: str = "", *, everywhere: bool | None = None) -> list[Endpoint]:
        """See `Cluster.endpoints`; each is an annotation of its replica's pod."""
        found = [endpoint for pod in self.api.list("Pod", JOB) for endpoint in endpoints_of(pod)]
        return [endpoint for endpoint in found if endpoint.name.startswith(prefix)]

    def _pods(self, job_id: str) -> list[Object]:
        return list(self.api.list("Pod", f"{JOB}={object_name(job_id)}"))


class KeyObject:
    """The key of a launch as a ConfigMap, which only one creates."""

    def __init__(self, api: Api, name: str) -> None:
        self._api, self._name = api, name
        found = api.get("ConfigMap", name)
        self.job_id = None if found is None else JobId(found["metadata"]["annotations"][JOB])

    def record(self, job_id: JobId) -> None:
        """Create it; who is second raises, launches again and finds the first one's job."""
        self._api.create("ConfigMap", {"metadata": {"name": self._name, "annotations": {JOB: job_id}}})


# From a plan to objects.


def object_name(job_id: str) -> str:
    """Return the name of a job's objects: an id has slashes and may be long, a name must not."""
    return f"fray-{hashlib.sha256(job_id.encode()).hexdigest()[:40]}"


def secret_of(name: str, plan: JobPlan) -> Object:
    """Return what no command line and no list may show: variables, the callable, and what runs it."""
    files = {
        "start.py": START.encode(),
        "ranks.json": json.dumps([ranks_of(name, plan, number) for number in range(plan.replicas)]).encode(),
        "runner.py": Path(str(runner.__file__)).read_bytes(),
        "payload.pkl": plan.payload or b"",
    }
    data = {key: base64.b64encode(value).decode() for key, value in files.items()}
    return {"kind": "Secret", "metadata": {"name": name}, "data": data, "stringData": plan.environ}


def ranks_of(name: str, plan: JobPlan, replica: int) -> Mapping[str, str]:
    """Return the variables of one replica; a gang meets at the first pod, by the set's headless service."""
    if plan.gang is None:
        return {"FRAY_REPLICA_ID": str(replica)}
    return rank_variables(plan.gang, replica, Meeting(f"{name}-slice-0-0.{name}", (8476, 8477)))


def job_set_of(name: str, plan: JobPlan) -> Object:
    """Return one replicated job for each slice, or one for all replicas."""
    call = ["python3", f"{MOUNT}/runner.py", f"{MOUNT}/payload.pkl"] if plan.payload else [*plan.command]
    units, hosts = (
        (plan.gang.units, plan.gang.hosts) if plan.gang and plan.gang.slices else (1, plan.replicas)
    )
    job = {"completionMode": "Indexed", "completions": hosts, "parallelism": hosts, "backoffLimit": 0}
    template = {
        "metadata": {"labels": {JOB: name, HOSTS: str(hosts)}},
        "spec": pod_of(name, plan, hosts, call),
    }
    return {
        "kind": "JobSet",
        "metadata": {"name": name, "labels": {JOB: name}, "annotations": {JOB: plan.job_id}},
        "spec": {
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": [
                {"name": "slice", "replicas": units, "template": {"spec": {**job, "template": template}}}
            ],
        },
    }


def pod_of(name: str, plan: JobPlan, hosts: int, call: list[str]) -> Object:
    """Return what one replica runs in, and what it asks of its node."""
    resources = plan.shown["resources"]
    own_slice = {"fieldRef": {"fieldPath": f"metadata.labels['{SLICE}']"}}
    container = {
        "name": "replica",
        "image": plan.shown["image"],
        "command": ["python3", f"{MOUNT}/start.py", *call],
        "envFrom": [{"secretRef": {"name": name}}],
        "env": [{"name": "HOSTS", "value": str(hosts)}, {"name": "SLICE", "valueFrom": own_slice}],
        "resources": {"requests": requests_of(resources), "limits": requests_of(resources)},
        "volumeMounts": [{"name": "plan", "mountPath": MOUNT, "readOnly": True}],
    }
    return {
        "restartPolicy": "Never",
        "nodeSelector": node_selector(resources),
        "containers": [container],
        "volumes": [{"name": "plan", "secret": {"secretName": name}}],
    }


def requests_of(resources: ResourceConfig) -> Object:
    """Return requests, which are limits too."""
    found: dict[str, Any] = {
        "cpu": resources.cpu,
        "memory": resources.ram_bytes,
        "ephemeral-storage": resources.disk_bytes,
    }
    if isinstance(resources.device, TpuConfig):
        found["google.com/tpu"] = resources.device.chips_per_host
    if isinstance(resources.device, GpuConfig):
        found["nvidia.com/gpu"] = resources.device.count
    return found


def node_selector(resources: ResourceConfig) -> Mapping[str, str]:
    """Return the labels of the nodes that it may run on."""
    found = {} if resources.preemptible else {"cloud.google.com/gke-spot": "false"}
    if isinstance(resources.device, TpuConfig):
        found["cloud.google.com/gke-tpu-accelerator"] = resources.device.type
        found["cloud.google.com/gke-tpu-topology"] = resources.device.topology
    if isinstance(resources.device, GpuConfig) and resources.device.type != "any":
        found[GPU] = resources.device.type
    return found


# From objects to what Fray says of a job.


def info_of(job_id: JobId, job_set: Object, pods: Iterable[Object]) -> JobInfo:
    """Derive a job's state; nothing is written."""
    latest: dict[int, TaskStatus] = {}
    for pod in sorted(pods, key=attempt_of):
        task = task_of(pod)
        before = latest.get(task.replica)
        latest[task.replica] = task_of(pod, previous=(*before.previous, before) if before else ())
    conditions = {
        str(each["type"]) for each in job_set["status"].get("conditions", ()) if each["status"] == "True"
    }
    tasks = tuple(latest[number] for number in sorted(latest))
    if "deletionTimestamp" in job_set["metadata"]:
        status = JobStatus.STOPPED
    elif conditions & {"Completed", "Failed"}:
        status = JobStatus.SUCCEEDED if "Completed" in conditions else JobStatus.FAILED
    else:
        started = any(task.status is not JobStatus.PENDING for task in tasks)
        status = JobStatus.RUNNING if started else JobStatus.PENDING
    failed = [task for task in tasks if task.status is JobStatus.FAILED]
    return JobInfo(
        job_id=job_id,
        name=job_id.leaf.rpartition("-")[0],
        status=status,
        tasks=tasks,
        error_message="; ".join(f"replica {task.replica}: {task.error_message}" for task in failed) or None,
        pending_reason=next((reason for pod in pods if (reason := waits_for(pod))), None),
    )


def task_of(pod: Object, previous: tuple[TaskStatus, ...] = ()) -> TaskStatus:
    """Derive the state of one replica's attempt."""
    status, code, reason, message = ended(pod)
    return TaskStatus(
        replica=number_of(pod),
        attempt=attempt_of(pod),
        status=status,
        exit_code=code,
        reason=reason,
        error_message=message,
        previous=previous,
    )


def ended(pod: Object) -> tuple[JobStatus, int | None, ExitReason | None, str | None]:
    """Say whether and why a pod ended: the table of the page."""
    status = pod["status"]
    conditions = {each["type"]: each for each in status.get("conditions", ()) if each["status"] != "Unknown"}
    states = [each["state"] for each in status.get("containerStatuses", ())]
    waiting = next((each["waiting"] for each in states if "waiting" in each), None)
    terminated = next((each["terminated"] for each in states if "terminated" in each), None)
    disruption = conditions.get("DisruptionTarget")
    if disruption is not None and disruption["reason"] == "PreemptionByScheduler":
        return JobStatus.FAILED, None, ExitReason.PREEMPTED, str(disruption["message"])
    if disruption is not None and disruption["reason"] in NODE_WENT:
        return JobStatus.FAILED, None, ExitReason.PREEMPTED, str(disruption["message"])
    if waiting is not None and waiting["reason"] in CANNOT_START:
        return JobStatus.FAILED, None, ExitReason.COULD_NOT_START, str(waiting["message"])
    if terminated is None:
        scheduled = bool(states) or status["phase"] == "Unknown"  # of which nothing is known: it stays
        return (JobStatus.RUNNING if scheduled else JobStatus.PENDING), None, None, None
    code = int(terminated["exitCode"])
    if terminated["reason"] == "OOMKilled":
        return JobStatus.FAILED, code, ExitReason.OUT_OF_MEMORY, "it took more memory than it had asked for"
    if code:
        return JobStatus.FAILED, code, ExitReason.EXITED, f"exit code {code}"
    return JobStatus.SUCCEEDED, 0, ExitReason.EXITED, None


def waits_for(pod: Object) -> str | None:
    """Return the scheduler's own words for why a pod is not placed."""
    for each in pod["status"].get("conditions", ()):
        if each["type"] == "PodScheduled" and each["status"] == "False":
            return f"{each['reason']}: {each['message']}"
    return None


def number_of(pod: Object) -> int:
    """Return a pod's replica."""
    labels = pod["metadata"]["labels"]
    return int(labels[SLICE]) * int(labels[HOSTS]) + int(labels[HOST])


def attempt_of(pod: Object) -> int:
    """Return which attempt a pod is, from 1."""
    return int(pod["metadata"]["labels"].get(ATTEMPT, 0)) + 1


def endpoints_of(pod: Object) -> Iterator[Endpoint]:
    """Read what a replica registered in its own pod."""
    for name, address in pod["metadata"].get("annotations", {}).items():
        if name.startswith("fray.endpoint/"):
            yield Endpoint(
                name=name.removeprefix("fray.endpoint/"),
                address=str(address),
                job_id=JobId(pod["metadata"]["annotations"][JOB]),
                replica=number_of(pod),
                attempt=attempt_of(pod),
                registered_at=float(pod["metadata"]["annotations"]["fray.registered-at"]),
            )
