"""The earlier attempts of a job, from the files in which the scheduler wrote them down."""

from collections import OrderedDict

from fray.backend import defer_tasks
from fray.cluster import JobInfo, TaskStatus
from fray_ray._attempts_file import Attempts, completed, read_attempts
from fray_ray._job_table import earlier_in
from fray_ray._jobs_client import JobsClient
from fray_ray._log_names import attempts_name
from fray_ray._lookup import FoundJob
from fray_ray._packed_tasks import EARLIER_IN_ENTRY

_KEPT = 64  # jobs whose earlier attempts are not fetched again while no other attempt began


class EarlierAttempts:
    """What a cluster's client knows of them."""

    def __init__(self, client: JobsClient) -> None:
        self._client = client
        self._known: OrderedDict[tuple[str, int], Attempts] = OrderedDict()

    def complete(self, found: FoundJob) -> JobInfo:
        """Return a job with all its earlier attempts; asks for those that its entry does not hold."""
        info, count = found.info, earlier_in(found.entry)
        if count <= EARLIER_IN_ENTRY or not found.runs:
            return info
        key = found.submission, count
        known = self._known.get(key)
        if known is None:
            known = self._read(found)
            if known:  # else the node did not answer: ask it again at the next look
                self._known[key] = known
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return defer_tasks(info, lambda: completed(info.tasks, known))

    def _read(self, found: FoundJob) -> Attempts:
        attempts: dict[tuple[int, int], TaskStatus] = {}
        for submission in found.runs:
            entry = found.entry if submission == found.submission else self._client.entry(submission)
            if entry is not None and entry.node:
                attempts |= read_attempts(self._client.file_of_node(entry.node, attempts_name(submission)))
        return attempts
