"""Counters of one queue, and what they were each second of the last two minutes."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from fray_queue._items import Taken

_KEPT = 120  # seconds


@dataclass
class Rates:
    """Counters since the server started, and samples of them: one for each second in which they changed.

    A queue in which nothing happens keeps one sample, so that ten thousand of them cost next to nothing.
    """

    pushed: int = 0
    popped: int = 0
    done: int = 0
    waited: float = 0.0  # seconds from pushes to leases, added up
    samples: deque[tuple[int, int, int, int]] = field(default_factory=deque)
    first: int = 0
    now: int = 0

    def take(self, taken: Sequence[Taken]) -> None:
        """Count leases that were given."""
        self.popped += len(taken)
        for each in taken:
            if each.pushed_at is not None:
                self.waited += max(0.0, each.leased_at - each.pushed_at)

    def sample(self, now: int, size: int) -> None:
        """Note the counters; called once a second, with the seconds that the server runs."""
        found = (self.pushed, self.done, size)
        if not self.samples:
            self.first = now
        if not self.samples or self.samples[-1][1:] != found:
            self.samples.append((now, *found))
        while len(self.samples) > 1 and self.samples[1][0] <= now - _KEPT + 1:
            self.samples.popleft()
        self.now = now

    def is_quiet(self, now: int) -> bool:
        """Return whether nothing went through for as long as samples are kept."""
        if not self.samples:
            return False
        last, pushed, done, _ = self.samples[-1]
        return last <= now - _KEPT and (pushed, done) == (self.pushed, self.done)

    def plots(self) -> dict[str, list[int]]:
        """Return items pushed and done in each second, and the size at its end."""
        each = self._each_second()
        pairs = list(pairwise(each))
        return {
            "pushed": [later[1] - earlier[1] for earlier, later in pairs],
            "done": [later[2] - earlier[2] for earlier, later in pairs],
            "size": [sample[3] for sample in each[1:]],
        }

    def _each_second(self) -> list[tuple[int, int, int, int]]:
        if not self.samples:
            return []
        samples, at = list(self.samples), 0
        found = []
        for second in range(max(self.first, self.now - _KEPT + 1), self.now + 1):
            while at + 1 < len(samples) and samples[at + 1][0] <= second:
                at += 1
            found.append(samples[at])
        return found
