"""What replicas use over time is in the record, while a job runs and after; it does not grow without end."""

import resource
from pathlib import Path

from command_line import answer, fray

from fray import Entrypoint, JobRequest, ResourceConfig, create_cluster
from fray.backend import UsageHistory
from fray.cluster import DirectoryCluster
from fray.testing.cluster import until

SPEC = "local?overcommit=true"
# Holds 64 MiB and works until it is ended.
HOLDS = """
import pathlib, sys
held = bytearray(b"x") * (64 << 20)
while not pathlib.Path(sys.argv[1]).exists():
    sum(range(100_000))
"""


def test_samples_come_while_a_job_runs_and_stay(tmp_path: Path) -> None:
    cluster = create_cluster(SPEC)
    assert isinstance(cluster, DirectoryCluster)
    end = tmp_path / "end"
    request = JobRequest(
        "holds",
        Entrypoint.from_binary("python", ["-c", HOLDS, str(end)]),
        resources=ResourceConfig(cpu=0.1, replicas=2),
    )
    job_id = cluster.launch(request)
    try:
        until(
            lambda: {s.replica for s in cluster.usage(job_id) if s.memory > 60 << 20} == {0, 1},
            "samples of both replicas",
            60.0,
        )
    finally:
        end.touch()
    info = cluster.wait(job_id)
    samples = cluster.usage(job_id)
    for replica in (0, 1):
        own = [sample for sample in samples if sample.replica == replica]
        assert [sample.time for sample in own] == sorted(sample.time for sample in own)
        assert [sample.cpu_time for sample in own] == sorted(sample.cpu_time for sample in own)
        peak = info.tasks[replica].peak_memory
        assert peak is not None
        assert max(sample.memory for sample in own) <= peak
        assert {sample.attempt for sample in own} == {1}
    shown = answer("usage", job_id)
    assert shown == [sample.to_dict() for sample in samples]
    assert "MiB" in fray("usage", "holds").stdout


def test_a_day_takes_no_more_room_than_ten_minutes(tmp_path: Path) -> None:
    history = UsageHistory(str(tmp_path), 3, 2)
    highest = 7 << 30
    for second in range(86_400):
        history.note(1e9 + second, highest if second == 40_000 else 1 << 20, second / 2)
    history.note(1e9 + 86_400, 0, 43_200.0, last=True)
    (path,) = (tmp_path / "usage").iterdir()
    assert path.name == "replica-3.attempt-2"
    rows = [line.split() for line in path.read_text().splitlines()]
    assert 60 <= len(rows) <= 240
    assert max(int(memory) for _, memory, _ in rows) == highest  # a peak is not lost
    assert rows[-1] == ["1000086400.0", "1048576", "43200.0"]
    times = [float(when) for when, _, _ in rows]
    assert times == sorted(times)
    assert path.stat().st_size < 12_000


def test_a_full_disk_costs_the_picture_and_not_the_job(tmp_path: Path) -> None:
    record = tmp_path / "record"
    record.write_text("no folder can be made below a file")
    history = UsageHistory(str(record), 0, 1)
    for second in range(1000):
        history.note(float(second), 1, 1.0)
    assert record.read_text() == "no folder can be made below a file"


def test_a_disk_that_is_full_for_a_moment_costs_a_sample_or_two(tmp_path: Path) -> None:
    history = UsageHistory(str(tmp_path), 0, 1)
    for second in range(10):
        history.note(float(second), 1, 1.0)
    (path,) = (tmp_path / "usage").iterdir()
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 2, hard))
        history.note(10.0, 1, 1.0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    history.note(11.0, 1, 1.0)
    assert [line.split() for line in path.read_text().splitlines()] == [
        [f"{second}.0", "1", "1.0"] for second in range(12)
    ]


def test_a_record_that_is_removed_is_not_made_anew(tmp_path: Path) -> None:
    record = tmp_path / "record"
    history = UsageHistory(str(record), 0, 1)
    for second in range(1000):
        history.note(float(second), 1, 1.0)
    assert not record.exists()
