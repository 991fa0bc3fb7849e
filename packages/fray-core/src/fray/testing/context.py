"""The promises of a job context, one test each; a backend subclasses the contract and gives `spec`.

    class TestMyContext(ContextContract):
        @pytest.fixture
        def spec(self) -> str:
            return "mine"

The tests open `create_context(spec)` and use nothing but the public interface. What a context does
differently from the rest (it runs inline, it copies arguments) it declares in its `capabilities`.
Functions that travel are importable, from `fray.testing.tasks`, or closures.
"""

import pytest

_PARTS = (
    "async",
    "fixtures",
    "tasks",
    "waiting",
    "streams",
    "actors",
    "calls",
    "sharing",
    "ending",
    "programs",
    "events",
    "async_actors",
    "reentrancy",
    "death",
    "options",
    "program_end",
)
pytest.register_assert_rewrite(*(f"fray.testing.context_{part}" for part in _PARTS))

from fray.testing.context_actors import ActorContract  # noqa: E402
from fray.testing.context_async import AsyncContract, ExecutorContract, ManyItemsContract  # noqa: E402
from fray.testing.context_async_actors import AsyncActorContract  # noqa: E402
from fray.testing.context_calls import ActorCallContract  # noqa: E402
from fray.testing.context_death import DeathContract  # noqa: E402
from fray.testing.context_ending import CancelContract, ShutdownContract  # noqa: E402
from fray.testing.context_events import EventsContract  # noqa: E402
from fray.testing.context_fixtures import ContextFixtures  # noqa: E402
from fray.testing.context_options import OptionsContract  # noqa: E402
from fray.testing.context_program_end import ProgramEndContract  # noqa: E402
from fray.testing.context_programs import ProgramContract  # noqa: E402
from fray.testing.context_reentrancy import ReentrancyContract  # noqa: E402
from fray.testing.context_sharing import SerializationContract, SharingContract  # noqa: E402
from fray.testing.context_streams import StreamContract  # noqa: E402
from fray.testing.context_tasks import ErrorContract, NestingContract, ReferenceContract  # noqa: E402
from fray.testing.context_waiting import MapContract, WaitContract  # noqa: E402

__all__ = [
    "ActorCallContract",
    "ActorContract",
    "AsyncActorContract",
    "AsyncContract",
    "CancelContract",
    "ContextContract",
    "ContextFixtures",
    "DeathContract",
    "ErrorContract",
    "EventsContract",
    "ExecutorContract",
    "ManyItemsContract",
    "MapContract",
    "NestingContract",
    "OptionsContract",
    "ProgramContract",
    "ProgramEndContract",
    "ReentrancyContract",
    "ReferenceContract",
    "SerializationContract",
    "SharingContract",
    "ShutdownContract",
    "StreamContract",
    "WaitContract",
]


class ContextContract(
    ReferenceContract,
    ErrorContract,
    WaitContract,
    MapContract,
    NestingContract,
    StreamContract,
    ActorContract,
    ActorCallContract,
    SharingContract,
    CancelContract,
    ShutdownContract,
    SerializationContract,
    ExecutorContract,
    AsyncContract,
    ManyItemsContract,
    ProgramContract,
    AsyncActorContract,
    ReentrancyContract,
    DeathContract,
    ProgramEndContract,
    EventsContract,
    OptionsContract,
):
    """All areas of the contract; a backend may also take the areas one by one."""
