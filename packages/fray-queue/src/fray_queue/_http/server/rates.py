"""Counters of one queue, and what they were each second of the last two minutes."""

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

_KEPT = 120


@dataclass
class Rates:
    """Counters since the server started, and samples of them."""

    pushed: int = 0
    popped: int = 0
    done: int = 0
    samples: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def sample(self, size: int) -> None:
        """Note the counters; called once a second."""
        self.samples.append((self.pushed, self.done, size))

    def plots(self) -> dict[str, list[int]]:
        """Return items pushed and done in each second, and the size at its end."""
        samples = list(self.samples)
        pairs = list(pairwise(samples))
        return {
            "pushed": [later[0] - earlier[0] for earlier, later in pairs],
            "done": [later[1] - earlier[1] for earlier, later in pairs],
            "size": [sample[2] for sample in samples[1:]],
        }
