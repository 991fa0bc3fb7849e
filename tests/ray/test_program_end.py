"""What of a program's work goes on, and what stays, when it leaves its contexts, or ends without that."""

import subprocess
import sys
import textwrap
from pathlib import Path


def printed(program: str, *arguments: str) -> str:
    """Run a program that ends well; return what it printed."""
    command = [sys.executable, "-c", textwrap.dedent(program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_private_cluster_that_was_not_waited_for_ends_with_the_program_and_leaves_no_folder() -> None:
    program = """
        import psutil, re, sys
        from fray import create_context

        context = create_context("ray?local=true&num_cpus=1")
        context.get(context.run(abs, -1))
        commands = [" ".join(child.cmdline()) for child in psutil.Process().children(recursive=True)]
        print(*{found for each in commands for found in re.findall(r"/tmp/fray-[^/ ]+", each)})
        context.shutdown(wait=False)
        """
    (folder,) = printed(program).split()
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
