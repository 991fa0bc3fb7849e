"""What a context refuses that was shut down, or whose Ray has ended: it starts no other."""

import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest

from fray import ContextClosedError, create_context
from fray.testing.context import ContextFixtures  # noqa: F401 - it registers what pytest rewrites
from fray.testing.tasks import Counter
from fray_ray.testing import LocalRayCluster

PROGRAM = """
    import gc, sys
    from pathlib import Path
    import ray
    from fray import ContextClosedError, create_context
    from fray.testing.tasks import Counter

    context = create_context("ray?local=true&num_cpus=1")
    ref = context.run(abs, -1)
    counter = context.create_actor(Counter, name="counter")
    assert context.get([ref, counter.increment()]) == [1, 1]
    folder = Path(ray.nodes()[0]["ObjectStoreSocketName"].partition("/session_")[0])
    exec(sys.argv[1])
    calls = dict(
        run=lambda: context.run(abs, -1),
        map=lambda: list(context.map(abs, [-1])),
        submit=lambda: context.as_executor().submit(abs, -1),
        put=lambda: context.put(1),
        create_actor=lambda: context.create_actor(Counter),
        get_actor=lambda: context.get_actor("counter"),
        call=lambda: counter.increment(),
        namespace=lambda: context.namespace,
        get=lambda: context.get(ref),
        get_many=lambda: context.get([ref]),
        wait=lambda: context.wait([ref]),
        cancel=lambda: context.cancel(ref),
        kill=lambda: context.kill(counter),
    )
    for name, call in calls.items():
        try:
            print(name, call())
        except ContextClosedError as error:
            assert "create_context('ray')" in str(error)
    context.shutdown()
    print("another" if ray.is_initialized() else "none", folder.exists())
"""


@pytest.mark.parametrize(
    ("end", "up"),
    [
        ("context.shutdown()", "none"),
        ("ray.shutdown()", "none"),
        ("ray.shutdown(); ray.init('local', num_cpus=1, include_dashboard=False)", "another"),
    ],
    ids=["shut down", "left", "left for another"],
)
def test_a_context_whose_private_cluster_has_ended_starts_no_other(end: str, up: str) -> None:
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), end]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{up} False"]


def test_a_context_that_was_shut_down_gets_what_is_there_and_refuses_all_else(
    ray_cluster: LocalRayCluster,
) -> None:
    context = create_context(f"ray?address={ray_cluster.address}")
    ref, counter = context.run(abs, -1), context.create_actor(Counter, name="counter")
    assert context.get(counter.increment(), timeout=200) == 1
    context.shutdown()
    assert (context.get(ref), context.get([ref]), context.wait([ref])) == (1, [1], ([ref], []))
    assert not context.cancel(ref)
    context.kill(counter)
    refused: list[Callable[[], object]] = [
        lambda: context.run(abs, -1),
        lambda: list(context.map(abs, [-1])),
        lambda: context.as_executor().submit(abs, -1),
        lambda: context.put(1),
        lambda: context.create_actor(Counter),
        lambda: context.get_actor("counter"),
        lambda: counter.increment(),
        lambda: context.namespace,  # type: ignore[attr-defined]
    ]
    for call in refused:
        with pytest.raises(ContextClosedError, match="shut down"):
            call()


def test_the_current_context_is_of_the_ray_that_the_program_is_in() -> None:
    program = """
        import ray
        from fray import get_job_context

        for _ in range(2):
            ray.init("local", num_cpus=1, include_dashboard=False)
            context = get_job_context()
            print(context is get_job_context(), context.get(context.run(abs, -1)))
            ray.shutdown()
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)
    assert done.stdout.splitlines() == ["True 1"] * 2, done.stderr
