"""What a program's conftest or its modules make current, or make at all."""

import subprocess
import sys
import threading
from pathlib import Path

from fray import get_job_context
from fray.cluster import Cluster, current_cluster
from fray.job import JobContext, create_job_ctx, get_default_job_ctx

PROGRAMS = Path(__file__).parent / "programs"


def test_the_cluster_of_the_conftest_is_current_everywhere(local_cluster: Cluster) -> None:
    found = []
    thread = threading.Thread(target=lambda: found.append(current_cluster()))
    thread.start()
    thread.join()
    assert found == [local_cluster]
    assert current_cluster() is local_cluster


def test_the_context_of_the_conftest_is_what_auto_gives(context: JobContext) -> None:
    assert create_job_ctx("auto", num_cpus=1, memory="1g") is context
    assert get_default_job_ctx() is get_job_context() is context
    assert context.get(context.run(len, "abc")) == 3


def test_a_module_that_makes_a_ray_context_can_be_imported_where_nobody_starts_ray() -> None:
    code = "import module_level_context, ray; print(ray.is_initialized(), module_level_context.CONTEXT)"
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code],
        cwd=PROGRAMS,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "False <RayContext>\n"
