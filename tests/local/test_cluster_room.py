"""The machine's CPUs, memory and GPUs are counted, across all processes that launch jobs."""

import contextlib
import itertools
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fray import UnsupportedError
from fray.cluster import (
    Entrypoint,
    GpuConfig,
    JobId,
    JobRequest,
    JobStatus,
    ResourceConfig,
    create_cluster,
)
from fray.testing.cluster import launch, program, until
from fray_local import LocalCluster
from fray_local.testing import Amounts, Claim, admit

SLEEP = "import time; time.sleep(600)"
HOLD = """
    import os, sys, time
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
"""


def pending_reason(cluster: LocalCluster, job_id: JobId) -> str:
    """What a pending job waits for, as soon as it has said so."""
    until(lambda: "waiting for" in (cluster.poll(job_id).pending_reason or ""), "the job waits")
    return cluster.poll(job_id).pending_reason or ""


def test_a_job_waits_for_room_says_so_and_starts_when_there_is(tmp_path: Path) -> None:
    cluster = LocalCluster(cpus=2, memory="4g")
    go = tmp_path / "go"
    first = launch(cluster, program(HOLD, go), "first", resources=ResourceConfig(cpu=1.5, ram="1g"))
    until(lambda: cluster.poll(first).status is JobStatus.RUNNING, "the first starts")
    second = launch(cluster, program("pass"), "second", resources=ResourceConfig(cpu=1, ram="3.5g"))
    reason = pending_reason(cluster, second)
    assert "1 CPU (0.5 CPUs of 2 CPUs free) and 3.5 GiB (3 GiB of 4 GiB free)" in reason
    assert f"running: {first}" in reason
    assert cluster.poll(second).status is JobStatus.PENDING
    go.touch()
    assert [info.status for info in cluster.wait([first, second], timeout=30)] == [JobStatus.SUCCEEDED] * 2
    assert cluster.poll(second).pending_reason is None


def test_who_leaves_gives_back_its_own_room_before_it_reads_finished(state_dir: Path, tmp_path: Path) -> None:
    cluster = LocalCluster(cpus=2)
    ends, stays = tmp_path / "ends", tmp_path / "stays"
    first, second = (
        launch(cluster, program(HOLD, go), resources=ResourceConfig(cpu=1)) for go in (ends, stays)
    )
    until(lambda: cluster.poll(second).status is JobStatus.RUNNING, "both run")
    ends.touch()
    assert cluster.wait(first, timeout=30).status is JobStatus.SUCCEEDED
    third = launch(cluster, program("pass"), resources=ResourceConfig(cpu=2))
    assert f"2 CPUs (1 CPU of 2 CPUs free); running: {second}" in pending_reason(cluster, third)
    stays.touch()
    assert cluster.wait(third, timeout=30).status is JobStatus.SUCCEEDED
    (claims,) = state_dir.glob("claims.*.json")
    assert json.loads(claims.read_text()) == []


def test_two_launchers_race_for_the_last_cpu(tmp_path: Path) -> None:
    code = """
import sys
from fray.cluster import *
cluster = create_cluster("local?cpus=1")
job = Entrypoint.from_binary("python", ["-c", sys.argv[1], sys.argv[2]])
ids = [cluster.launch(JobRequest("racer", job)) for _ in range(5)]
print(*(info.status for info in cluster.wait(ids)))
"""
    # One that runs while another does finds the file, and fails.
    alone = """
import os, sys, time
os.close(os.open(sys.argv[1], os.O_CREAT | os.O_EXCL))
time.sleep(0.02)
os.unlink(sys.argv[1])
"""
    taken = tmp_path / "taken"
    launchers = [
        subprocess.Popen([sys.executable, "-c", code, alone, taken], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outcomes = Counter(word for launcher in launchers for word in launcher.communicate(timeout=60)[0].split())
    assert outcomes == {"succeeded": 10}


def test_a_launch_between_two_steps_of_another_is_not_given_the_same_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, go = LocalCluster(cpus=1), tmp_path / "go"
    rename, jobs = Path.rename, list[JobId]()

    def overtaken(draft: Path, record: Path) -> Path:
        monkeypatch.setattr(Path, "rename", rename)
        jobs.append(launch(cluster, program(HOLD, go)))
        return rename(draft, record)

    monkeypatch.setattr(Path, "rename", overtaken)
    jobs.append(launch(cluster, program(HOLD, go)))
    until(lambda: JobStatus.RUNNING in {cluster.poll(job_id).status for job_id in jobs}, "one runs")
    (waits,) = (job_id for job_id in jobs if cluster.poll(job_id).status is not JobStatus.RUNNING)
    assert "1 CPU (0 CPUs of 1 CPU free)" in pending_reason(cluster, waits)
    go.touch()
    assert [info.status for info in cluster.wait(jobs, timeout=30)] == [JobStatus.SUCCEEDED] * 2


def test_the_first_gpus_are_of_those_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    cluster = LocalCluster(gpus=1)
    shows = program("import os; print(os.environ['CUDA_VISIBLE_DEVICES'])")
    job_id = launch(cluster, shows, resources=ResourceConfig.with_gpu("H100", 1))
    assert cluster.wait(job_id, timeout=30).status is JobStatus.SUCCEEDED
    assert list(cluster.monitor(job_id)) == ["4"]
    with pytest.raises(ValueError, match=r"gpus must be at most 2, because there are the GPUs 4,5, got 3"):
        LocalCluster(gpus=3)


@pytest.mark.parametrize("damage", [{"later": 1}, 5, [5], {"record": "x"}, None])
def test_a_claim_that_cannot_be_read_frees_nothing_of_the_others(
    state_dir: Path, tmp_path: Path, damage: Any
) -> None:
    cluster, go = LocalCluster(gpus=1), tmp_path / "go"
    first = launch(cluster, program(HOLD, go), resources=ResourceConfig.with_gpu("H100", 1))
    (path,) = state_dir.glob("claims.*.json")
    (row,) = json.loads(path.read_text())
    path.write_text(json.dumps([row | {"later": {"of": [1]}}, damage, row | {"record": "x", "need": 7}]))
    second = launch(cluster, program("pass"), resources=ResourceConfig.with_gpu("H100", 1))
    assert "waiting for 1 GPU (0 GPUs of 1 GPU free)" in pending_reason(cluster, second)
    go.touch()
    infos = cluster.wait([first, second], timeout=30)
    assert [info.status for info in infos] == [JobStatus.SUCCEEDED] * 2


def test_amounts_of_a_cluster_are_the_same_for_those_who_open_its_spec() -> None:
    assert LocalCluster(memory=8 * 2**30, cpus=2.0).spec == "local?cpus=2&memory=8g"
    assert LocalCluster(memory=8 * 2**30 + 1).spec == "local?memory=8589934593b"
    assert LocalCluster(cpus=1.23456789).spec == "local?cpus=1.23456789"
    for cluster in (LocalCluster(memory=2**30), LocalCluster(memory="1.5g", cpus=1e-7)):
        opened: Any = create_cluster(cluster.spec)
        assert opened.spec == cluster.spec


def test_what_can_never_fit_is_refused_at_launch() -> None:
    cluster = LocalCluster(cpus=2, memory="4g", gpus=1)
    for resources, needed, there in (
        (ResourceConfig(cpu=1, replicas=3), "3 CPUs", "2 CPUs"),
        (ResourceConfig(ram="8g"), "8 GiB", "4 GiB"),
        (ResourceConfig.with_gpu("H100", 2), "2 GPUs", "1 GPU"),
    ):
        with pytest.raises(UnsupportedError, match=f"needs {needed}, this machine has {there}.*overcommit"):
            launch(cluster, program("pass"), resources=resources)
    assert cluster.list_jobs() == []


def test_of_several_acceptable_numbers_of_replicas_the_first_that_fits_runs() -> None:
    cluster = LocalCluster(cpus=2)
    code = "import os; print(os.environ['FRAY_REPLICA_COUNT'])"
    job_id = launch(cluster, program(code), resources=ResourceConfig(replicas=(4, 2, 1)))
    assert sorted(cluster.monitor(job_id)) == ["[replica-0] 2", "[replica-1] 2"]


def test_overcommit_starts_everything_at_once(tmp_path: Path) -> None:
    cluster = LocalCluster(cpus=1, overcommit=True)
    ids = [launch(cluster, program(SLEEP), resources=ResourceConfig(cpu=100, ram="1000g")) for _ in range(3)]
    for job_id in ids:
        until(lambda job_id=job_id: cluster.poll(job_id).status is JobStatus.RUNNING, "the job runs")  # type: ignore[misc]
        cluster.terminate(job_id, grace=0.0)


def test_gpu_jobs_see_gpus_of_their_own(tmp_path: Path) -> None:
    cluster = LocalCluster(cpus=8, gpus=4)
    code = """
        import os, sys, time
        print(os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
        while not os.path.exists(sys.argv[1]):
            time.sleep(0.01)
    """
    go = tmp_path / "go"
    one = launch(cluster, program(code, go), resources=ResourceConfig.with_gpu("H100", 1))
    assert next(cluster.monitor(one)) == "0"
    pair = ResourceConfig(device=GpuConfig("H100", 1), replicas=2)
    two = launch(cluster, program(code, go), resources=pair)
    assert sorted(itertools.islice(cluster.monitor(two), 2)) == [
        "[replica-0] 1",
        "[replica-1] 2",
    ]
    waits = launch(cluster, program(code, go), resources=ResourceConfig.with_gpu("H100", 2))
    assert "2 GPUs (1 GPU of 4 GPUs free)" in pending_reason(cluster, waits)
    go.touch()
    assert len(next(cluster.monitor(waits)).split(",")) == 2
    cluster.wait([one, two, waits], timeout=30)


def test_a_task_of_a_gpu_job_finds_a_gpu_of_the_job(tmp_path: Path) -> None:
    cluster, go = LocalCluster(cpus=2, gpus=2), tmp_path / "go"
    code = """
        import os
        from fray import TaskOptions, create_context
        with create_context("process", max_workers=1) as context:
            gpu = TaskOptions(resources={"GPU": 1})
            task = context.create_task(os.getenv, "CUDA_VISIBLE_DEVICES", options=gpu)
            print(os.environ["CUDA_VISIBLE_DEVICES"], context.get(task))
    """
    one = ResourceConfig.with_gpu("H100", 1)
    holds = launch(cluster, program(HOLD, go), resources=one)
    until(lambda: cluster.poll(holds).status is JobStatus.RUNNING, "the first runs")
    asks = launch(cluster, program(code), resources=one)
    assert list(cluster.monitor(asks)) == ["1 1"]
    go.touch()
    assert cluster.wait(holds, timeout=30).status is JobStatus.SUCCEEDED


def test_a_member_of_a_sweep_that_never_had_room_leaves_that_of_another_sweep(tmp_path: Path) -> None:
    cluster, go = LocalCluster(cpus=1), tmp_path / "go"
    failed = launch(cluster, program("raise SystemExit(3)"))
    assert cluster.wait(failed, timeout=30).status is JobStatus.FAILED
    holds = cluster.launch_many([JobRequest("holds", program(HOLD, go))])
    until(lambda: cluster.poll(holds).status is JobStatus.RUNNING, "the first sweep runs")
    never = cluster.launch_many([JobRequest("never", program("pass"), after=[failed])])
    assert cluster.wait(never, timeout=30).status is JobStatus.FAILED
    waits = launch(cluster, program("pass"))
    assert f"running: {holds}/0" in pending_reason(cluster, waits)
    go.touch()
    assert [info.status for info in cluster.wait([holds, waits], timeout=30)] == [JobStatus.SUCCEEDED] * 2


def test_a_job_whose_turn_comes_while_its_claim_cannot_be_written_waits_on(
    state_dir: Path, tmp_path: Path
) -> None:
    cluster, go = LocalCluster(cpus=1), tmp_path / "go"
    holds, waits = launch(cluster, program(HOLD, go)), launch(cluster, program("pass"))
    pending_reason(cluster, waits)
    (claims,) = state_dir.glob("claims.*.json")
    draft = claims.with_name(f"{claims.name}.new")
    draft.mkdir()  # as on a disk that is full, the file cannot be replaced
    go.touch()
    assert cluster.wait(holds, timeout=30).status is JobStatus.SUCCEEDED
    until(lambda: "directory" in (cluster.poll(waits).pending_reason or ""), "the job says why it waits")
    draft.rmdir()
    assert cluster.wait(waits, timeout=30).status is JobStatus.SUCCEEDED


@contextlib.contextmanager
def unreadable(path: Path) -> Iterator[None]:
    """Have a file be one that is there and cannot be read."""
    aside, loop = path.with_name("aside"), path.with_name("loop")
    aside.hardlink_to(path)
    loop.symlink_to(path)
    loop.replace(path)
    yield
    aside.replace(path)


def test_a_claim_whose_record_cannot_be_read_for_a_moment_is_kept(state_dir: Path, tmp_path: Path) -> None:
    cluster, go = LocalCluster(cpus=1), tmp_path / "go"
    holds = launch(cluster, program(HOLD, go))
    until(lambda: cluster.poll(holds).status is JobStatus.RUNNING, "the first runs")
    with unreadable(state_dir / "jobs" / holds / "lock"):
        waits = launch(cluster, program("pass"))
        assert f"running: {holds}" in pending_reason(cluster, waits)
    (claims,) = state_dir.glob("claims.*.json")
    with unreadable(claims), pytest.raises(OSError, match="claims"):
        launch(cluster, program("pass"))
    assert f"running: {holds}" in pending_reason(cluster, launch(cluster, program("pass")))
    go.touch()
    jobs = [info.job_id for info in cluster.list_jobs()]
    assert [info.status for info in cluster.wait(jobs, timeout=30)] == [JobStatus.SUCCEEDED] * 3


def test_a_stopped_job_leaves_the_queue(tmp_path: Path) -> None:
    cluster = LocalCluster(cpus=1)
    go = tmp_path / "go"
    first, second, third = (launch(cluster, program(HOLD, go)) for _ in range(3))
    pending_reason(cluster, third)
    cluster.terminate(second)
    assert cluster.poll(second).status is JobStatus.STOPPED
    assert cluster.poll(second).started_at is None
    go.touch()
    assert [info.status for info in cluster.wait([first, third], timeout=30)] == [JobStatus.SUCCEEDED] * 2


def test_a_child_starts_before_jobs_that_wait_for_its_parent() -> None:
    cluster = LocalCluster(cpus=2)
    code = """
        import time
        from fray.cluster import *
        cluster = current_cluster()
        while "waiting" not in str([job.pending_reason for job in cluster.list_jobs() if job.name == "big"]):
            time.sleep(0.01)
        child = cluster.launch(JobRequest("child", Entrypoint.from_binary("true")))
        cluster.wait(child, raise_on_failure=True)
    """
    parent = launch(cluster, program(code), "parent")
    until(lambda: cluster.poll(parent).status is JobStatus.RUNNING, "the parent starts")
    big = launch(cluster, program("pass"), "big", resources=ResourceConfig(cpu=2))
    infos = cluster.wait([parent, big], timeout=30)
    assert [info.status for info in infos] == [JobStatus.SUCCEEDED] * 2


def test_a_child_that_does_not_fit_beside_its_parent_holds_no_other_job_up(tmp_path: Path) -> None:
    cluster, go = LocalCluster(cpus=4), tmp_path / "go"
    code = """
        import os, sys, time
        from fray.cluster import *
        child = JobRequest("child", Entrypoint.from_binary("true"), resources=ResourceConfig(cpu=4))
        print(current_cluster().launch(child), flush=True)
        while not os.path.exists(sys.argv[1]):
            time.sleep(0.01)
    """
    parent = launch(cluster, program(code, go), "parent", resources=ResourceConfig(cpu=2))
    child = JobId(next(cluster.monitor(parent)))
    other = launch(cluster, program("pass"), "other")
    assert cluster.wait(other, timeout=30).status is JobStatus.SUCCEEDED
    assert f"it cannot start while its parent {parent} holds 2 CPUs" in pending_reason(cluster, child)
    go.touch()
    infos = cluster.wait([parent, child], timeout=30)
    assert [info.status for info in infos] == [JobStatus.SUCCEEDED] * 2


def claims_of(needs: list[tuple[int, bool]], cpus: int) -> list[Claim]:
    return [
        Claim(
            job=str(number),
            record=str(number),
            ticket=number,
            child=child,
            need=Amounts(cpu=cpu, gpu=cpu),
            room=Amounts(cpu=cpus, gpu=cpus),
            gpu_ids=tuple(str(gpu) for gpu in range(cpus)),
        )
        for number, (cpu, child) in enumerate(needs)
    ]


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=12), st.integers(4, 6), st.randoms())
def test_room_is_never_given_twice_and_everyone_gets_some(
    needs: list[tuple[int, bool]], cpus: int, random: Any
) -> None:
    waiting = claims_of(needs, cpus)
    started: list[str] = []
    running: list[Claim] = []
    while waiting or running:
        claims = waiting + running
        granted = admit(claims)
        running = [claim for claim in claims if claim.granted]
        waiting = [claim for claim in claims if not claim.granted]
        started += [claim.job for claim in granted]
        gpus = [gpu for claim in running for gpu in claim.gpus]
        assert sum(claim.need.cpu for claim in running) <= cpus
        assert len(gpus) == len(set(gpus)) == sum(claim.need.gpu for claim in running)
        assert running, "nobody runs and nobody starts"
        running.remove(random.choice(running))
    assert sorted(started, key=int) == [str(number) for number in range(len(needs))]
    roots = [job for job in started if not needs[int(job)][1]]
    if not any(child for _, child in needs):
        # All are of one kind: nobody overtakes.
        assert roots == sorted(roots, key=int)


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 11), st.booleans()), min_size=1, max_size=12),
    st.integers(4, 6),
)
def test_a_child_that_cannot_start_beside_its_parents_changes_nothing_for_others(
    jobs: list[tuple[int, int, bool]], cpus: int
) -> None:
    ids: list[str] = []
    for number, (_, parent, _) in enumerate(jobs):  # a job of those before it, or of none
        ids.append(f"{ids[parent]}/{number}" if parent < number else str(number))
    claims = [
        claim._replace(job=job, child="/" in job)
        for claim, job in zip(claims_of([(cpu, False) for cpu, _, _ in jobs], cpus), ids, strict=True)
    ]
    admit(running := [claim for claim, (_, _, runs) in zip(claims, jobs, strict=True) if runs])
    running = [claim for claim in running if claim.granted]
    waiting = [claim for claim in claims if claim.job not in {one.job for one in running}]

    def above(claim: Claim) -> int:
        return sum(int(one.need.cpu) for one in running if claim.job.startswith(f"{one.job}/"))

    stuck = {claim.job for claim in waiting if claim.need.cpu > cpus - above(claim)}
    without = admit([*running, *(claim for claim in waiting if claim.job not in stuck)])
    assert admit([*running, *waiting]) == without


def test_a_request_of_another_kind_does_not_wait_behind() -> None:
    cpu_only, behind = claims_of([(4, False), (1, False), (1, False)], 4)[:2], claims_of([(0, False)], 4)
    other = behind[0]._replace(record="9", job="9", ticket=9, need=Amounts())
    granted = admit([*cpu_only, other])
    assert [claim.job for claim in granted] == ["0", "9"]


def gpu_claim(number: int, *gpu_ids: str, need: int = 1) -> Claim:
    return claims_of([(0, False)], 4)[0]._replace(
        record=str(number),
        job=str(number),
        ticket=number,
        need=Amounts(gpu=need),
        room=Amounts(gpu=len(gpu_ids)),
        gpu_ids=gpu_ids,
    )


def test_launchers_that_use_other_gpus_do_not_wait_for_one_another() -> None:
    """As with another `CUDA_VISIBLE_DEVICES` in each of two terminals."""
    claims = [gpu_claim(1, "0"), gpu_claim(2, "1"), gpu_claim(3, "0"), gpu_claim(4, "0", "1", "2")]
    assert [claim.gpus for claim in admit(claims)] == [("0",), ("1",), ("2",)]
    assert [claim.job for claim in claims if not claim.granted] == ["3"]


def test_what_waits_for_gpus_keeps_its_own_from_younger_jobs() -> None:
    claims = [gpu_claim(1, "0"), gpu_claim(2, "0", "1", need=2), gpu_claim(3, "1"), gpu_claim(4, "2")]
    assert [claim.job for claim in admit(claims)] == ["1", "4"]


def test_a_gpu_by_another_kind_of_name_may_be_any() -> None:
    claims = [gpu_claim(1, "GPU-8f"), gpu_claim(2, "0"), gpu_claim(3, "0", "1")]
    assert [claim.job for claim in admit(claims)] == ["1"]


def test_bad_options_and_requests_are_named() -> None:
    with pytest.raises(ValueError, match="cpus must be"):
        LocalCluster(cpus=0)
    with pytest.raises(ValueError, match="gpus must be"):
        LocalCluster(gpus=-1)
    with pytest.raises(ValueError, match="memory"):
        LocalCluster(memory="lots")
    with pytest.raises(ValueError, match="JobRequest"):
        LocalCluster().launch(Entrypoint.from_binary("true"))  # type: ignore[arg-type]
