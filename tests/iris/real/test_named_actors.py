"""Named actors across jobs, and their end."""

import os
import signal
from collections.abc import Iterator

import pytest

from fray import (
    ActorDiedError,
    ActorNotFoundError,
    ActorOptions,
    create_context,
    current_cluster,
    get_job_context,
)
from fray.cluster import Cluster, JobRequest, JobStatus, ResourceConfig
from fray.testing.cluster import until

PATIENCE = 300.0  # on a busy machine
pytestmark = pytest.mark.timeout(700)
SMALL = ResourceConfig(cpu=0.5, ram="256m")


class Tally:
    """Counts who came."""

    def __init__(self) -> None:
        self._names: list[str] = []

    def add(self, name: str) -> int:
        self._names.append(name)
        return len(self._names)

    def names(self) -> list[str]:
        return sorted(self._names)

    def pid(self) -> int:
        return os.getpid()

    def one_by_one(self) -> Iterator[str]:
        yield from self._names

    async def soon(self) -> str:
        return "now"


def come(name: str) -> None:
    """Be a job that finds the actor of another program's name."""
    context = get_job_context()
    print("came as number", context.get(context.get_actor("tally").add(name)))


def make_and_launch() -> None:
    """Be a job that makes an actor, and launches one that finds it."""
    context = get_job_context()
    tally = context.create_actor(Tally, name="tally", preemptible=False, num_cpus=0)
    shared = context.create_actor(Tally, name="tally", get_if_exists=True)
    context.get(shared.add("parent"))
    cluster = current_cluster()
    cluster.wait(
        cluster.launch(JobRequest("child", come, ("child",), resources=SMALL)), raise_on_failure=True
    )
    print("names", *context.get(tally.names()))


def test_a_program_and_its_jobs_share_an_actor(spec: str, cluster: Cluster) -> None:
    with create_context(spec) as context:
        tally = context.create_actor(Tally, name="tally")
        jobs = [cluster.launch(JobRequest("comes", come, (name,), resources=SMALL)) for name in "ab"]
        for info in cluster.wait(jobs, timeout=PATIENCE):
            assert info.status is JobStatus.SUCCEEDED, info.error_message
        assert context.get(tally.names(), timeout=PATIENCE) == ["a", "b"]


def test_a_job_and_its_children_share_an_actor_that_ends_with_it(cluster: Cluster, spec: str) -> None:
    job_id = cluster.launch(JobRequest("parent", make_and_launch, resources=SMALL))
    info = cluster.wait(job_id, timeout=PATIENCE)
    assert info.status is JobStatus.SUCCEEDED, info.error_message
    assert "names child parent" in list(cluster.monitor(job_id))

    def ended() -> bool:
        return all(each.finished for each in cluster.list_jobs(name="actor-tally"))

    until(ended, "the actor ends with the job that made it", PATIENCE)


def test_an_actor_whose_process_dies_is_dead_for_all_and_its_name_is_free(spec: str) -> None:
    with create_context(spec) as context:
        tally = context.create_actor(Tally, name="mortal")
        os.kill(context.get(tally.pid(), timeout=PATIENCE), signal.SIGKILL)
        with pytest.raises(ActorDiedError, match="mortal"):
            context.get(tally.names(), timeout=PATIENCE)

        def is_free() -> bool:
            try:
                context.get_actor("mortal")
            except ActorNotFoundError:
                return True
            return False

        until(is_free, "the name is free", PATIENCE)
        again = context.create_actor(Tally, name="mortal")
        assert context.get(again.add("x"), timeout=PATIENCE) == 1


def test_an_actor_may_be_made_anew_when_its_process_dies(spec: str) -> None:
    with create_context(spec) as context:
        tally = context.create_actor(Tally, options=ActorOptions(name="again", max_restarts=1))
        first = context.get(tally.pid(), timeout=PATIENCE)
        os.kill(first, signal.SIGKILL)

        def answers() -> bool:
            try:
                return bool(context.get(tally.pid(), timeout=PATIENCE) != first)
            except ActorDiedError:  # a call that the dead process had
                return False

        until(answers, "it is there again", PATIENCE)
        assert context.get(tally.add("x"), timeout=PATIENCE) == 1


def test_calls_of_one_caller_keep_their_order_and_references_arrive_as_values(spec: str) -> None:
    with create_context(spec) as context:
        tally = context.create_actor(Tally, name="ordered")
        first = context.run(str.upper, "z")
        counts = [tally.add(first), *(tally.add(f"{number:03}") for number in range(150))]
        assert context.get(counts, timeout=PATIENCE) == list(range(1, 152))
        assert "Z" in context.get(tally.names())
        ready, pending = context.wait([tally.soon(), context.put(1)], num_returns=2, timeout=PATIENCE)
        assert (len(ready), pending) == (2, [])
        assert len(list(tally.one_by_one())) == 151


def read_stream(name: str) -> list[str]:
    context = get_job_context()
    items = list(context.get_actor(name).one_by_one())
    return [*context.get(items), context.get(context.run(str.upper, items[0]))]


def test_a_task_reads_the_stream_of_a_named_actor(spec: str) -> None:
    with create_context(spec) as context:
        tally = context.create_actor(Tally, name="streams")
        context.get([tally.add("b"), tally.add("a")], timeout=PATIENCE)
        assert context.get(context.run(read_stream, "streams"), timeout=PATIENCE) == ["b", "a", "B"]
        stream = tally.one_by_one()
        assert context.get(next(stream), timeout=PATIENCE) == "b"
        context.kill(tally)
        with pytest.raises(ActorDiedError):
            list(map(context.get, tally.one_by_one()))
