"""The options of a pool, and its counts."""

import time
from dataclasses import dataclass, field

from fray.backend import check_count, check_seconds

_LONGEST_DELAY = 60.0  # seconds before an item that failed many times is tried again


@dataclass(frozen=True, kw_only=True)
class WorkOptions:
    """The options of `work` and `awork`, checked."""

    concurrency: int
    batch: int
    linger: float
    time_limit: float | None
    prefetch: int | None
    lease_timeout: float
    retries: int
    retry_delay: float
    stop_when_empty: bool
    grace: float

    def __post_init__(self) -> None:
        check_count("concurrency", self.concurrency, 1)
        check_count("batch", self.batch, 1)
        check_seconds("linger", self.linger, zero=True)
        if self.time_limit is not None:
            check_seconds("time_limit", self.time_limit)
        check_count("retries", self.retries)
        if self.prefetch is not None:
            check_count("prefetch", self.prefetch)
        check_seconds("lease_timeout", self.lease_timeout)
        check_seconds("retry_delay", self.retry_delay, zero=True)
        check_seconds("grace", self.grace, zero=True)

    def delay_after(self, attempt: int, calls: int) -> float:
        """Return the seconds that an item rests after so many calls under this lease, all of which failed."""
        failures = (attempt - 1) * (1 + self.retries) + calls
        doublings = min(failures - 1, 64)  # a float holds that; the bound comes long before
        return min(_LONGEST_DELAY, self.retry_delay * 2.0**doublings)


@dataclass
class WorkSummary:
    """What became of the items that a pool took and, while it works, what it does now.

    Attributes:
        done: Items that are finished.
        failed: Items that went back because the function raised, in its retries as well.
        lost: Items whose lease ended before the function did; another worker has them. Also those whose
            settlement failed without an answer, and whose lease the queue then refused: they may be done.
        released: Items that went back unfinished, because the grace period was over or the program ended.
        timed_out: Items that went back because the function ran beyond `time_limit`.
        returned: Items that were prefetched and went back untouched.
        attempts: The sum of the items' leases so far; equal to the number of items if none was delivered
            again.
        dated: Items whose time of push is known: all but those that an older release stored.
        in_hand: Items that the pool holds leases on now.
        running: Calls of the function now.
        stuck: Slots that functions beyond their `time_limit` occupy now.
        seconds_in_queue: The sum of the times from the push of each dated item to its lease here, delays and
            earlier leases included.
        seconds_in_work: The sum of the times that calls of the function took.
        seconds_in_hand: The sum of the times from the lease of each item to its settling.
        started_at: Seconds since the epoch.
        ended_at: Seconds since the epoch; None while the pool works.
        queue_failures: Calls to the queue that failed and were repeated.
    """

    done: int = 0
    failed: int = 0
    lost: int = 0
    released: int = 0
    timed_out: int = 0
    returned: int = 0
    attempts: int = 0
    dated: int = 0
    in_hand: int = 0
    running: int = 0
    stuck: int = 0
    seconds_in_queue: float = 0.0
    seconds_in_work: float = 0.0
    seconds_in_hand: float = 0.0
    started_at: float = field(default_factory=time.time)
    ended_at: float | None = None
    queue_failures: int = 0

    @property
    def settled(self) -> int:
        """Items that came to an end in this pool, whichever."""
        return self.done + self.failed + self.lost + self.released + self.timed_out

    @property
    def per_second(self) -> float:
        """Items that came to an end in a second, on average since the start."""
        end = time.time() if self.ended_at is None else self.ended_at
        return self.settled / max(1e-3, end - self.started_at)
