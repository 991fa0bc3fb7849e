"""What happens when a node is lost: to tasks, to actors, to the replicas of a job."""

import os
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from job_processes import alive, parent
from metadata_server import MetadataServer
from ray._private.state import available_resources_per_node

from fray import ActorDiedError, ActorOptions, JobContext, TaskOptions, WorkerDiedError, create_context
from fray.cluster import Entrypoint, ExitReason, GpuConfig, JobRequest, JobStatus, ResourceConfig
from fray.testing.context import ContextFixtures  # noqa: F401 - it registers what pytest rewrites
from fray.testing.gates import Gate, until
from fray.testing.tasks import Counter, hold
from fray_ray import RayCluster
from fray_ray.testing import LocalRayCluster

pytestmark = pytest.mark.timeout(480)
WAITS_IN_A_WORKER = """
import os, pathlib, sys, time
if any("default_worker" in word for word in sys.orig_argv):
    raylet = os.getppid()
    pathlib.Path(__file__).with_name("coming-up").touch()
    while os.getppid() == raylet and not pathlib.Path(__file__).with_name("go").exists():
        time.sleep(0.1)
"""


@pytest.fixture
def context(ray_cluster: LocalRayCluster) -> Iterator[JobContext]:
    with create_context(f"ray?address={ray_cluster.address}") as context:
        yield context


@pytest.fixture
def place(request: pytest.FixtureRequest) -> str:
    """A resource of this test alone: for a while, Ray starts things on a killed node as if it lived."""
    return f"only-{request.node.name}"


@pytest.fixture
def doomed(ray_cluster: LocalRayCluster, place: str) -> Iterator[str]:
    """A node more, with a resource of its own, that the test may kill."""
    node = ray_cluster.add_node(num_cpus=2, resources={place: 2})
    yield node
    if node in ray_cluster.node_ids():
        ray_cluster.kill_node(node)


def free_on_each(resource: str) -> dict[str, float]:
    """How much of a resource is free on each node, as Ray says in this moment."""
    said = available_resources_per_node()  # type: ignore[no-untyped-call]
    return defaultdict(float, {node: free.get(resource, 0.0) for node, free in said.items()})


def test_a_task_whose_node_vanishes_says_so_and_one_with_retries_runs_again(
    context: JobContext, ray_cluster: LocalRayCluster, doomed: str, place: str, tmp_path: Path
) -> None:
    gate, started = Gate(tmp_path / "gate"), Gate(tmp_path / "started")
    again = Gate(tmp_path / "again")
    pinned = {"CPU": 1.0, place: 1.0}
    lost = context.create_task(hold, gate, started, options=TaskOptions(resources=pinned))
    retried = context.create_task(hold, gate, again, options=TaskOptions(resources=pinned, max_retries=1))
    started.wait()
    again.wait()
    ray_cluster.kill_node(doomed)
    with pytest.raises(WorkerDiedError):
        context.get(lost, timeout=200)
    gate.open()
    replacement = ray_cluster.add_node(num_cpus=2, resources={place: 2})
    assert context.get(retried, timeout=200) == "held"
    ray_cluster.kill_node(replacement)


def test_an_actor_dies_with_its_node(
    context: JobContext, ray_cluster: LocalRayCluster, doomed: str, place: str
) -> None:
    counter = context.create_actor(Counter, options=ActorOptions(resources={place: 1}))
    assert context.get(counter.increment()) == 1
    ray_cluster.kill_node(doomed)

    def dead() -> bool:
        try:
            context.get(counter.increment(), timeout=200)
        except ActorDiedError:
            return True
        return False  # its process has yet to notice

    until(dead, "the actor is dead")


def test_a_replica_whose_node_vanishes_runs_again_elsewhere_on_the_budget_of_preemptions(
    ray_cluster: LocalRayCluster, tmp_path: Path
) -> None:
    # More memory than any node of the session has: it can run nowhere but on the nodes made here.
    first = ray_cluster.add_node(num_cpus=1, memory=64 * 2**30)
    started, gate = Gate(tmp_path / "started"), Gate(tmp_path / "gate")
    cluster = RayCluster(ray_cluster.address)
    request = JobRequest(
        "preempted",
        Entrypoint.from_callable(hold, [gate, started]),
        resources=ResourceConfig(cpu=1, ram="32g"),
        max_retries_preemption=1,
    )
    job_id = cluster.launch(request)
    started.wait()
    second = ray_cluster.add_node(num_cpus=1, memory=64 * 2**30)
    ray_cluster.kill_node(first)
    until(lambda: cluster.poll(job_id).tasks[0].attempt == 2, "the replica runs again")
    gate.open()
    info = cluster.wait(job_id, timeout=200)
    (task,) = info.tasks
    assert (info.status, task.attempt) == (JobStatus.SUCCEEDED, 2)
    assert [earlier.reason for earlier in task.previous] == [ExitReason.PREEMPTED]
    ray_cluster.kill_node(second)


def test_a_replica_whose_next_node_vanishes_too_while_it_starts_there_is_stopped_with_its_past(
    ray_cluster: LocalRayCluster, tmp_path: Path
) -> None:
    # On the second node no worker comes up: Python waits as soon as it starts one.
    (tmp_path / "sitecustomize.py").write_text(WAITS_IN_A_WORKER)
    started, coming_up = Gate(tmp_path / "started"), Gate(tmp_path / "coming-up")
    memory = 64 * 2**30
    first = ray_cluster.add_node(num_cpus=1, memory=memory)
    cluster = RayCluster(ray_cluster.address)
    request = JobRequest(
        "unlucky",
        Entrypoint.from_callable(hold, [Gate(tmp_path / "never"), started]),
        resources=ResourceConfig(cpu=1, ram="32g"),
        max_retries_preemption=2,
    )
    job_id = cluster.launch(request)
    started.wait()
    with mock.patch.dict(os.environ, {"PYTHONPATH": os.fspath(tmp_path)}):
        second = ray_cluster.add_node(num_cpus=1, memory=memory)
    ray_cluster.kill_node(first)
    until(lambda: first in (cluster.poll(job_id).tasks[0].error_message or ""), "the first loss is known")
    coming_up.wait()
    ray_cluster.kill_node(second)
    (log,) = cluster.poll(job_id).logs
    placed_again = f"[fray] replica 0 is placed again: it lost its node {second}"
    until(lambda: placed_again in Path(log).read_text(), "the second is, too")
    (task,) = cluster.poll(job_id).tasks
    assert (task.status, task.reason, task.attempt) == (JobStatus.PENDING, ExitReason.PREEMPTED, 1)
    cluster.terminate(job_id, grace=0.0)
    (task,) = cluster.poll(job_id).tasks
    assert (task.status, task.reason, task.attempt) == (JobStatus.STOPPED, ExitReason.STOPPED, 2)
    assert task.started_at is None
    assert [(each.attempt, each.reason) for each in task.previous] == [(1, ExitReason.PREEMPTED)]


def test_a_host_that_is_up_waits_for_one_that_comes_up_later_than_its_lease(
    ray_cluster: LocalRayCluster, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(WAITS_IN_A_WORKER)
    memory, seconds = 64 * 2**30, 60.0  # after which an actor ends that no scheduler calls
    first = ray_cluster.add_node(num_cpus=1, memory=memory)
    with mock.patch.dict(os.environ, {"PYTHONPATH": os.fspath(tmp_path)}):
        second = ray_cluster.add_node(num_cpus=1, memory=memory)
    cluster = RayCluster(ray_cluster.address)
    resources = ResourceConfig(cpu=1, ram="48g", replicas=2)  # one on each
    request = JobRequest("late", Entrypoint.from_binary("true"), resources=resources, gang=True)
    job_id = cluster.launch(request)
    Gate(tmp_path / "coming-up").wait()
    late = time.monotonic() + seconds + 10.0
    until(lambda: time.monotonic() > late, "its lease is over", 2 * seconds)
    assert cluster.poll(job_id).status is JobStatus.PENDING
    (tmp_path / "go").touch()
    info = cluster.wait(job_id, timeout=200)
    assert (info.status, [task.attempt for task in info.tasks]) == (JobStatus.SUCCEEDED, [1, 1]), info
    ray_cluster.kill_node(first)
    ray_cluster.kill_node(second)


def test_a_job_whose_places_ray_refuses_fails_with_its_exception(
    ray_cluster: LocalRayCluster,
) -> None:
    cluster = RayCluster(ray_cluster.address)
    nowhere = ResourceConfig(regions=["no label of Ray's!"])
    info = cluster.wait(
        cluster.launch(JobRequest("nowhere", Entrypoint.from_binary("true"), resources=nowhere)), timeout=200
    )
    assert (info.status, info.tasks[0].reason) == (JobStatus.FAILED, ExitReason.COULD_NOT_START)
    assert "it could not be placed: ValueError" in str(info.error_message)


def test_a_replica_that_ends_because_its_node_is_drained_was_preempted(
    ray_cluster: LocalRayCluster, tmp_path: Path
) -> None:
    def end_when_told(started: list[Gate], told: Gate, noticed: Gate) -> None:
        import os
        import signal
        import sys

        from fray.job import preemption_notice

        def leave(*_: object) -> None:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # else one may end it while it exits
            sys.exit(3)

        rank = int(os.environ["FRAY_REPLICA_ID"])
        if started[rank].is_open():  # the second attempt
            return
        if rank == 0:  # it knows from elsewhere
            signal.signal(signal.SIGTERM, leave)  # which the notice sends, where it is first
            started[rank].open()
            told.wait()
        else:
            notice = preemption_notice()
            started[rank].open()
            assert notice.wait(200)
            assert notice.is_set()
            assert 0.0 < (notice.seconds_left or 0.0) < 60.0
            noticed.open()
        leave()

    first = ray_cluster.add_node(num_cpus=1, memory=64 * 2**30)
    started = [Gate(tmp_path / f"started-{rank}") for rank in (0, 1)]
    told, noticed = Gate(tmp_path / "told"), Gate(tmp_path / "noticed")
    cluster = RayCluster(ray_cluster.address)
    request = JobRequest(
        "drained",
        Entrypoint.from_callable(end_when_told, [started, told, noticed]),
        resources=ResourceConfig(cpu=0.5, ram="32g", replicas=2),
        max_retries_preemption=2,
    )
    job_id = cluster.launch(request)
    for gate in started:
        gate.wait()
    ray_cluster.drain_node(first)
    told.open()
    noticed.wait()

    def preempted() -> bool:
        info = cluster.poll(job_id)
        assert not info.finished, info
        return [task.reason for task in info.tasks] == [ExitReason.PREEMPTED] * 2

    until(preempted, "both read preempted")
    second = ray_cluster.add_node(num_cpus=1, memory=64 * 2**30)
    ray_cluster.kill_node(first)
    info = cluster.wait(job_id, timeout=200)
    assert info.status is JobStatus.SUCCEEDED, info.error_message
    assert [task.attempt for task in info.tasks] == [2, 2]
    for task in info.tasks:
        (earlier,) = task.previous
        assert (earlier.reason, earlier.exit_code) == (ExitReason.PREEMPTED, 3), earlier.error_message
    ray_cluster.kill_node(second)


@pytest.mark.parametrize("how", ["drained", "preempted by its provider"])
@pytest.mark.parametrize("replicas", [1, 2])
def test_replicas_that_leave_a_node_which_goes_run_on_another_before_it_has_gone(
    ray_cluster: LocalRayCluster, tmp_path: Path, provider: MetadataServer, replicas: int, how: str
) -> None:
    with mock.patch.dict(os.environ, {"GCE_METADATA_HOST": provider.host}):
        first = ray_cluster.add_node(num_cpus=2, memory=64 * 2**30)
    cluster = RayCluster(ray_cluster.address)
    request = JobRequest(
        "leaves",
        Entrypoint.from_callable(write_pid_then_wait, [tmp_path / "pid", 3]),
        resources=ResourceConfig(cpu=1, ram="32g", replicas=replicas),
        max_retries_preemption=replicas,
    )
    job_id = cluster.launch(request)
    up = [tmp_path / f"pid-{rank}" for rank in range(replicas)]
    until(lambda: all(path.exists() for path in up), "they run")
    if how == "drained":
        ray_cluster.drain_node(first, seconds=3600.0)
    else:
        provider.preempted = "TRUE"
    second = ray_cluster.add_node(num_cpus=2, memory=64 * 2**30)
    info = cluster.wait(job_id, timeout=200)
    assert info.status is JobStatus.SUCCEEDED, info.error_message
    assert [[each.reason for each in task.previous] for task in info.tasks] == [
        [ExitReason.PREEMPTED]
    ] * replicas
    says = "is drained" if how == "drained" else "its provider says preempted: TRUE"
    assert all(says in (each.error_message or "") for task in info.tasks for each in task.previous), info
    assert first in ray_cluster.node_ids()
    ray_cluster.kill_node(first)
    ray_cluster.kill_node(second)


UP = "up, and no more on this line"


def write_pid_then_wait(written: Path, ends_with: int) -> None:
    """Write a process id and wait; SIGTERM ends it, with that code if it is one. Attempt 2 returns."""
    import os
    import signal
    import sys
    import time

    if os.environ["FRAY_ATTEMPT"] != "1":
        return
    if ends_with > 0:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(ends_with))
    rank = os.environ["FRAY_REPLICA_ID"]
    print(UP, end="", flush=True)
    draft = written.with_name(f"draft-{rank}")
    draft.write_text(str(os.getpid()))
    draft.rename(f"{written}-{rank}")
    time.sleep(600)


def end_by_sigterm(written: Path) -> None:
    """Signal the program as a machine does that shuts down; return when its supervisor has ended too."""
    written = written.with_name(f"{written.name}-0")
    until(written.exists, "it runs")
    pid = int(written.read_text())
    supervisor = parent(pid)
    os.kill(pid, signal.SIGTERM)
    until(lambda: not alive(pid) and not alive(supervisor), "it has ended")


def end_is_known(cluster: RayCluster, job_id: str) -> bool:
    """Whether the scheduler knows how the program has ended: it has completed its last line then."""
    (log,) = cluster.poll(job_id).logs
    return f"{UP}\n" in Path(log).read_text()


@pytest.mark.parametrize(("gang", "code"), [(False, -signal.SIGTERM), (True, 143)], ids=["alone", "gang"])
def test_a_replica_whose_program_is_signalled_just_before_its_node_goes_was_preempted(
    ray_cluster: LocalRayCluster, tmp_path: Path, gang: bool, code: int
) -> None:
    first = ray_cluster.add_node(num_cpus=1, memory=64 * 2**30)
    written = tmp_path / "pid"
    cluster = RayCluster(ray_cluster.address)
    request = JobRequest(
        "shut-down",
        Entrypoint.from_callable(write_pid_then_wait, [written, int(code)]),
        resources=ResourceConfig(cpu=1, ram="32g"),
        gang=gang,
        max_retries_preemption=1,
    )
    job_id = cluster.launch(request)
    end_by_sigterm(written)
    # Its node goes a moment later, when its end has been reported: Ray's workers end with a raylet.
    until(lambda: end_is_known(cluster, job_id), "the end of the program is known")
    ray_cluster.kill_node(first)

    def preempted() -> bool:
        info = cluster.poll(job_id)
        assert not info.finished, info
        return info.tasks[0].reason is ExitReason.PREEMPTED

    until(preempted, "it reads preempted")
    second = ray_cluster.add_node(num_cpus=1, memory=64 * 2**30)
    info = cluster.wait(job_id, timeout=200)
    (task,) = info.tasks
    assert (info.status, task.attempt) == (JobStatus.SUCCEEDED, 2), info.error_message
    (earlier,) = task.previous
    assert (earlier.reason, earlier.exit_code) == (ExitReason.PREEMPTED, code), earlier
    assert f"it lost its node {first}" in str(earlier.error_message)
    ray_cluster.kill_node(second)


@pytest.mark.parametrize("gang", [False, True], ids=["alone", "gang"])
def test_a_replica_whose_program_is_signalled_on_a_node_that_stays_has_failed(
    ray_cluster: LocalRayCluster, tmp_path: Path, gang: bool
) -> None:
    cluster = RayCluster(ray_cluster.address)
    entrypoint = Entrypoint.from_callable(write_pid_then_wait, [tmp_path / "pid", -signal.SIGTERM])
    job_id = cluster.launch(JobRequest("signalled", entrypoint, gang=gang, max_retries_preemption=9))
    end_by_sigterm(tmp_path / "pid")
    info = cluster.wait(job_id, timeout=200)
    (task,) = info.tasks
    assert (info.status, task.attempt) == (JobStatus.FAILED, 1), info
    assert (task.reason, task.exit_code) == (ExitReason.SIGNALLED, -signal.SIGTERM)


def test_a_job_that_finds_no_room_says_what_is_missing_and_fails_after_its_time(
    ray_cluster: LocalRayCluster,
) -> None:
    patient = RayCluster(ray_cluster.address)
    request = JobRequest("large", Entrypoint.from_binary("true"), resources=ResourceConfig(cpu=500))
    waiting = patient.launch(request)
    until(lambda: "500" in (patient.poll(waiting).pending_reason or ""), "the reason is shown", 20.0)
    info = patient.poll(waiting)
    assert info.status is JobStatus.PENDING
    assert "CPU" in str(info.pending_reason)
    patient.terminate(waiting, grace=0.0)
    assert patient.poll(waiting).status is JobStatus.STOPPED

    hasty = RayCluster(ray_cluster.address, placement_timeout=0.5)
    info = hasty.wait(hasty.launch(request), timeout=200)
    assert info.status is JobStatus.FAILED
    assert "not placed within 0.5 s" in str(info.error_message)
    assert info.tasks[0].reason is ExitReason.COULD_NOT_START


def test_a_replica_that_must_stay_is_on_the_head(
    context: JobContext, ray_cluster: LocalRayCluster, tmp_path: Path
) -> None:
    cluster = RayCluster(ray_cluster.address)
    started, gate = Gate(tmp_path / "started"), Gate(tmp_path / "gate")
    entrypoint = Entrypoint.from_callable(hold, [gate, started])
    job_id = cluster.launch(JobRequest("stays", entrypoint, resources=ResourceConfig(preemptible=False)))
    started.wait()
    head, *others = ray_cluster.node_ids()
    context.put(0)  # joins the cluster, which Ray's own call asks about

    def only_the_head_has_a_replica() -> bool:  # Ray says what is free a little later, and no zeros
        free = free_on_each("CPU")
        return free[head] == 1 and all(free[node] > 1 for node in others)

    until(only_the_head_has_a_replica, "it is on the head, and nothing is elsewhere")
    gate.open()
    assert cluster.wait(job_id, timeout=200).status is JobStatus.SUCCEEDED


def test_gpus_and_regions_choose_the_node(
    context: JobContext, ray_cluster: LocalRayCluster, tmp_path: Path
) -> None:
    def tell(started: Gate, gate: Gate) -> None:
        import os

        names = ("CUDA_VISIBLE_DEVICES", "JAX_PLATFORMS", "RANK", "WORLD_SIZE")
        print(*(os.environ.get(name) for name in names))
        hold(gate, started)

    region = {"ray.io/availability-region": "eu-west4"}
    far = ray_cluster.add_node(num_cpus=1, num_gpus=2, gpu_type="H100")
    near = ray_cluster.add_node(num_cpus=1, num_gpus=2, gpu_type="H100", labels=region)
    cluster = RayCluster(ray_cluster.address)
    started, gate = Gate(tmp_path / "started"), Gate(tmp_path / "gate")
    resources = ResourceConfig(cpu=1, device=GpuConfig("H100", 2), regions=["eu-west4"])
    request = JobRequest("gpus", Entrypoint.from_callable(tell, [started, gate]), resources=resources)
    job_id = cluster.launch(request)
    started.wait()
    until(lambda: [free_on_each("GPU")[node] for node in (far, near)] == [2, 0], "the near one is taken")
    gate.open()
    assert cluster.wait(job_id, timeout=200).status is JobStatus.SUCCEEDED
    assert list(cluster.monitor(job_id)) == ["0,1 None 0 1"]
    absent = replace(request, resources=ResourceConfig(cpu=1, device=GpuConfig("A100-80G")))
    waiting = cluster.launch(absent)
    until(
        lambda: "A100-80G: 0 of 0 free" in (cluster.poll(waiting).pending_reason or ""), "the type is named"
    )
    assert "start nodes with --resources" in str(cluster.poll(waiting).pending_reason)
    cluster.terminate(waiting, grace=0.0)
    for node in (far, near):
        ray_cluster.kill_node(node)


def test_a_value_lost_with_its_node_is_made_again_where_retries_allow_it(
    context: JobContext, ray_cluster: LocalRayCluster, doomed: str, place: str, tmp_path: Path
) -> None:
    def make(diary: Path) -> bytes:
        with diary.open("a") as file:
            file.write("x")
        return bytes(2_000_000)  # what is small travels with its reference, and is not lost

    pinned = {"CPU": 1.0, place: 1.0}
    once, twice = tmp_path / "once", tmp_path / "twice"
    lost = context.create_task(make, once, options=TaskOptions(resources=pinned))
    again = context.create_task(make, twice, options=TaskOptions(resources=pinned, max_retries=1))
    assert context.wait([lost, again], num_returns=2, timeout=200)[1] == []
    ray_cluster.kill_node(doomed)
    replacement = ray_cluster.add_node(num_cpus=2, resources={place: 2})
    with pytest.raises(WorkerDiedError, match="max_retries"):
        context.get(lost, timeout=200)
    assert len(context.get(again, timeout=200)) == 2_000_000
    assert (once.read_text(), twice.read_text()) == ("x", "xx")
    ray_cluster.kill_node(replacement)
