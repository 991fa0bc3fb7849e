"""What of a program's work goes on, and what stays, when it leaves its contexts, or ends without that."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fray import create_context
from fray.testing import tasks
from fray.testing.gates import Gate
from fray_ray.testing import LocalRayCluster


def printed(program: str, *arguments: str) -> str:
    """Run a program that ends well; return what it printed."""
    command = [sys.executable, "-c", textwrap.dedent(program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_task_that_a_call_of_an_actor_takes_gets_the_time_of_a_task(
    ray_cluster: LocalRayCluster, tmp_path: Path
) -> None:
    program = """
        import sys, time
        from pathlib import Path
        from fray import create_context

        class Sink:
            def save(self, value):
                pass

        def train(mark):
            time.sleep(12)  # a call of an actor has 10
            Path(mark).touch()

        context = create_context(f"ray?address={sys.argv[1]}")
        sink = context.create_actor(Sink)
        sink.save(context.run(train, sys.argv[2]))
        """
    printed(program, ray_cluster.address, str(tmp_path / "mark"))
    assert (tmp_path / "mark").exists()


def test_leaving_by_an_exception_cancels_what_waits_also_where_others_take_it(
    ray_cluster: LocalRayCluster, tmp_path: Path
) -> None:
    started, opened = Gate(tmp_path / "started"), Gate(tmp_path / "opened")
    marks = [tmp_path / str(number) for number in range(8)]

    def leave() -> None:
        # One node has three CPUs, no other has as many.
        with create_context(f"ray?address={ray_cluster.address}&num_cpus=3") as context:
            context.run(tasks.hold, opened, started)
            started.wait()
            for mark in marks:
                context.run(repr, context.run(mark.touch))
            raise KeyError("on the way out")

    with pytest.raises(KeyError, match="on the way out"):
        leave()
    with create_context(f"ray?address={ray_cluster.address}&num_cpus=3") as after:
        after.get(after.run(abs, -1))  # those that were to run before have had their turn
    assert not any(mark.exists() for mark in marks)


def test_a_private_cluster_that_was_not_waited_for_ends_with_the_program_and_leaves_no_folder() -> None:
    program = """
        import ray
        from fray import create_context

        context = create_context("ray?local=true&num_cpus=1")
        context.get(context.run(abs, -1))
        (node,) = ray.nodes()
        print(node["ObjectStoreSocketName"].partition("/session_")[0])
        context.shutdown(wait=False)
        """
    (folder,) = printed(program).split()
    assert folder.startswith("/tmp/fray-")
    assert not Path(folder).exists()


def test_a_private_cluster_of_a_context_that_was_dropped_does_its_work_and_leaves_no_folder(
    tmp_path: Path,
) -> None:
    program = """
        import gc, sys, time
        import ray
        from pathlib import Path
        from fray import create_context

        def work(mark):
            time.sleep(2)
            Path(mark).touch()

        context = create_context("ray?local=true&num_cpus=1")
        context.put(1)  # which starts it
        other = create_context("ray")
        (node,) = ray.nodes()
        print(node["ObjectStoreSocketName"].partition("/session_")[0])
        for each, mark in zip((context, other), sys.argv[1:]):
            each.run(work, mark)
        del context, each
        gc.collect()
        """
    marks = [tmp_path / "dropped", tmp_path / "held"]
    (folder,) = printed(program, *map(str, marks)).split()
    assert all(mark.exists() for mark in marks)
    assert not Path(folder).exists()


def test_a_private_cluster_that_cannot_be_started_leaves_no_folder() -> None:
    program = """
        import ray
        from fray import create_context

        def fail(*args, **options):
            print(options["_temp_dir"])
            raise OSError("no room")

        ray.init = fail
        try:
            create_context("ray?local=true").put(1)
        except OSError:
            pass
        """
    (folder,) = printed(program).split()
    assert folder.startswith("/tmp/fray-")
    assert not Path(folder).exists()
