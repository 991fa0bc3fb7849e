"""Give jobs to the scheduler of a cluster, and have the cluster have one."""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Mapping

from fray import ClusterUnavailableError
from fray.cluster import poll_delays
from fray_ray import _entrypoints as entrypoints
from fray_ray import _job_kv
from fray_ray._finding import UNREACHED
from fray_ray._job_table import KEY, TERMINAL
from fray_ray._jobs_client import JobsClient
from fray_ray._queued_job import QueuedJob
from fray_ray._scheduler import SUBMISSION, VERSION

_DOUBTED_AFTER = 5.0  # seconds without an answer after which another scheduler is started
_GOOD = "SUCCEEDED"


class KeyTakenError(Exception):
    """The scheduler does not take a job, because another job has the key of its launch."""


class SchedulerClient:
    """The scheduler of one cluster, by way of the head's store.

    Args:
        here: Returns whether the head is this machine.
        timeout: Seconds within which the scheduler takes a job.
    """

    def __init__(self, client: JobsClient, here: Callable[[], bool], timeout: float) -> None:
        self._client, self._here, self._timeout = client, here, timeout

    def put(self, submission: str, packages: Mapping[str, bytes], queued: QueuedJob) -> None:
        """Give a job to the scheduler; it is in Ray's table when this returns, and withdrawn where it raises.

        Args:
            packages: What the job finds in the head's memory; where the job is refused they are gone.

        Raises:
            KeyTakenError: Another job has the key, and is in Ray's table.
        """
        whole = {
            **packages,
            _job_kv.waiting_name(submission): b"-",
            _job_kv.queued_name(submission): queued.to_json(),
        }
        try:
            self.ensure()
            for name, data in whole.items():
                self._client.upload(name, data)
            self._await_entry(submission, keyed=KEY in queued.metadata and queued.previous_run is None)
        except KeyTakenError:
            raise
        except BaseException as error:  # Ctrl-C too: nobody would know the id of the job
            if not isinstance(error.__cause__, UNREACHED):  # then it was refused; else it may have started
                self._withdraw(submission, whole)
            raise

    def _withdraw(self, submission: str, names: Iterable[str]) -> None:
        """Have nothing of a job be left; where the scheduler has just taken it, it is stopped."""
        with contextlib.suppress(RuntimeError, ClusterUnavailableError):
            self._client.upload(_job_kv.stop_name(submission), b"0.0")
            if self._client.entry(submission) is None:
                for name in reversed(list(names)):  # without a plan a job that is queued fails
                    self._client.forget(name)
                self._client.forget_job(submission)

    def ensure(self, *, doubted: bool = False) -> None:
        """Have the cluster have a scheduler.

        Args:
            doubted: Whether one that was started does not answer: it may have been ended for good.
        """
        for number in itertools.count(1):
            name = SUBMISSION if number == 1 else f"{SUBMISSION}-{number}"
            entry = self._client.entry(name)
            if entry is None:
                try:
                    self._client.submit(entrypoints.scheduler(here=self._here()), name, {}, {})
                except (RuntimeError, ClusterUnavailableError):
                    # Another launcher may have started it just now, or this one, whose answer was lost.
                    if self._client.entry(name) is None:
                        raise
                return
            if entry.status not in TERMINAL or (entry.status == _GOOD and not doubted):
                return

    def _is_refused(self, submission: str) -> bool:
        """Whether the scheduler has deleted a job, without an entry of it."""
        held = self._client.holds(_job_kv.waiting_name(submission))
        return not held and self._client.entry(submission) is None

    def _await_entry(self, submission: str, *, keyed: bool) -> None:
        started = time.monotonic()
        doubted = False
        for pause in poll_delays(shortest=0.02, longest=0.1):
            if self._client.entry(submission) is not None:
                return
            if keyed and self._is_refused(submission):
                raise KeyTakenError
            waited = time.monotonic() - started
            if waited > _DOUBTED_AFTER and not doubted:
                doubted = True
                self.ensure(doubted=True)
            if waited > self._timeout:
                raise ClusterUnavailableError(
                    f"the scheduler of the cluster at {self._client.url} did not take job {submission} "
                    f"within {self._timeout:g} s; `ray job logs {SUBMISSION}` says whether it could start; "
                    f"the head needs fray-ray {VERSION}, as this program has: no other version takes the job"
                )
            time.sleep(pause)
