"""The jobs of a cluster as a page lists them: requested again and again, chosen and sorted once."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fray._values.job_states import JobInfo

if TYPE_CHECKING:
    from fray._contracts.cluster import Cluster
    from fray._jobs.records.watch import JobsSeen

_MOST_CHOICES = 8  # that are kept of one list: of several tabs


@dataclass(frozen=True)
class Chosen:
    """The jobs of a list that fit a filter, in order, and how many of each state have its words."""

    infos: Sequence[JobInfo]
    counts: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class JobList:
    """The jobs of a cluster, or of a sweep, as they were at one look.

    Args:
        unread: How many more there are that have not been read.
    """

    infos: Sequence[JobInfo]
    unread: int = 0
    _chosen: "OrderedDict[tuple[str, str, str], Chosen]" = field(default_factory=OrderedDict)

    def choose(self, words: str, status: str, sort: str) -> Chosen:
        """Return those that have all words and a status, where one is given, in an order of `list_jobs`."""
        key = words, status, sort
        found = self._chosen.get(key)
        if found is None:
            found = self._chosen[key] = self._choose(words, status, sort)
            while len(self._chosen) > _MOST_CHOICES:
                self._chosen.popitem(last=False)
        return found

    def _choose(self, words: str, status: str, sort: str) -> Chosen:
        from fray._jobs.clusters.listing import JobFilter

        fitting = [info for info in self.infos if fits(info, words)]
        counts = Counter(str(info.status) for info in fitting)
        if status:
            fitting = [info for info in fitting if info.status == status]
        return Chosen(JobFilter(None, {}, None, None, None, sort).apply(fitting), counts)


def fits(info: JobInfo, wanted: str) -> bool:
    """Whether a job has all words of a filter in its name, id, labels or message, whatever their case."""
    if not wanted:
        return True
    labels = " ".join(f"{key}={value}" for key, value in info.labels.items())
    said = info.error_message or info.pending_reason or ""
    searched = f"{info.name}\n{info.job_id}\n{labels}\n{said}".casefold()
    return all(word in searched for word in wanted.casefold().split())


class JobLists:
    """Looks at the jobs of a cluster, or at those that one launched, from one thread at a time.

    A cluster that can watch its jobs (`watch_jobs`) is called for what has changed, and for a part of the
    whole where that would take long; any other one for all of them.
    """

    def __init__(self, cluster: "Cluster", parent: str) -> None:
        self._cluster, self._parent = cluster, parent
        self._watch: Any = None
        self._seen: JobsSeen | None = None
        self._list = JobList([])
        self.renewed = False
        """Set where something was changed: the next look is at everything."""

    def look(self) -> JobList:
        """Return the jobs as they are now; the same list where they have not changed."""
        given: dict[str, Any] = {"parent": self._parent} if self._parent else {}
        watch_jobs: Callable[..., Any] | None = getattr(self._cluster, "watch_jobs", None)
        if watch_jobs is None:
            return JobList(self._cluster.list_jobs(**given))
        if self._watch is None:
            self._watch = watch_jobs(**given)
        if self.renewed:
            self.renewed = False
            self._watch.renew()
        seen: JobsSeen = self._watch.look()
        if seen is not self._seen:
            self._seen, self._list = seen, JobList(seen.infos, seen.unread)
        return self._list
