"""The promises of a queue, one test each; a backend subclasses the classes and gives `make_queue`.

    class TestMyQueue(QueueContract):
        @pytest.fixture
        def make_queue(self, clock: ManualClock) -> MakeQueue:
            return lambda **options: MyQueue(clock=clock, **options)

`SharedQueueContract` holds what a queue adds that several processes share: it pickles its items.
`PoolContract` holds what a pool of workers promises on it; it needs the functions `work` and `awork`.
`QueueMachine` draws histories and compares them with a model; `check_queue_machine` runs it.
"""

from fray.testing.queue_asyncio import AsyncPromises, GiveBackPromises
from fray.testing.queue_bounds import BoundPromises
from fray.testing.queue_delays import DelayPromises
from fray.testing.queue_events import EventPromises
from fray.testing.queue_fixtures import MakeQueue, ManualClock
from fray.testing.queue_leases import DeadLetterPromises, LeasePromises
from fray.testing.queue_machine import QueueMachine, check_queue_machine
from fray.testing.queue_options import KeyPromises, PriorityPromises, TogetherPromises
from fray.testing.queue_pools import PoolContract
from fray.testing.queue_replies import ReplyPromises
from fray.testing.queue_unreadable import UnreadablePromises
from fray.testing.queue_use import InputPromises, SharedQueueContract, WaitingPromises

__all__ = [
    "MakeQueue",
    "ManualClock",
    "PoolContract",
    "QueueContract",
    "QueueMachine",
    "SharedQueueContract",
    "UnreadablePromises",
    "check_queue_machine",
]


class QueueContract(
    LeasePromises,
    DeadLetterPromises,
    WaitingPromises,
    InputPromises,
    EventPromises,
    PriorityPromises,
    DelayPromises,
    KeyPromises,
    BoundPromises,
    TogetherPromises,
    ReplyPromises,
    AsyncPromises,
    GiveBackPromises,
):
    """What every queue promises."""
