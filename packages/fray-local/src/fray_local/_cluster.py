"""Jobs on this machine, each a process tree that outlives who launched it."""

import os
import time
from typing import Any

from fray import JobId, JobInfo, JobRequest
from fray.backend import Spec, check_count, check_seconds, invalid
from fray.cluster import ClusterCalls, LogStream, follow_logs, launching, parent_job
from fray_local._cluster_config import LocalClusterConfig
from fray_local._launching import start_job
from fray_local._plans import Machine, Settings, make_plan
from fray_local._records import Records, state_dir
from fray_local._slices import Slices

_PRUNE_EVERY = 3600.0  # seconds


class LocalCluster(ClusterCalls):
    """Run jobs as processes of this machine; spec `local`.

    Jobs go on when their launcher ends, and any process of the same user sees them. Used in a `with`
    statement, the cluster stops the jobs that were launched through it.

    Args:
        config: An older way to say `use_isolated_env`.
        use_isolated_env: Give every job an environment of its own, as `pip_packages` or `extras` do.
        overcommit: Start every job at once, whatever the machine has.
        simulate: `"tpu"` runs the hosts of TPU slices as processes, for tests of training code.
        slices: Simulated slices that there are, of whatever type; None for as many as are asked for.
        context: The spec of the context that jobs find as their current one, e.g. `"process"`.
        cpus: CPUs that jobs may use; None for all that this process may.
        memory: Memory that jobs may use, e.g. `"16g"`; None for all there is.
        gpus: GPUs that jobs may use, the first so many; None for all there are.
        keep_jobs: Records of finished jobs to keep; the oldest ones beyond are deleted.
        keep_days: Days to keep them at most.
    """

    def __init__(
        self,
        config: LocalClusterConfig | None = None,
        /,
        *,
        use_isolated_env: bool = False,
        overcommit: bool = False,
        simulate: str | None = None,
        slices: int | None = None,
        context: str | None = None,
        cpus: float | None = None,
        memory: str | None = None,
        gpus: int | None = None,
        keep_jobs: int = 1000,
        keep_days: float = 30.0,
    ) -> None:
        check_count("keep_jobs", keep_jobs)
        check_seconds("keep_days", keep_days, zero=True)
        use_isolated_env = use_isolated_env or (config is not None and config.use_isolated_env)
        switches = {"use_isolated_env": use_isolated_env, "overcommit": overcommit}
        simulated = {"simulate": simulate, "slices": slices}
        self.spec = _spec(**switches, **simulated, context=context, cpus=cpus, memory=memory, gpus=gpus)
        self._root = state_dir()
        self._records = Records(self._root / "jobs")
        self._keep = keep_jobs, keep_days
        variables = {"FRAY_CLUSTER_SPEC": self.spec, "FRAY_STATE_DIR": os.fspath(self._root)}
        self._settings = Settings(
            state_dir=self._root,
            machine=Machine.of(cpus, memory, gpus),
            counted=not overcommit,
            slices=Slices.of(simulate, slices),
            isolated=use_isolated_env,
            variables=variables | ({"FRAY_CONTEXT_SPEC": context} if context else {}),
        )

    def __repr__(self) -> str:
        return f"<LocalCluster {self.spec!r} in {self._root}>"

    def launch(self, request: JobRequest, /) -> JobId:
        """See `fray.cluster.Cluster.launch`."""
        if not isinstance(request, JobRequest):
            raise invalid("request", "a JobRequest", request)
        parent = self._parent()
        job_id = JobId.new(request.name, parent)
        job_dir = self._records.path(job_id)
        with launching(request, job_id) as variables:
            plan = make_plan(request, job_id, job_dir, self._settings.with_variables(variables))
            self._make_room()
            start_job(request, job_id, job_dir, plan)
        self._note_launched(job_id)
        return job_id

    def poll(self, job_id: str, /) -> JobInfo:
        """See `fray.cluster.Cluster.poll`."""
        return self._records.find(job_id).info()

    def monitor(
        self,
        job_id: str,
        /,
        *,
        replica: int | None = None,
        tail: int | None = None,
        since: float | None = None,
        grep: str | None = None,
        follow: bool = True,
    ) -> LogStream:
        """See `fray.cluster.Cluster.monitor`."""
        record = self._records.find(job_id)
        return follow_logs(
            record.info,
            open_log=record.log,
            replica=replica,
            tail=tail,
            since=since,
            grep=grep,
            follow=follow,
        )

    def terminate(self, job_id: str, grace: float = 10.0) -> None:
        """See `fray.cluster.Cluster.terminate`."""
        check_seconds("grace", grace, zero=True)
        record = self._records.find(job_id)
        record.tell_to_stop(grace)
        record.wait_until_gone()
        # Its supervisor has stopped them, unless it was killed itself.
        for child in record.children():
            self.terminate(child.job_id, grace)

    def list_jobs(self) -> list[JobInfo]:
        """See `fray.cluster.Cluster.list_jobs`."""
        infos = [record.info() for record in self._records.with_descendants()]
        return sorted(infos, key=lambda info: (info.submitted_at or 0.0, info.job_id))

    def _parent(self) -> JobId | None:
        """The job that this process is part of, if it is one of this cluster."""
        parent = parent_job()
        return parent if parent is not None and self._records.path(parent).is_dir() else None

    def _make_room(self) -> None:
        """Prune old records, when there are too many or it was long ago."""
        for folder in (self._root, self._records.folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        last = self._root / "pruned"
        keep, days = self._keep
        recently = last.exists() and time.time() - last.stat().st_mtime < _PRUNE_EVERY
        if not recently or len(self._records.all()) > keep:
            self._records.prune(keep, days)
            last.touch(mode=0o600)


def _spec(**options: Any) -> str:
    """Write the options that are not left as they are by default."""
    given = {name: value for name, value in options.items() if value is not None and value is not False}
    return str(Spec("local", {name: _text(value) for name, value in given.items()}))


def _text(value: Any) -> str:
    if value is True:
        return "true"
    return f"{value:g}" if isinstance(value, float) else str(value)
