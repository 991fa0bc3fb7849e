"""A program that forks: the child has the contexts of its parent, none of their threads and workers."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    # From 3.12 on Python warns of every fork in a process with threads; these programs mean to.
    accepted = "ignore:This process:DeprecationWarning"
    return subprocess.run(
        [sys.executable, "-W", accepted, "-c", textwrap.dedent(program), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture(params=["threadpool?max_workers=2", "process?max_workers=2"])
def spec(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_a_child_ends_while_its_parent_works(spec: str, tmp_path: Path) -> None:
    done = run(
        """
        import os, sys
        from pathlib import Path
        from fray import WrongProcessError, create_context
        from fray.testing.gates import Gate

        def hold(started, gate):
            started.open()
            gate.wait()
            return "held"

        folder = Path(sys.argv[2])
        started, gate = Gate(folder / "started"), Gate(folder / "gate")
        context = create_context(sys.argv[1])
        ref = context.create_task(hold, started, gate)
        started.wait()
        child = os.fork()
        if not child:
            with context:
                try:
                    context.get(ref)
                except WrongProcessError:
                    sys.exit(3)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        gate.open()
        print(context.get(ref), context.get(context.run(abs, -1)))
        """,
        spec,
        str(tmp_path),
    )
    assert (done.stdout, done.stderr) == ("3\nheld 1\n", "")


def test_a_child_learns_that_the_context_is_not_its_own_and_can_make_one(spec: str) -> None:
    done = run(
        """
        import os, sys
        from fray import create_context, get_job_context

        context = create_context(sys.argv[1])
        context.get(context.run(abs, -1))
        kept = get_job_context()
        kept.get(kept.run(abs, -1))
        child = os.fork()
        if not child:
            try:
                context.run(abs, -2)
            except Exception as error:
                print(type(error).__name__, str(os.getppid()) in str(error))
            for other in (create_context(sys.argv[1]), get_job_context()):
                print(other.get(other.run(abs, -3)), flush=True)
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        print(context.get(context.run(abs, -4)))
        """,
        spec,
    )
    assert (done.stdout, done.stderr) == ("WrongProcessError True\n3\n3\n4\n", "")


@pytest.mark.parametrize("spec", ["sync"])
def test_a_context_without_threads_works_in_a_child(spec: str) -> None:
    done = run(
        """
        import os, sys
        from fray import create_context

        with create_context(sys.argv[1]) as context:
            child = os.fork()
            if not child:
                print(context.get(context.run(abs, -1)), flush=True)
                os._exit(0)
            os.waitpid(child, 0)
        """,
        spec,
    )
    assert (done.stdout, done.stderr) == ("1\n", "")


AT_THE_FORK = {
    "an async actor lives": """
        actor = context.create_actor(Waits)
        context.get(actor.answer())
        use = lambda: context.get(actor.answer())
        """,
    "a call of an async actor is under way": """
        ref = context.create_actor(Waits).until_released()
        use = lambda: context.get(ref)
        """,
    "another thread runs a task": """
        running = threading.Event()
        def hold():
            running.set()
            released.wait()
        threading.Thread(target=context.run, args=[hold]).start()
        running.wait()
        use = lambda: context.run(abs, -1)
        """,
    "another thread runs a method": """
        running = threading.Event()
        class Holds:
            def hold(self):
                running.set()
                released.wait()
        actor = context.create_actor(Holds)
        threading.Thread(target=lambda: actor.hold()).start()
        running.wait()
        use = lambda: context.get(actor.hold())
        """,
}


@pytest.mark.parametrize("moment", AT_THE_FORK)
@pytest.mark.parametrize("spec", ["sync", "threadpool?max_workers=2"])
def test_a_child_learns_that_calls_are_left_to_threads_of_its_parent(spec: str, moment: str) -> None:
    program = """
        import asyncio, os, signal, sys, threading
        from fray import WrongProcessError, create_context

        class Waits:
            async def answer(self):
                return 1
            async def until_released(self):
                while not released.is_set():
                    await asyncio.sleep(0.01)

        released = threading.Event()
        with create_context(sys.argv[1]) as context:
            exec(sys.argv[2])
            child = os.fork()
            if not child:
                signal.alarm(20)
                try:
                    use()
                except WrongProcessError:
                    print("learned", flush=True)
                context.shutdown()
                os._exit(0)
            print(os.waitpid(child, 0)[1])
            released.set()
            print(context.get(context.run(abs, -1)))
        """
    done = run(program, spec, textwrap.dedent(AT_THE_FORK[moment]))
    assert (done.stdout, done.stderr) == ("learned\n0\n1\n", "")


def test_a_task_and_an_actor_that_fork_use_their_context_on_in_the_child() -> None:
    done = run(
        """
        import os, signal, threading
        from fray import create_context

        class Quick:
            async def answer(self):
                return 1

        class Forks:
            def fork(self):
                return fork()

        def fork():
            child = os.fork()
            if not child:
                signal.alarm(20)
                with context:
                    print(context.get(context.run(abs, -1)), flush=True)
                os._exit(0)
            return os.waitpid(child, 0)[1]

        with create_context("sync") as context:
            threads = [threading.Thread(target=context.run, args=[abs, -1]) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            print(context.get(context.run(fork)), context.get(context.create_actor(Forks).fork()))
            quick = context.create_actor(Quick)
            context.get(quick.answer())
            context.kill(quick)
            for thread in threading.enumerate():
                if thread.name.startswith("fray-actor"):
                    thread.join()
            print(fork())  # the async actor's thread has ended
        """
    )
    assert (done.stdout, done.stderr) == ("1\n1\n0 0\n1\n0\n", "")


def test_a_child_that_waits_for_an_item_of_a_stream_learns_it_too(spec: str, tmp_path: Path) -> None:
    done = run(
        """
        import os, sys
        from pathlib import Path
        from fray import WrongProcessError, create_context
        from fray.testing.gates import Gate

        def wait_and_count(gate):
            gate.wait()
            yield 1

        gate = Gate(Path(sys.argv[2]) / "gate")
        with create_context(sys.argv[1]) as context:
            stream = context.run(wait_and_count, gate)
            child = os.fork()
            if not child:
                try:
                    next(stream)
                except WrongProcessError:
                    os._exit(3)
                os._exit(4)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            gate.open()
            print(context.get(next(stream)))
        """,
        spec,
        str(tmp_path),
    )
    assert (done.stdout, done.stderr) == ("3\n1\n", "")


def test_a_child_that_waits_for_a_future_or_in_a_coroutine_learns_it_too(spec: str, tmp_path: Path) -> None:
    done = run(
        """
        import asyncio, os, signal, sys
        from pathlib import Path
        from fray import WrongProcessError, create_context
        from fray.testing.gates import Gate

        gate = Gate(Path(sys.argv[2]) / "gate")
        with create_context(sys.argv[1]) as context:
            ref = context.run(gate.wait)
            future = context.as_executor().submit(gate.wait)
            child = os.fork()
            if not child:
                signal.alarm(20)
                for wait in (future.result, future.exception, lambda: asyncio.run(context.aget(ref))):
                    try:
                        wait()
                    except WrongProcessError:
                        print("learned", flush=True)
                os._exit(0)
            print(os.waitpid(child, 0)[1])
            gate.open()
            future.result()
        """,
        spec,
        str(tmp_path),
    )
    assert (done.stdout, done.stderr) == ("learned\nlearned\nlearned\n0\n", "")


def test_a_child_of_a_task_does_not_speak_for_its_worker() -> None:
    done = run(
        """
        import multiprocessing
        from fray import WrongProcessError, create_context, get_job_context

        def use(ours, answers):
            try:
                ours.get(ours.run(abs, -1), timeout=20)
            except WrongProcessError as error:
                answers.put(str(error))
            own = get_job_context()
            answers.put([own is ours, own.get(own.run(abs, -2), timeout=20)])
            own.shutdown()

        def fork():
            ours, forking = get_job_context(), multiprocessing.get_context("fork")
            answers = forking.SimpleQueue()
            child = forking.Process(target=use, args=[ours, answers])
            child.start()
            theirs = ours.get([ours.run(abs, -number) for number in range(300)])  # while the child speaks
            child.join(45)
            child.kill()
            return theirs == list(range(300)), child.exitcode, answers.get(), answers.get()

        with create_context("process", max_workers=1) as context:
            print(*context.get(context.run(fork), timeout=50), sep="\\n")
        """
    )
    right, code, said, others = done.stdout.splitlines() or [done.stderr] * 4
    assert (right, code, others) == ("True", "0", "[False, 2]")
    assert "forked child" in said
    assert "get_job_context()" in said


def test_a_fork_in_the_middle_of_a_launch_holds_up_no_job(tmp_path: Path) -> None:
    """As where a data loader starts its workers while another thread launches a job."""
    done = run(
        """
        import os, signal, sys, threading
        from fray.cluster import Entrypoint, JobRequest, create_cluster

        os.environ["FRAY_STATE_DIR"] = sys.argv[1]
        cluster = create_cluster("local")
        request = JobRequest("quick", Entrypoint.from_binary("true", []))
        children, launching = [], True

        def fork(event, arguments):
            if event == "os.rename" and launching:  # of the job's record, say
                child = os.fork()
                if not child:
                    signal.pause()
                children.append(child)

        sys.addaudithook(fork)
        try:
            job = cluster.launch(request, key="one")
            launching = False
            print(cluster.wait(job, timeout=30).status)
            print(cluster.launch(request, key="one") == job)
            print(cluster.wait(cluster.launch(request), timeout=30).status)
            cluster.remove(job)
        finally:
            print(len(children) > 2)
            for child in children:
                os.kill(child, signal.SIGKILL)
        """,
        str(tmp_path),
    )
    assert (done.stdout, done.stderr) == ("succeeded\nTrue\nsucceeded\nTrue\n", "")


HELD = {
    "plugins are looked up": """
        class Finder:
            def find_spec(self, *_):
                return None
            def find_distributions(self, *_):
                hold()
                return ()
        sys.meta_path.append(Finder())
        """,
    "the listeners are made": """
        def make():
            hold()
            return type("Silent", (), {"on_event": lambda *_: None})()
        os.environ["FRAY_LISTENERS"] = "__main__:make"
        """,
    "the current cluster is made": """
        from fray import current_cluster
        import fray_local
        init = fray_local.LocalCluster.__init__
        def slow(self, *arguments, **options):
            hold()
            init(self, *arguments, **options)
        fray_local.LocalCluster.__init__ = slow
        """,
}


@pytest.mark.parametrize("moment", HELD)
def test_a_fork_while_another_thread_is_in_the_middle_holds_up_no_child(moment: str) -> None:
    program = """
        import os, signal, sys, threading
        from fray import create_context, current_cluster
        parent, inside, go_on = os.getpid(), threading.Event(), threading.Event()
        def hold():
            if os.getpid() == parent:
                inside.set()
                go_on.wait(60)
        def use():
            with create_context("sync") as context:
                context.run(abs, -1)
            current_cluster()
        exec(sys.argv[1])
        thread = threading.Thread(target=use)
        thread.start()
        assert inside.wait(60)
        child = os.fork()
        if not child:
            signal.alarm(20)
            use()
            os._exit(0)
        print(os.waitpid(child, 0)[1])
        go_on.set()
        thread.join()
        """
    done = run(program, textwrap.dedent(HELD[moment]))
    assert (done.stdout, done.stderr) == ("0\n", "")
