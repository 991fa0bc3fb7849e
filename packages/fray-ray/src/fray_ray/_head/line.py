"""Whose turn it is among gangs that wait for TPU slices: in the order of submission. Pure.

Every driver that waits knows the line and decides by the same rule, so that they agree. The first in the line
takes what there is and keeps it until it has all; who is behind has what is left over. A gang that asks for
more than the cluster has at all keeps nobody waiting: it asks when nobody else waits for the like.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Ticket:
    """The place of a gang in the line.

    Args:
        since: When its job was submitted, also of a gang that was preempted: it is not sent to the end.
        submission: What Ray calls its job.
        kind: What slices it can use: those that ask for the same have the same.
        choices: The acceptable numbers of slices.
        most: How many slices there are that it could use.
        held: How many it has now, and keeps until it has all.
    """

    since: float
    submission: str
    kind: str
    choices: tuple[int, ...]
    most: int
    held: int = 0


def turns(tickets: Iterable[Ticket], free: Mapping[str, int]) -> dict[str, int]:
    """Return for how many slices each gang may ask now; 0 for one whose turn has not come.

    Args:
        free: The slices of each kind that nobody has.
    """
    line = sorted(tickets)
    left = dict(free)
    for ticket in line:
        left[ticket.kind] = left.get(ticket.kind, 0) + ticket.held
    may = dict.fromkeys((ticket.submission for ticket in line), 0)
    for ticket in line:
        there, least = left[ticket.kind], min(ticket.choices)
        fitting = max((count for count in ticket.choices if count <= there), default=0)
        if fitting:
            may[ticket.submission] = fitting
            left[ticket.kind] -= fitting
        elif least <= ticket.most and there > 0:  # it takes what there is, and waits for the rest
            may[ticket.submission] = least
            left[ticket.kind] = 0
    asks = {ticket.kind for ticket in line if may[ticket.submission]}
    for ticket in line:
        if ticket.kind not in asks:  # an autoscaler sees what is asked for, and nobody else could use it
            may[ticket.submission] = min(ticket.choices)
            asks.add(ticket.kind)
    return may
