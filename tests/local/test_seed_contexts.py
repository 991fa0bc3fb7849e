"""The calls that the project's first documents show, run as they were written."""

import pytest

import fray
from fray import create_context, get_job_context


@pytest.fixture
def process_wide() -> tuple[str, ...]:
    """What may stay: the threads of the process's default context, which the documents use freely."""
    return ("^thread fray-worker",)


def test_seed_000_execution_contexts() -> None:
    ctx = create_context("sync")
    ref = ctx.put({"data": [1, 2, 3]})
    future = ctx.run(lambda x: sum(x["data"]), ref)
    assert ctx.get(future) == 6

    ctx = create_context("threadpool", max_workers=4)
    ref = ctx.put({"data": [1, 2, 3]})
    future = ctx.run(lambda x: sum(x["data"]), ref)
    result = ctx.get(future)
    assert result == 6
    assert isinstance(ctx, fray.ExecutionContext)
    ctx.shutdown()


def test_seed_000_the_protocol() -> None:
    ctx: fray.ExecutionContext = create_context("threadpool")
    with ctx:
        futures = [ctx.run(abs, -index) for index in range(5)]
        ready, pending = ctx.wait(futures, num_returns=5)
        assert (len(ready), pending) == (5, [])


def test_seed_001_quick_start() -> None:
    ctx = get_job_context()

    def my_task(x: int) -> int:
        return x * 2

    ref = ctx.create_task(my_task, 5)
    result = ctx.get(ref)
    assert result == 10


def test_seed_001_actors() -> None:
    from fray import ActorOptions, Lifetime, get_job_context

    ctx = get_job_context()

    class Counter:
        def __init__(self, start: int = 0) -> None:
            self.count = start

        def increment(self) -> int:
            self.count += 1
            return self.count

    class StatusActor:
        def status(self) -> str:
            return "fine"

    actor = ctx.create_actor(Counter, kwargs={"start": 5})
    ref = actor.increment()
    value = ctx.get(ref)
    assert value == 6

    options = ActorOptions(
        name="status_actor",
        get_if_exists=True,
        lifetime=Lifetime.DETACHED,
        resources={"CPU": 0, "head_node": 0.0001},
    )
    status_actor = ctx.create_actor(StatusActor, options=options)
    assert ctx.get(status_actor.status()) == "fine"
    ctx.kill(status_actor)


def test_seed_001_options() -> None:
    from fray import TaskOptions

    ctx = get_job_context()
    task_options = TaskOptions(resources={"CPU": 4, "GPU": 1, "memory": 8 * 1024**3})
    ref = ctx.create_task(lambda args: args, "x", options=task_options)
    assert ctx.get(ref) == "x"


@pytest.mark.filterwarnings("ignore:.* is an older spelling of:DeprecationWarning")
def test_seed_002_zephyr_and_rl() -> None:
    from fray.job import JobContext, create_job_ctx, fray_default_job_ctx, get_default_job_ctx

    class Curriculum:
        def sample_lesson(self, seed: int) -> str:
            return f"lesson {seed}"

    def run_stage(ctx: JobContext, ops: list[int]) -> int:
        return sum(ctx.get([ctx.run(abs, op) for op in ops]))

    with fray_default_job_ctx(create_job_ctx("threadpool", max_workers=2)):
        context = get_default_job_ctx()
        future = context.run(run_stage, context, [1, -2, 3])
        ready, _ = context.wait([future])
        assert context.get(ready[0]) == 6
        curriculum = get_default_job_ctx().create_actor(
            Curriculum, name="curriculum", get_if_exists=True, preemptible=False, num_cpus=0
        )
        assert context.get(curriculum.sample_lesson.remote(3)) == "lesson 3"
        context.shutdown()


@pytest.mark.filterwarnings("ignore:.* is an older spelling of:DeprecationWarning")
def test_seed_004_replacing_ray_remote() -> None:
    from fray import fray_job_ctx

    def remote_function(arg1: int, arg2: int) -> int:
        return arg1 + arg2

    ctx = fray_job_ctx()
    future = ctx.run(remote_function, 4, 6)
    assert ctx.get(future) == 10


def test_a_runtime_environment_in_one_process_is_refused_not_ignored() -> None:
    from fray import TaskOptions, UnsupportedError
    from fray.types import RuntimeEnv

    ctx = get_job_context()
    with pytest.raises(UnsupportedError, match="'process' or 'ray'"):
        ctx.create_task(abs, 1, options=TaskOptions(runtime_env=RuntimeEnv(package_requirements=["numpy"])))
    assert ctx.get(ctx.create_task(ord, "a", options=TaskOptions(runtime_env=RuntimeEnv()))) == 97
