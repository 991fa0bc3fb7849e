"""What a user of Ray may go on doing beside Fray: a table of checks, and those that stand nowhere else."""

import ast
import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray as typed_ray
from ray.util import ActorPool
from ray.util.queue import Queue

from fray import ActorDiedError, JobContext, TaskCancelledError, create_context, get_job_context
from fray.testing.gates import until
from fray.testing.tasks import Counter
from fray_ray.testing import LocalRayCluster

ray: Any = typed_ray  # Ray's own annotations know nothing of other libraries' types

CHECKS = {
    # references
    "run() returns a plain ray.ObjectRef": "test_references_are_rays_own_and_code_of_both_kinds_mixes",
    "references of both are arguments": "test_references_are_rays_own_and_code_of_both_kinds_mixes",
    "either reads what the other put": "test_either_reads_what_the_other_put",
    "ray.wait and wait() take references of both": "test_both_wait_for_references_of_both",
    "a reference can be awaited, and has a future": "test_a_reference_is_awaited_and_has_a_future",
    "references inside containers stay references": "test_references_inside_containers_stay_references",
    "a stream is a generator of Ray's": "test_either_reads_the_stream_of_the_other",
    "a stream is iterated asynchronously": "test_a_stream_is_iterated_asynchronously",
    "references in items of streams live": "test_references_inside_the_items_of_streams_stay_alive",
    "a stream that is dropped ends its producer": "test_a_stream_that_is_dropped_closes_its_generator",
    # failures
    "ray.get raises a task's exception by type": "test_plain_ray_code_catches_the_tasks_own_type",
    "get() raises Ray's by type": "test_a_plain_reference_raises_the_exception_of_its_task_by_type",
    "a failure passes from a task of one to one of the other": "test_a_failure_passes_from_one_to_the_other",
    "either cancels a task of the other": "test_either_cancels_a_task_of_the_other",
    "a worker that dies is reported, and its task retried on request": "test_a_worker_that_dies_is_reported",
    "a lost value is made again": "test_a_value_lost_with_its_node_is_made_again_where_retries_allow_it",
    # actors
    "plain Ray finds an actor by name, and calls it": "test_plain_ray_code_finds_and_calls_an_actor",
    "get_actor() finds a plain Ray actor": "test_get_actor_finds_a_plain_actor_of_rays",
    "plain Ray calls an async actor, and its async generators": "test_plain_ray_code_calls_an_async_actor",
    "a handle is an argument of a task of the other": "test_handles_are_arguments_of_tasks_of_the_other",
    "ray.kill ends an actor of Fray's": "test_ray_kill_ends_an_actor",
    "an actor that restarts begins anew": "test_an_actor_that_restarts_begins_anew",
    "concurrency groups, by call": "test_concurrency_groups_let_calls_of_one_pass_those_of_another",
    "namespaces keep names apart": "test_namespaces_keep_names_apart",
    "ray.util.ActorPool runs over handles of Fray's": "test_utilities_of_rays_work_with_both",
    "ray.util.queue.Queue is an argument of a task": "test_utilities_of_rays_work_with_both",
    # options
    "num_returns": "test_a_task_with_several_results_has_a_reference_for_each",
    "scheduling_strategy, retry_exceptions": "test_rays_own_options_choose_the_node_and_retry_exceptions",
    "label_selector": "test_a_label_selector_chooses_the_node_of_every_task",
    "max_calls": "test_a_worker_is_replaced_after_max_calls",
    # the program around
    "each inside a task of the other": "test_each_is_used_inside_a_task_of_the_other",
    "the runtime context says where a task is": "test_each_is_used_inside_a_task_of_the_other",
    "a context joins what ray.init joined": "test_a_context_joins_what_ray_init_joined_says_so_and_leaves_it",
    "the state API names the user's function": "test_rays_state_names_the_function_of_the_user",
}


@pytest.fixture
def context(ray_cluster: LocalRayCluster) -> Iterator[JobContext]:
    with create_context(f"ray?address={ray_cluster.address}") as context:
        yield context


def test_every_check_has_its_test() -> None:
    assert len(CHECKS) == 34
    tests = {
        node.name
        for path in Path(__file__).parent.glob("test_*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }
    assert set(CHECKS.values()) <= tests


def double(number: int) -> int:
    return 2 * number


def fail(number: int) -> int:
    raise LookupError(f"no {number}")


def up_to(number: int) -> Iterator[int]:
    for item in range(number):  # noqa: UP028 - plain Ray resumes generators with `send`, which a range has not
        yield item


def forever() -> None:
    while True:
        pass


plain_double, plain_fail, plain_up_to = ray.remote(double), ray.remote(fail), ray.remote(up_to)
plain_forever: Any = ray.remote(num_cpus=0.1)(forever)


class Doubler:
    def double(self, number: int) -> int:
        return 2 * number


def test_either_reads_what_the_other_put(context: JobContext) -> None:
    assert context.get(ray.put([1])) == [1]
    assert ray.get(context.put([2])) == [2]
    assert context.get([ray.put(3), context.put(4), 5]) == [3, 4, 5]


def test_both_wait_for_references_of_both(context: JobContext) -> None:
    refs = [context.run(double, 1), plain_double.remote(2), ray.put(3), context.put(4)]
    assert ray.wait(refs, num_returns=4) == (refs, [])
    assert context.wait(refs, num_returns=4) == (refs, [])


def test_a_reference_is_awaited_and_has_a_future(context: JobContext) -> None:
    ref: Any = context.run(double, 4)

    async def read() -> list[int]:
        return [await ref, await context.aget(plain_double.remote(5))]

    assert asyncio.run(read()) == [8, 10]
    assert ref.future().result(timeout=200) == 8


def test_references_inside_containers_stay_references(context: JobContext) -> None:
    def kinds(parts: dict[str, Any]) -> list[int]:
        return ray.get([parts["of ray"], parts["of fray"]])  # type: ignore[no-any-return]

    parts = {"of ray": plain_double.remote(1), "of fray": context.run(double, 2)}
    assert context.get(context.run(kinds, parts)) == [2, 4]
    assert ray.get(ray.remote(kinds).remote(parts)) == [2, 4]


def test_either_reads_the_stream_of_the_other(context: JobContext) -> None:
    ours, theirs = context.run(up_to, 3), plain_up_to.remote(3)
    assert type(ours) is type(theirs) is ray.ObjectRefGenerator
    assert [ray.get(item) for item in ours] == [0, 1, 2]
    ready, _ = context.wait([theirs])
    assert ready == [theirs]
    assert [context.get(item) for item in theirs] == [0, 1, 2]


def test_a_stream_is_iterated_asynchronously(context: JobContext) -> None:
    async def read(stream: AsyncIterator[Any]) -> list[int]:
        return [await item async for item in stream]

    stream: Any = context.run(up_to, 3)
    assert asyncio.run(read(stream)) == [0, 1, 2]


def test_a_failure_passes_from_one_to_the_other(context: JobContext) -> None:
    with pytest.raises(LookupError, match="no 1"):
        ray.get(plain_double.remote(context.run(fail, 1)))
    failing: Any = plain_fail.remote(2)
    with pytest.raises(LookupError, match="no 2"):
        context.get(context.run(double, failing))


def test_either_cancels_a_task_of_the_other(context: JobContext) -> None:
    theirs, ours = plain_forever.remote(), context.run(forever)
    assert context.cancel(theirs)
    with pytest.raises(TaskCancelledError):
        context.get(theirs)
    ray.cancel(ours, force=True)
    with pytest.raises((ray.exceptions.TaskCancelledError, ray.exceptions.WorkerCrashedError)):
        ray.get(ours)


def test_get_actor_finds_a_plain_actor_of_rays(context: JobContext) -> None:
    namespace = ray.get_runtime_context().namespace
    keep = ray.remote(Doubler).options(name="plain-doubler", namespace=namespace).remote()
    found = context.get_actor("plain-doubler")
    assert context.get(found.double(4)) == 8
    with pytest.raises(AttributeError, match="halve"):
        found.halve(4)
    del keep


def test_handles_are_arguments_of_tasks_of_the_other(context: JobContext) -> None:
    def call_ours(handle: Any) -> int:
        return int(get_job_context().get(handle.increment(2)))

    def call_theirs(handle: Any) -> int:
        return int(ray.get(handle.double.remote(21)))

    ours, theirs = context.create_actor(Counter), ray.remote(Doubler).remote()
    assert ray.get(ray.remote(call_ours).remote(ours)) == 2
    assert context.get(context.run(call_theirs, theirs)) == 42


def test_ray_kill_ends_an_actor(context: JobContext) -> None:
    keep = context.create_actor(Counter, name="to-be-killed")
    context.get(keep.increment())
    ray.kill(ray.get_actor("to-be-killed", namespace=ray.get_runtime_context().namespace))

    def is_dead() -> bool:
        try:
            context.get(keep.increment())
        except ActorDiedError:
            return True
        return False

    until(is_dead, "its calls raise ActorDiedError")


def test_utilities_of_rays_work_with_both(context: JobContext) -> None:
    pool = ActorPool([context.create_actor(Doubler)])
    assert list(pool.map(lambda actor, item: actor.double.remote(item), list(range(4)))) == [0, 2, 4, 6]

    def fill(queue: Any) -> None:
        queue.put("from a task")

    queue = Queue(actor_options={"num_cpus": 0})
    context.get(context.run(fill, queue))
    assert queue.get(timeout=200) == "from a task"
    queue.shutdown()


def test_each_is_used_inside_a_task_of_the_other(context: JobContext) -> None:
    def ours() -> tuple[int, str]:
        return ray.get(ray.remote(num_cpus=0)(double).remote(4)), ray.get_runtime_context().get_node_id()

    def theirs() -> tuple[int, str]:
        here = get_job_context()
        return here.get(here.run(double, 5)), type(here).__name__

    value, node = context.get(context.run(ours))
    assert value == 8
    assert node in {node["NodeID"] for node in ray.nodes()}
    assert ray.get(ray.remote(theirs).remote()) == (10, "RayContext")


def said_by_fray(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "fray.ray"]


def test_a_context_joins_what_ray_init_joined_says_so_and_leaves_it(
    ray_cluster: LocalRayCluster, caplog: pytest.LogCaptureFixture
) -> None:
    ray.init(ray_cluster.address, ignore_reinit_error=True)
    caplog.set_level("INFO", "fray.ray")
    with create_context("ray") as joined:
        assert (repr(joined), said_by_fray(caplog)) == ("<RayContext>", [])
        assert joined.get(joined.run(double, 1)) == 2
        address = ray.get_runtime_context().gcs_address
        assert repr(joined).startswith(f"<RayContext at {address}")
        assert said_by_fray(caplog) == [f"this context is on the Ray cluster at {address}"]
    assert ray.is_initialized()
    assert ray.get(plain_double.remote(2)) == 4
