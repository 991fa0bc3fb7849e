"""The older face on a cluster: `create_job`, `list_jobs`, `delete_job`."""

import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fray._serialization.values import callable_name
from fray._values.entrypoint import Entrypoint
from fray._values.environment import EnvironmentConfig
from fray._values.jobs import JobRequest
from fray._values.options import RuntimeEnv

if TYPE_CHECKING:
    from fray._contracts.cluster import Cluster
    from fray._contracts.context import JobContext

NO_RUNTIME_ENV = RuntimeEnv()


class ClusterContext:
    """Launch, list and stop jobs as the first generations of this library did, on any cluster."""

    def __init__(self, cluster: "Cluster") -> None:
        self.cluster = cluster

    def create_job(
        self, entrypoint: "str | Callable[[JobContext], Any]", env: RuntimeEnv = NO_RUNTIME_ENV
    ) -> str:
        """Start a shell command, or a function that is handed the job's context; return the job's id."""
        environment = EnvironmentConfig(
            pip_packages=env.package_requirements, env_vars=env.env, docker_image=env.container_image
        )
        if isinstance(entrypoint, str):
            name, runs = entrypoint, Entrypoint.from_binary("/bin/sh", ["-c", entrypoint])
        else:
            name, runs = callable_name(entrypoint), Entrypoint.from_callable(_with_context(entrypoint))
        return self.cluster.launch(JobRequest(job_name(name), runs, environment=environment))

    def list_jobs(self) -> list[dict[str, Any]]:
        """Return a dict per job, its status in capitals, its times in seconds since the epoch."""
        return [
            {
                "id": str(info.job_id),
                "name": info.name,
                "status": info.status.upper(),
                "message": info.error_message or info.pending_reason,
                "submission_time": info.submitted_at,
                "start_time": info.started_at,
                "end_time": info.finished_at,
            }
            for info in self.cluster.list_jobs()
        ]

    def delete_job(self, job_id: str) -> None:
        """Stop a job; it stays in the list as `STOPPED`."""
        self.cluster.terminate(job_id)


def job_name(text: str) -> str:
    """Make a job's name of a command or a function's: `python train.py --lr 1` gives `python-train.py`."""
    words = [word.rpartition("/")[2] for word in text.split() if not word.startswith("-")][:2]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(words)).strip("-.")[:60] or "job"


def _with_context(fn: "Callable[[JobContext], Any]") -> Callable[[], None]:
    behind = list(sys.path)

    # Nested, so that it travels by value: an environment built for the job need not hold Fray itself,
    # and what is installed where the job was launched then stands behind what the job has.
    def call_with_context() -> None:
        import sys

        try:
            import fray
        except ImportError:
            sys.path.extend(path for path in behind if path not in sys.path)
            import fray
        fn(fray.get_job_context())

    call_with_context.__qualname__ = callable_name(fn)
    return call_with_context
