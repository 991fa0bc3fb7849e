"""Whatever stands in the files of a record: one bad row, or one clear error, and the others as they were."""

import os
from contextlib import suppress
from pathlib import Path

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fray import FrayError
from fray.backend import LogReader
from fray.cluster import DirectoryCluster, JobStatus, create_cluster
from fray.testing.cluster import launch, program
from fray.testing.gates import until

DRAWN = settings(
    max_examples=25 * int(os.environ.get("TORTURE", "1")),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
NAMES = st.sampled_from(["status.json", "request.json"])
SPLICES = st.sampled_from(
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"',
        b"\xff\xfe",
        b"9" * 5000,
        b"-1",
        b"NaN",
        b"1e999",
        b'{"a":' * 2000,
        b"\x00" * 64,
    ]
)


def test_records_that_were_damaged(state_dir: Path) -> None:
    cluster = create_cluster("local")
    good, victim = launch(cluster, program("print('good')")), launch(cluster, program("print('victim')"))
    cluster.wait([good, victim], timeout=60)
    folder = state_dir / "jobs" / victim
    whole = {name: (folder / name).read_bytes() for name in ("status.json", "request.json")}

    @DRAWN
    @given(NAMES, st.floats(0, 1), st.floats(0, 1), SPLICES | st.binary(max_size=20))
    def damage(name: str, first: float, second: float, splice: bytes) -> None:
        data = whole[name]
        start, end = sorted((int(first * len(data)), int(second * len(data))))
        (folder / name).write_bytes(data[:start] + splice + data[end:])
        os.utime(folder)
        rows = {info.job_id: info for info in cluster.list_jobs()}
        assert rows[good].status is JobStatus.SUCCEEDED
        for look in (lambda: cluster.poll(victim), lambda: list(cluster.monitor(victim, follow=False))):
            with suppress(FrayError):
                look()
        (folder / name).write_bytes(data)

    damage()
    assert cluster.poll(victim).status is JobStatus.SUCCEEDED


def test_usage_and_endpoints_of_any_bytes(state_dir: Path, tmp_path: Path) -> None:
    cluster = create_cluster("local")
    assert isinstance(cluster, DirectoryCluster)
    serves = "from fray.job import register_endpoint; register_endpoint(sys.argv[2], 'localhost:1')"
    waits = f"import os, sys, time; {serves}\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.01)"
    gate = tmp_path / "gate"
    jobs = [launch(cluster, program(waits, str(gate), name)) for name in ("good", "victim")]
    until(lambda: len(cluster.endpoints(everywhere=True)) == 2, "both serve", 60)
    victim = state_dir / "jobs" / jobs[1]
    usage = victim / "usage" / "replica-0.attempt-1"
    until(usage.exists, "it is measured", 60)
    (endpoint,) = (path for path in victim.parent.glob(".endpoints/*") if b"victim" in path.read_bytes())
    whole = {path: path.read_bytes() for path in (usage, endpoint)}

    @DRAWN
    @example(usage, 0.0, 1.0, b"1700000000.0 100 0.51700000001.0 100 0.6\n")  # the disk was full for a moment
    @given(st.sampled_from(list(whole)), st.floats(0, 1), st.floats(0, 1), SPLICES | st.binary(max_size=20))
    def damage(path: Path, first: float, second: float, splice: bytes) -> None:
        data = path.read_bytes()
        start, end = sorted((int(first * len(data)), int(second * len(data))))
        path.write_bytes(data[:start] + splice + data[end:])
        cluster.usage(jobs[1])
        assert "good" in {endpoint.name for endpoint in cluster.endpoints(everywhere=True)}
        path.write_bytes(data)

    damage()
    assert {endpoint.name for endpoint in cluster.endpoints(everywhere=True)} == {"good", "victim"}
    gate.touch()
    cluster.wait(jobs, timeout=60)


TIMES = st.floats(allow_nan=False) | st.sampled_from([0.0, -1.0, 1e18])


@DRAWN
@given(
    log=st.binary(max_size=300),
    index=st.none()
    | st.binary(max_size=60)
    | st.from_regex(rb"([0-9.]{1,9} [0-9]{1,4} [0-9]\n){0,4}", fullmatch=True),
    offset=st.integers(0, 400),
    since=TIMES,
)
def test_logs_and_indexes_of_any_bytes(
    tmp_path: Path, log: bytes, index: bytes | None, offset: int, since: float
) -> None:
    path, beside = tmp_path / "replica-0.attempt-1.log", tmp_path / "replica-0.attempt-1.index"
    path.write_bytes(log)
    beside.unlink(missing_ok=True)
    if index is not None:
        beside.write_bytes(index)
    reader = LogReader(path)
    assert reader.end() == len(log)
    text, follows = reader.read(offset)
    assert text in log
    assert follows <= max(offset, len(log))
    before, start = reader.read_before(min(offset, len(log)), 50)
    assert before in log
    assert 0 <= start <= len(log)
    assert 0 <= reader.since(since) <= len(log)
