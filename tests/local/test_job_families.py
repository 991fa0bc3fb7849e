"""The context of a job where nobody names one, and what the jobs of one program share."""

import pytest

from fray import get_job_context
from fray.cluster import JobStatus
from fray.testing.cluster import launch
from fray_local import LocalCluster


class Store:
    def __init__(self) -> None:
        self.value = 0

    def put(self, value: int) -> None:
        self.value = value

    def get(self) -> int:
        return self.value


def train() -> None:
    """Make the actor, and live until a rollout has written to it."""
    context = get_job_context()
    store = context.create_actor(Store, name="weights")
    while not context.get(store.get()):
        pass
    print("rolled out", type(context).__name__)


def rollout() -> None:
    context = get_job_context()
    while True:
        try:
            store = context.get_actor("weights")
            break
        except ValueError:  # the train job is on its way
            continue
    context.get(store.put(1))


@pytest.mark.timeout(120)
def test_jobs_of_one_program_share_a_named_actor_without_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FRAY_CONTEXT_SPEC", raising=False)
    cluster = LocalCluster(overcommit=True)
    first, second = launch(cluster, train, "train"), launch(cluster, rollout, "rollout")
    infos = cluster.wait([first, second], timeout=60)
    assert [info.status for info in infos] == [JobStatus.SUCCEEDED] * 2, infos
    lines = list(cluster.monitor(first))
    assert lines[-1] == "rolled out ProcessContext"
    assert len([line for line in lines if "the context of this job is 'process'" in line]) == 1


def test_the_context_that_was_chosen_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRAY_CONTEXT_SPEC", "sync")
    cluster = LocalCluster(overcommit=True)

    def show() -> None:
        print(type(get_job_context()).__name__)

    job_id = launch(cluster, show)
    assert list(cluster.monitor(job_id)) == ["SyncContext"]


class Holder:
    """Holds references, as an actor that hands out weights does."""

    def __init__(self, references: list[object]) -> None:
        self.references = references

    def all(self) -> list[object]:
        return self.references


@pytest.mark.timeout(120)
def test_a_reference_that_another_job_gets_is_an_error_that_says_what_to_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FRAY_CONTEXT_SPEC", raising=False)

    def publish() -> None:
        from fray import JobRequest, current_cluster

        context = get_job_context()
        weights = context.put([0.5])
        context.get(context.create_actor(Holder, [weights], name="weights").all())
        info = current_cluster().wait(current_cluster().launch(JobRequest("rollout", fetch)))
        print(info.error_message)

    def fetch() -> None:
        context = get_job_context()
        context.get(context.get_actor("weights").all())

    cluster = LocalCluster(overcommit=True)
    job_id = launch(cluster, publish)
    cluster.wait(job_id, timeout=60, raise_on_failure=True)
    message = "\n".join(cluster.monitor(job_id))
    assert "WrongProcessError: a reference of process" in message
    assert "pass the value itself" in message
