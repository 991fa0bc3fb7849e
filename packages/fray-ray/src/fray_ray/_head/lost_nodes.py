"""Which nodes a job's replicas have lost, or are about to: Ray says so later than its replicas end."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from ray import exceptions as rx

from fray.backend import AttemptEnd
from fray.cluster import ExitReason
from fray_ray._head import nodes
from fray_ray._head.asides import aside
from fray_ray._head.record import JobRecord
from fray_ray._head.reservation import Reservation
from fray_ray._ray_internals.calls import actor_id
from fray_ray._ray_internals.deaths import death_of, is_death_without_cause

_LOOK = 0.5  # seconds between looks at a node that goes, and between calls of an actor that cannot be reached

_UNKNOWN = AttemptEnd(ExitReason.PREEMPTED, None)

T = TypeVar("T")


class ActorLostError(Exception):
    """The actor of a replica has ended, or cannot be reached any more.

    Any other error of a call is the scheduler's own: the head may be away for a moment.
    """

    def __init__(self, cause: Exception) -> None:
        super().__init__(cause)
        self.cause = cause


class LostNodes:
    """The nodes of one job's replicas."""

    def __init__(self, record: JobRecord, reservation: Reservation) -> None:
        self._record, self._reservation = record, reservation

    def actor(self, replica: int) -> Any:
        """Return the actor of a replica.

        Raises:
            ActorLostError: It has ended.
        """
        try:
            return self._reservation.actor(replica)
        except LookupError as error:
            raise ActorLostError(error) from error

    async def reach(self, replica: int, call: Callable[[], Awaitable[T]]) -> T:
        """Call a replica's actor until it answers; what is called may be called again.

        Where the connection breaks, the actor may run on. If it has ended, Ray says only later that it has,
        and why: memory that ran out, say.

        Raises:
            ActorLostError: It has ended, or its node is gone.
        """
        while True:
            try:
                return await call()
            except rx.ActorUnavailableError as error:
                known = self._record.actors.get(replica)
                if known is not None and await self.gone([known.node]):
                    raise ActorLostError(error) from error
            except Exception as error:
                cause = error
                if is_death_without_cause(error):
                    cause = await aside(death_of, actor_id(self.actor(replica)).hex())
                raise ActorLostError(cause) from error
            await asyncio.sleep(_LOOK)

    async def why_gone(self, replica: int, end: AttemptEnd) -> AttemptEnd:
        """Tell a machine that was taken away from all else that can end an attempt from outside."""
        known = self._record.actors.get(replica)
        node = "" if known is None else known.node
        if end.reason not in (ExitReason.LOST, ExitReason.COULD_NOT_START) or not node:
            return end
        return self.preempted(node) if node in await self.gone([node]) else end

    def preempted(self, node: str, end: AttemptEnd = _UNKNOWN) -> AttemptEnd:
        """Return the end of an attempt that was lost with its node; the job takes no other place there.

        Args:
            end: How its program ended, where that is known.
        """
        self._reservation.avoid({node})
        details = f": it lost its node {node}{end.details}"
        return end._replace(reason=ExitReason.PREEMPTED, how="was preempted", details=details)

    async def gone(self, candidates: list[str]) -> set[str]:
        """Return which of these nodes are gone; asks the nodes too."""
        return await aside(nodes.gone_of, candidates)

    def leaving(self) -> set[int]:
        """Return the replicas whose places are on nodes that go, or are gone and Ray does not know it yet.

        It asks Ray, for all replicas at once.
        """
        unfit = nodes.draining().keys() | self._reservation.look_at_avoided()
        return {replica for replica, node in self._reservation.nodes().items() if node in unfit}
