"""The members of a sweep as arrays of Slurm: what can be one array is one. Nothing here calls Slurm."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter

from fray import UnsupportedError
from fray.backend import SweepPlan

_OF_AN_ARRAY = ("job-name", "output")  # these it has of its own
_OWN = (*_OF_AN_ARRAY, "comment")  # of each member, without meaning for what it is granted
Options = Mapping[str, str | None]


@dataclass(frozen=True)
class Array:
    """Members that one call of sbatch submits.

    Args:
        members: Their positions, in order.
        base: The position of the task with the number 0.
        parallel: How many of its tasks may run at the same time; None for all.
    """

    members: tuple[int, ...]
    options: Options
    base: int
    parallel: int | None

    @property
    def option(self) -> str:
        """The value of `--array`: `0-99%10`."""
        tasks = _ranges([position - self.base for position in self.members])
        return f"{tasks}%{self.parallel}" if self.parallel else tasks

    def task(self, position: int) -> int:
        """Return the number of a member's task."""
        return position - self.base


def arrays_of(
    sweep: SweepPlan, options: Mapping[int, Options], positions: Sequence[int], largest: int
) -> list[Array]:
    """Return arrays for members that run after no other.

    Args:
        options: Those of each member; members with the same ones share an array.
        largest: The number of tasks, and the number of the last one, that Slurm takes.

    Raises:
        UnsupportedError: `max_parallel` cannot be kept, which Slurm does for one array at a time.
    """
    groups: dict[tuple[tuple[str, str | None], ...], list[int]] = {}
    for position in positions:
        key = tuple((name, value) for name, value in options[position].items() if name not in _OWN)
        groups.setdefault(key, []).append(position)
    chunks = [
        chunk for members in groups.values() for chunk in _chunks(members, largest)
    ]  # of positions that are near each other
    limit = sweep.max_parallel
    if limit is not None and limit < len(chunks):
        raise UnsupportedError(
            f"sweep {sweep.job_id} takes {len(chunks)} arrays on Slurm, as its members ask for different "
            f"things or are more than {largest}, and Slurm limits each array alone: max_parallel must be "
            f"{len(chunks)} or more, got {limit}"
        )
    found = []
    for number, chunk in enumerate(chunks):
        # What is left over of the limit goes to the first ones.
        share = None if limit is None else limit // len(chunks) + (number < limit % len(chunks))
        shown = {name: value for name, value in options[chunk[0]].items() if name not in _OWN}
        found.append(Array(tuple(chunk), shown, _base(chunk, largest), share))
    return found


def arrays_of_replicas(options: Options, replicas: Sequence[int], largest: int) -> list[Array]:
    """Return arrays for replicas of one job, which all have the same options; see `arrays_of`."""
    shown = {name: value for name, value in options.items() if name not in _OF_AN_ARRAY}
    return [Array(tuple(chunk), shown, _base(chunk, largest), None) for chunk in _chunks(replicas, largest)]


def in_order(sweep: SweepPlan) -> list[int]:
    """Return the members that run after others of the sweep, each behind those.

    Raises:
        UnsupportedError: `max_parallel` is given too: members of one array start in the order of numbers.
    """
    inside = {
        position: [each for each in after if isinstance(each, int)]
        for position, after in sweep.runs_after.items()
    }
    late = [
        position for position in TopologicalSorter(inside).static_order() if sweep.runs_after.get(position)
    ]
    if late and sweep.max_parallel is not None:
        raise UnsupportedError(
            f"sweep {sweep.job_id} has max_parallel={sweep.max_parallel} and members with after=: Slurm "
            "limits the tasks of an array, which cannot run after each other; launch two sweeps"
        )
    return late


def _base(chunk: Sequence[int], largest: int) -> int:
    return chunk[0] if chunk[-1] >= largest else 0


def _chunks(members: Sequence[int], largest: int) -> list[list[int]]:
    chunks: list[list[int]] = []
    for position in members:
        if not chunks or position - chunks[-1][0] >= largest:
            chunks.append([])
        chunks[-1].append(position)
    return chunks


def _ranges(numbers: Sequence[int]) -> str:
    """Write numbers as Slurm does: `0-3,7`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)
