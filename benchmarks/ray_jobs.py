"""What a job costs through RayCluster, compared with the same by `JobSubmissionClient`, from launch to done.

Goal: `true` takes at most what `JobSubmissionClient` needs for it. By hand that is one process on the head,
unseen by Ray's scheduling; a job of Fray has that process, and its replica in a place of its own. The task of
Ray by hand has such a place, too. Runs on one node of this machine.
"""

import os

os.environ["RAY_AUTH_MODE"] = "disabled"  # of a private cluster; read when Ray is imported

import itertools
import time

from measure import Timed, at_most, compare, timed
from ray.job_submission import JobStatus, JobSubmissionClient

from fray.cluster import Entrypoint, JobRequest
from fray_ray import RayCluster
from fray_ray.testing import LocalRayCluster

_LOOK = 0.05  # seconds between two looks at a job by hand
_names = itertools.count()
# What is launched by hand to have what a job of Fray has: a place in the cluster and a process there.
PLACED = """
import subprocess, ray
ray.init(logging_level="error", log_to_driver=False)
@ray.remote(num_cpus=1)
def run():
    return subprocess.run(["true"]).returncode
raise SystemExit(ray.get(run.remote()))
"""


def by_hand(client: JobSubmissionClient, entrypoint: str) -> Timed:
    def run() -> None:
        job = client.submit_job(entrypoint=entrypoint, submission_id=f"hand-{next(_names)}")
        while not (status := client.get_job_status(job)).is_terminal():
            time.sleep(_LOOK)
        assert status is JobStatus.SUCCEEDED

    return lambda: timed(run)


def by_fray(cluster: RayCluster, entrypoint: Entrypoint) -> Timed:
    request = JobRequest("bench", entrypoint)
    return lambda: timed(lambda: cluster.wait(cluster.launch(request), raise_on_failure=True))


def do_nothing() -> None: ...


def main() -> None:
    with LocalRayCluster(num_cpus=2, fast_workers=False) as ray_cluster:
        client, cluster = JobSubmissionClient(ray_cluster.dashboard), RayCluster(ray_cluster.address)
        placed = f"python -c '{PLACED}'"
        peer = "JobSubmissionClient: true, on the head"
        subjects = {
            peer: by_hand(client, "true"),
            "JobSubmissionClient: a task of Ray that runs true": by_hand(client, placed),
            "fray: true, in its place": by_fray(cluster, Entrypoint.from_binary("true")),
            "fray: a callable": by_fray(cluster, Entrypoint.from_callable(do_nothing)),
        }
        limit = (
            "two workers of Ray start side by side, the supervisor's and the replica's, and by hand one; "
            "the scheduler looks for jobs ten times a second; a replica starts when the job's own process "
            "is there"
        )
        goals = {"fray: true, in its place": at_most(1.0, limit)}
        compare("Launch to succeeded", subjects, peer=peer, rounds=7, unit="ms", scale=1e3, goals=goals)


if __name__ == "__main__":
    main()
