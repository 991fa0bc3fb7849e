"""How an attempt of a gang ended: for whose sake, and how each of its replicas did."""

from collections.abc import Mapping
from dataclasses import replace

from fray.cluster import ExitReason, JobStatus
from fray_ray._head.attempts import End
from fray_ray._head.job_state import Progress


class GangResult:
    """What is booked of an attempt when no replica of it is left.

    Args:
        ends: How each replica ended.
        culprit: The one for which the others were ended; None where all ended by themselves, well.
        told: Those that were asked to stop because of it, and stopped.
        preempted: Why each replica was preempted that was.
        lost: The nodes that are gone, or will be soon.
    """

    def __init__(
        self,
        ends: Mapping[int, End],
        culprit: int | None,
        told: set[int],
        preempted: Mapping[int, str],
        lost: set[str],
    ) -> None:
        self._ends, self._culprit, self._told = dict(ends), culprit, told
        self.lost = lost
        for number, why in preempted.items():
            message = f"replica {number} was preempted: {why}"
            self._ends[number] = replace(ends[number], reason=ExitReason.PREEMPTED, message=message)
        # Peers of a host that vanishes fail too, often before its loss is seen: they are not to blame.
        if preempted and culprit not in preempted:
            self._culprit = min(preempted)
        self._told -= preempted.keys()

    @property
    def good(self) -> bool:
        """Whether all is done."""
        return self._culprit is None

    @property
    def reason(self) -> ExitReason:
        return self._blamed.reason

    @property
    def message(self) -> str:
        return self._blamed.message or "no error message"

    def add(self, words: str) -> None:
        """Say more about why it ended, in the first line of its message."""
        assert self._culprit is not None
        first, newline, rest = self.message.partition("\n")
        self._ends[self._culprit] = replace(self._blamed, message=f"{first}{words}{newline}{rest}")

    def results(self) -> list[bytes | None]:
        """Return what each replica returned; of an attempt that failed, what the one to blame raised."""
        if self.good:
            return [self._ends[number].result for number in sorted(self._ends)]
        return [self._blamed.result]

    def settle(self, progress: Progress, stopped: tuple[float, ExitReason] | None, *, again: bool) -> None:
        """Book how each replica ended.

        Args:
            stopped: The grace and the reason, where somebody ended the whole job.
        """
        for number, end in self._ends.items():
            if stopped is not None:
                status = JobStatus.STOPPED if stopped[1] is ExitReason.STOPPED else JobStatus.FAILED
                reason, message = stopped[1], None
            elif number in self._told:
                status, reason = JobStatus.STOPPED, ExitReason.STOPPED
                message = f"stopped with its gang: {self.message.partition(chr(10))[0]}"
            else:
                well = end.good and end.reason is ExitReason.EXITED
                status = JobStatus.SUCCEEDED if well else JobStatus.FAILED
                reason, message = end.reason, end.message
            used = end.peak_memory, end.cpu_time
            progress.end(number, status, reason, end.exit_code, message, again=again, used=used)

    @property
    def _blamed(self) -> End:
        assert self._culprit is not None
        return self._ends[self._culprit]
