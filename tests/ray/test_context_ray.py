"""What RayContext promises beyond the contract of every context."""

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import ray as typed_ray

from fray import (
    ActorDiedError,
    ActorNotFoundError,
    ActorOptions,
    JobContext,
    Lifetime,
    ObjectRef,
    TaskCancelledError,
    TaskOptions,
    WorkerDiedError,
    create_context,
    get_job_context,
)
from fray.testing.context import ContextFixtures  # noqa: F401 - it registers what pytest rewrites
from fray.testing.gates import Gate, until
from fray.testing.tasks import Counter, until_closed
from fray_ray.testing import LocalRayCluster

ray: Any = typed_ray  # Ray's own annotations know nothing of other libraries' types


@pytest.fixture
def context(ray_cluster: LocalRayCluster) -> Iterator[JobContext]:
    with create_context(f"ray?address={ray_cluster.address}") as context:
        yield context


def test_references_are_rays_own_and_code_of_both_kinds_mixes(context: JobContext) -> None:
    ref = context.run(pow, 2, 3)
    assert type(ref) is ray.ObjectRef
    assert isinstance(ref, ObjectRef)
    assert ray.get(ref) == 8
    double = ray.remote(lambda number: 2 * number)
    assert context.get(context.create_task(pow, double.remote(ref), 2)) == 256


def sleep_beside_what_keeps_pythons_lock(started: Gate) -> None:
    def keep_it() -> None:
        started.open()
        ctypes.PyDLL(None).sleep(3)

    threading.Thread(target=keep_it).start()
    time.sleep(600)


def test_a_task_is_ended_whose_worker_does_not_answer_at_once(context: JobContext, tmp_path: Path) -> None:
    """Ray ignores a request to end a worker while it has no answer to the one to interrupt the task."""
    started = Gate(tmp_path / "started")
    ref = context.run(sleep_beside_what_keeps_pythons_lock, started)
    started.wait()
    assert context.cancel(ref) is True
    with pytest.raises(TaskCancelledError):
        context.get(ref, timeout=200)


def test_plain_ray_code_catches_the_tasks_own_type(context: JobContext) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        ray.get(context.run(int, "x"))


def test_plain_ray_code_finds_and_calls_an_actor(context: JobContext) -> None:
    class Adder:
        def __init__(self, total: int) -> None:
            self.total = total

        def add(self, number: int) -> int:
            self.total += number
            return self.total

    keep = context.create_actor(Adder, 1, name="adder")
    namespace = ray.get_runtime_context().namespace
    assert ray.get(ray.get_actor("adder", namespace=namespace).add.remote(2)) == 3
    assert context.get(keep.add(1)) == 4


def test_work_without_an_accelerator_keeps_jax_off_it(context: JobContext) -> None:
    class Reader:
        def read(self) -> str | None:
            return os.environ.get("JAX_PLATFORMS")

    def read() -> str | None:
        return os.environ.get("JAX_PLATFORMS")

    assert context.get(context.run(read)) == "cpu"
    assert context.get(context.create_actor(Reader).read()) == "cpu"


def test_work_with_an_accelerator_is_left_alone(ray_cluster: LocalRayCluster, context: JobContext) -> None:
    node = ray_cluster.add_node(num_cpus=1, num_gpus=1)
    options = TaskOptions(resources={"GPU": 1})
    assert context.get(context.create_task(lambda: os.environ.get("JAX_PLATFORMS"), options=options)) is None
    ray_cluster.kill_node(node)


def test_a_closure_is_sent_as_it_is_at_each_call(context: JobContext) -> None:
    number = 1

    def tell() -> int:
        return number

    first = context.get(context.run(tell))
    number = 2
    assert [first, context.get(context.run(tell))] == [1, 2]


def test_a_large_closure_runs_many_times(context: JobContext) -> None:
    data = bytes(2_000_000)
    assert context.get([context.run(lambda: len(data)) for _ in range(5)]) == [2_000_000] * 5


def test_a_stream_that_is_dropped_closes_its_generator(context: JobContext, tmp_path: Path) -> None:
    closed = Gate(tmp_path / "closed")
    stream = context.run(until_closed, closed)
    assert context.get(next(stream)) == 1
    del stream
    until(closed.is_open, "the generator is closed")


def test_a_worker_that_dies_is_reported(context: JobContext, tmp_path: Path) -> None:
    def die() -> None:
        with (tmp_path / "runs").open("a") as file:
            file.write("x")
        os._exit(1)

    with pytest.raises(WorkerDiedError):
        context.get(context.run(die))
    assert (tmp_path / "runs").read_text() == "x"  # nothing runs twice unless it was asked for
    with pytest.raises(WorkerDiedError):
        context.get(context.create_task(die, options=TaskOptions(max_retries=1)))
    assert (tmp_path / "runs").read_text() == "xxx"


def test_sigterm_ends_a_worker_and_is_no_failure_of_its_task(context: JobContext, tmp_path: Path) -> None:
    """Its handler, which is Ray's, raises SystemExit in the task: as its failure it would end the caller."""
    ran = tmp_path / "ran"

    def terminate(runs: int) -> str:
        with ran.open("a") as file:
            file.write("x")
        if len(ran.read_text()) <= runs:
            os.kill(os.getpid(), signal.SIGTERM)
        return ran.read_text()

    class Terminated:
        def terminate(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

    class Leaving:
        async def leave(self) -> None:
            ray.actor.exit_actor()

    with pytest.raises(WorkerDiedError):
        context.get(context.run(terminate, 1), timeout=200)
    again = context.create_task(terminate, 2, options=TaskOptions(max_retries=1))
    assert context.get(again, timeout=200) == "xxx"
    with pytest.raises(WorkerDiedError):
        list(context.map(terminate, [10]))
    # No words of Ray's: which of its reports of a death comes first, and is shown, differs.
    with pytest.raises(ActorDiedError):
        context.get(context.create_actor(Terminated).terminate(), timeout=200)
    with pytest.raises(ActorDiedError):
        context.get(context.create_actor(Leaving).leave(), timeout=200)


def test_an_actor_that_restarts_begins_anew(context: JobContext) -> None:
    class Fragile:
        def __init__(self) -> None:
            self.calls = 0

        def call(self) -> int:
            self.calls += 1
            return self.calls

        def pid(self) -> int:
            return os.getpid()

    actor = context.create_actor(Fragile, options=ActorOptions(max_restarts=1))
    assert context.get([actor.call(), actor.call()]) == [1, 2]
    os.kill(context.get(actor.pid()), 9)

    def first_call() -> int | None:
        try:
            return int(context.get(actor.call(), timeout=200))
        except ActorDiedError:  # it is not back yet
            return None

    assert until(first_call, "the actor is back", 200.0) == 1


def test_an_actor_that_must_stay_is_on_the_head(context: JobContext) -> None:
    class Where:
        def node(self) -> str:
            return str(ray.get_runtime_context().get_node_id())

    head = next(node["NodeID"] for node in ray.nodes() if "node:__internal_head__" in node["Resources"])
    options = ActorOptions(name="status", get_if_exists=True, lifetime=Lifetime.DETACHED, preemptible=False)
    actor = context.create_actor(Where, options=options)
    assert context.get(actor.node()) == head
    context.kill(actor)


def test_namespaces_keep_names_apart(ray_cluster: LocalRayCluster) -> None:
    class Named:
        def who(self) -> int:
            return os.getpid()

    address = ray_cluster.address
    with (
        create_context(f"ray?address={address}&namespace=one") as one,
        create_context(f"ray?address={address}&namespace=two") as two,
    ):
        first, second = (each.create_actor(Named, name="same") for each in (one, two))
        assert one.get(first.who()) != two.get(second.who())


@pytest.mark.parametrize("lifetime", list(Lifetime))
def test_a_named_actor_ends_with_the_context_that_made_it_and_not_with_one_that_got_it(
    ray_cluster: LocalRayCluster, lifetime: Lifetime
) -> None:
    code = f"""if True:
        from fray import create_context
        from fray.testing.tasks import Counter
        with create_context("ray?address={ray_cluster.address}&namespace=shared") as context:
            print(context.get(context.create_actor(Counter, name="tally", get_if_exists=True).increment()))
    """
    spec = f"ray?address={ray_cluster.address}&namespace=shared"
    with create_context(spec) as looks_on:
        with create_context(spec) as maker:
            options = ActorOptions(name="tally", get_if_exists=True, lifetime=lifetime)
            tally = maker.create_actor(Counter, options=options)
            assert maker.get(tally.increment()) == 1
            with create_context(spec) as other:
                same = other.create_actor(Counter, name="tally", get_if_exists=True)
                assert other.get(same.increment()) == 2
            done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
            assert done.stdout.split()[-1:] == ["3"]
            assert maker.get(tally.increment()) == 4
        if lifetime is Lifetime.DETACHED:
            looks_on.kill(looks_on.get_actor("tally"))
        until(lambda: not named_in(looks_on, "tally"), "it is gone")


def named_in(context: JobContext, name: str) -> bool:
    try:
        context.get_actor(name)
    except ActorNotFoundError:
        return False
    return True


def test_inside_a_driver_the_current_context_is_ray(context: JobContext) -> None:
    assert type(get_job_context()).__name__ == "RayContext"


def test_a_second_address_in_one_process_is_refused(context: JobContext) -> None:
    with pytest.raises(ValueError, match=r"cannot join '127\.0\.0\.1:1'"):
        create_context("ray?address=127.0.0.1:1").put(1)


def test_a_loopback_address_names_the_same_cluster_again(
    context: JobContext, ray_cluster: LocalRayCluster
) -> None:
    port = ray_cluster.address.rpartition(":")[2]
    for host in ("localhost", "127.0.0.1"):
        with create_context(f"ray?address={host}:{port}") as again:
            assert again.get(again.run(pow, 2, 3)) == 8


def test_a_futures_callback_may_use_the_context(context: JobContext) -> None:
    future = context.as_executor().submit(pow, 2, 3)
    again: SimpleQueue[int] = SimpleQueue()
    future.add_done_callback(lambda done: again.put(context.get(context.run(pow, done.result(), 2))))
    assert again.get(timeout=200) == 64


def test_maps_that_fail_leave_the_program_alive(ray_cluster: LocalRayCluster) -> None:
    # Ray ends a program, without a word, that cancels a task in the moment in which it is done.
    code = f"""if True:
        from fray import create_context
        def fail_first(number):
            return 1 // number
        with create_context("ray?address={ray_cluster.address}&num_cpus=1") as context:
            for _ in range(150):
                try:
                    list(context.map(fail_first, range(10**6)))
                except ZeroDivisionError:
                    pass
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=400)


def test_two_programs_start_a_ray_each_and_neither_meets_the_other(
    ray_cluster: LocalRayCluster, tmp_path: Path
) -> None:
    code = """
        import os, sys
        import ray
        from pathlib import Path
        from fray import create_context
        from fray.testing.gates import Gate, until

        mine, other, folder = sys.argv[1:]
        class Where:
            def name(self):
                return mine
        with create_context("ray?local=true&num_cpus=1&namespace=same") as context:
            actor = context.create_actor(Where, name="where", get_if_exists=True, preemptible=False)
            Gate(Path(folder, mine)).open()
            until(Gate(Path(folder, other)).is_open, "the other runs", 200.0)
            print(context.get(actor.name()), context.get(context.run(pow, 2, 10)), len(ray.nodes()))
            Gate(Path(folder, mine + "-done")).open()
            until(Gate(Path(folder, other + "-done")).is_open, "the other is done", 200.0)
        print("joined" if ray.is_initialized() else "gone")
    """
    program = "\n".join(line[8:] for line in code.splitlines())
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RAY_TMP")}
    both = [
        subprocess.Popen(
            [sys.executable, "-c", program, mine, other, str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environ,
        )
        for mine, other in (("one", "two"), ("two", "one"))
    ]
    try:
        said = [process.communicate(timeout=400) for process in both]
    finally:
        for process in both:
            process.kill()
            process.communicate()
    for (out, err), name in zip(said, ("one", "two"), strict=True):
        assert out.splitlines()[-2:] == [f"{name} 1024 1", "gone"], err


def chunks(context: JobContext, count: int) -> Iterator[tuple[int, Any]]:
    for number in range(count):
        yield number, context.put([number] * 500)


def totals(context: JobContext, parts: list[tuple[int, Any]]) -> list[int]:
    return [sum(values) for values in context.get([ref for _, ref in parts])]


def test_references_inside_the_items_of_streams_stay_alive(context: JobContext) -> None:
    for _ in range(12):  # plain Ray loses some in one round of three
        streams: list[Any] = [context.run(chunks, context, 12) for _ in range(4)]
        parts: list[tuple[int, Any]] = []
        while streams:
            ready, streams = context.wait(streams)
            for stream in ready:
                with contextlib.suppress(StopIteration):
                    parts.append(context.get(next(stream)))
                    streams.append(stream)
        answers = [context.run(totals, context, parts[start::4]) for start in range(4)]
        assert sum(map(sum, context.get(answers))) == 4 * 500 * sum(range(12))


def test_waiting_for_many_of_which_some_are_repeated_takes_linear_time(context: JobContext) -> None:
    refs = [context.put(1), *[context.put(2)] * 50_000]
    start = time.thread_time()
    assert context.wait(refs, num_returns=len(refs)) == (refs, [])
    assert time.thread_time() - start < 5


def test_making_a_context_joins_nothing() -> None:
    code = """
import pickle, ray
from fray import create_context
context = create_context(context_type="ray", max_workers=4, memory=None, num_cpus=1, max_retries=2)
assert repr(context) == "<RayContext>" and not ray.is_initialized()
context.shutdown()
assert not ray.is_initialized()
try:
    context.put(1)
except RuntimeError as error:
    print(type(error).__name__)
with create_context("ray?address=127.0.0.1:1") as context:
    try:
        context.run(len, "abc")
    except ConnectionError as error:
        print(type(error).__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["ContextClosedError", "ClusterUnavailableError"]


def test_a_plain_reference_raises_the_exception_of_its_task_by_type(context: JobContext) -> None:
    def broken() -> None:
        raise LookupError("in plain Ray")

    with pytest.raises(LookupError, match="in plain Ray") as caught:
        context.get(ray.remote(broken).remote())
    assert "broken" in str(caught.value.__cause__)


class Generating:
    """An engine as LLM servers have it: a loop in the background, requests that wait for it, streams."""

    def __init__(self) -> None:
        self.requests: asyncio.Queue[tuple[int, asyncio.Queue[int | None]]] = asyncio.Queue()
        self.loop = asyncio.create_task(self.generate_all())

    async def generate_all(self) -> None:
        while True:
            length, tokens = await self.requests.get()
            for token in range(length):
                tokens.put_nowait(token)
                await asyncio.sleep(0)
            tokens.put_nowait(None)

    async def generate(self, length: int) -> AsyncIterator[int]:
        tokens: asyncio.Queue[int | None] = asyncio.Queue()
        await self.requests.put((length, tokens))
        while (token := await tokens.get()) is not None:
            yield token

    async def waiting(self) -> int:
        return self.requests.qsize()


def test_an_engine_with_a_loop_in_the_background_streams_to_many(context: JobContext) -> None:
    engine = context.create_actor(Generating)
    streams = [engine.generate(length) for length in range(1, 6)]
    assert [[context.get(token) for token in stream] for stream in streams] == [
        list(range(length)) for length in range(1, 6)
    ]
    assert context.get(engine.waiting()) == 0


def test_plain_ray_code_calls_an_async_actor(context: JobContext) -> None:
    keep = context.create_actor(Generating, name="engine")
    plain = ray.get_actor("engine", namespace=ray.get_runtime_context().namespace)
    assert ray.get(plain.waiting.remote()) == 0
    assert [ray.get(token) for token in plain.generate.options(num_returns="streaming").remote(3)] == [
        0,
        1,
        2,
    ]
    del keep


@pytest.mark.parametrize("version", [ray.__version__, "2.61.0"])
def test_calls_are_the_same_under_a_version_of_ray_whose_internals_are_not_known(
    ray_cluster: LocalRayCluster, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(ray, "__version__", version)
    with create_context(f"ray?address={ray_cluster.address}") as context:
        counter = context.create_actor(Counter)
        seven = context.run(int, "111", base=2)
        assert context.get([seven, context.run(pow, seven, 2)]) == [7, 49]
        assert context.get([counter.increment(), counter.increment(by=seven), counter.increment(3)]) == [
            1,
            8,
            11,
        ]
        assert [context.get(item) for item in context.run(_up_to, 3)] == [0, 1, 2]
        assert list(context.map(abs, range(-5, 0))) == [5, 4, 3, 2, 1]
        with pytest.raises(TypeError, match="unexpected"):
            context.get(counter.increment(unexpected=1))


def _up_to(number: int) -> Iterator[int]:
    yield from range(number)


def test_the_text_of_a_failure_does_not_grow_along_a_chain(context: JobContext) -> None:
    def negated(value: int) -> int:
        return -value

    def broken() -> int:
        raise ValueError("where it all began")

    ref = context.run(broken)
    for _ in range(300):
        ref = context.run(negated, ref)
    with pytest.raises(ValueError, match="where it all began"):
        context.get(ref, timeout=100)
    with pytest.raises(ValueError, match="where it all began") as caught:
        ray.get(ref)
    assert len(str(caught.value)) < 30_000
    assert "negated" in str(caught.value)


def test_kill_returns_when_calls_fail_however_late_ray_ends_the_process(
    context: JobContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill = typed_ray.kill
    late: list[threading.Timer] = []

    def kill_later(*args: Any, **options: Any) -> None:
        late.append(threading.Timer(0.5, kill, args, options))
        late[-1].start()

    counter = context.create_actor(Counter)
    assert context.get(counter.value()) == 0
    with monkeypatch.context() as patched:
        patched.setattr(typed_ray, "kill", kill_later)
        context.kill(counter)
    with pytest.raises(ActorDiedError):
        context.get(counter.value())
    late[0].join()
