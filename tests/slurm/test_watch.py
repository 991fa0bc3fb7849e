"""One question to Slurm for all jobs, asked as seldom as can be."""

from collections.abc import Iterable

from fray import ClusterUnavailableError
from fray_slurm._client import SlurmClient
from fray_slurm._readings import SlurmJob
from fray_slurm._watch import JobTable


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class CountingClient(SlurmClient):
    """A Slurm that counts what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: dict[str, SlurmJob] = {}
        self.accounted: dict[str, SlurmJob] = {}
        self.calls = {"queue": 0, "accounts": 0}
        self.asked_for: list[str] = []
        self.away = False

    def queue(self) -> dict[str, SlurmJob]:
        self.calls["queue"] += 1
        if self.away:
            raise ClusterUnavailableError("slurmctld does not answer")
        return dict(self.jobs)

    def accounts(self, jobs: Iterable[str], since: float) -> dict[str, SlurmJob]:
        self.calls["accounts"] += 1
        self.asked_for = list(jobs)
        return {key: job for key, job in self.accounted.items() if key in self.asked_for}


def running(count: int) -> dict[str, SlurmJob]:
    return {str(number): SlurmJob(str(number), "RUNNING") for number in range(count)}


def test_a_thousand_jobs_are_one_question() -> None:
    client, clock = CountingClient(), Clock()
    client.jobs = running(1000)
    table = JobTable(client, clock=clock)
    for _ in range(3):
        for number in range(1000):
            assert table.look(str(number), 0.0) == client.jobs[str(number)]
    assert client.calls == {"queue": 1, "accounts": 0}


def test_a_queue_in_which_nothing_changes_is_asked_less_and_less() -> None:
    client, clock = CountingClient(), Clock()
    client.jobs = running(1)
    table = JobTable(client, shortest=2.0, longest=30.0, clock=clock)
    for _ in range(3600 * 20):  # an hour, a look each 50 ms
        table.look("0", 0.0)
        clock.now += 0.05
    assert 3600 / 30 <= client.calls["queue"] <= 3600 / 30 + 10
    client.calls["queue"] = 0
    table.expect_change()
    table.look("0", 0.0)
    assert client.calls["queue"] == 1


def test_jobs_that_left_the_queue_are_one_question_to_the_accounting() -> None:
    client, clock = CountingClient(), Clock()
    table = JobTable(client, shortest=2.0, clock=clock)
    client.accounted = {str(number): SlurmJob(str(number), "TIMEOUT") for number in range(999)}
    for number in range(1000):
        table.look(str(number), 0.0)
    clock.now += 3.0
    found = [table.look(str(number), 0.0) for number in range(1000)]
    assert client.calls == {"queue": 2, "accounts": 2}
    assert found[0] == SlurmJob("0", "TIMEOUT")
    assert found[999] is None
    assert not table.is_gone("0")
    clock.now += 60.0
    assert table.is_gone("999")


def test_an_end_is_remembered_when_slurm_has_forgotten_it() -> None:
    client, clock = CountingClient(), Clock()
    client.jobs = {"1": SlurmJob("1", "TIMEOUT")}
    table = JobTable(client, clock=clock)
    assert table.look("1", 0.0) == client.jobs["1"]
    client.jobs = {}
    clock.now += 600
    assert table.look("1", 0.0) == SlurmJob("1", "TIMEOUT")


def test_a_slurm_that_is_away_leaves_the_last_answer_and_is_asked_less() -> None:
    client, clock = CountingClient(), Clock()
    client.jobs = running(1)
    table = JobTable(client, shortest=2.0, longest=30.0, clock=clock)
    assert table.look("0", 0.0) is not None
    client.away = True
    for _ in range(120):
        clock.now += 1.0
        assert table.look("0", 0.0) == SlurmJob("0", "RUNNING")
    assert client.calls["queue"] < 12
    assert table.error == "slurmctld does not answer"
    assert not table.is_gone("0")
    client.away = False
    clock.now += 30.0
    table.look("0", 0.0)
    assert table.error is None
