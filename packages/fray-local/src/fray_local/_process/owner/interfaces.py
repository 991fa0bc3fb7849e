"""What the parts of the owner know of those that they are parts of."""

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Protocol

from fray import TaskOptions
from fray.backend import Engine, PackedCall
from fray.job import ActorHandle
from fray_local._process.owner.actor_reservations import ActorReservation
from fray_local._process.owner.event_loop import EventLoop
from fray_local._process.owner.fork_server_client import ForkServers
from fray_local._process.owner.output_writer import OutputWriters
from fray_local._process.owner.resources import Resources
from fray_local._process.protocol.serialization import SerializedFunction
from fray_local._process.protocol.values import Budget


class OwnerContext(Protocol):
    """The context that a program uses; see `ProcessContext`."""

    engine: Engine
    pack: Callable[..., PackedCall]

    def cancel(self, ref: Any, /) -> bool:
        """Stop a task."""

    def get_actor(self, name: str, /) -> ActorHandle:
        """Return a handle to the actor of that name."""

    def endpoint_at(self, address: tuple[str, str, str]) -> Any:
        """Return the endpoint of an actor whose handle came from another process."""

    def kill(self, handle: Any, /) -> None:
        """End an actor and its process."""


class Requests(Protocol):
    """Answers workers; see `RequestHandler`."""

    budget: Budget
    owner: tuple[Any, ...]
    outputs: OutputWriters

    def is_ending(self) -> bool:
        """Whether the context takes nothing more from outside."""

    def handle(self, worker: Any, message: Any, descriptors: Any) -> None:
        """Handle the messages of a worker: perform its orders, answer its requests."""

    def withdraw_all(self, worker: Any) -> None:
        """The worker is gone: nobody wants its answers."""

    def break_promises(self, worker: Any, how: str) -> None:
        """The worker is gone: nobody settles what it promised."""


class Registry(Protocol):
    """Makes actors; see `ActorRegistry`."""

    def make(
        self,
        title: str,
        methods: Mapping[str, bool],
        packed: PackedCall,
        options: Any,
        *,
        asynchronous: bool,
        caller: Hashable = None,
    ) -> ActorHandle:
        """Start an actor."""

    def failed(self, title: str, methods: Mapping[str, bool], error: Exception) -> Any:
        """Return the endpoint of an actor that could not be made."""


class Reserving(Protocol):
    """Reserves for actors; see `Scheduler`."""

    def reserve(self, reservation: ActorReservation) -> None:
        """Have what an actor needs reserved for it, as soon as there is room."""

    def release(self, reservation: ActorReservation) -> None:
        """End a reservation, or its wait."""


class Runner(Protocol):
    """Starts processes and hands them calls; see `ProcessRunner`."""

    machine: Resources
    budget: Budget
    loop: EventLoop
    fork_servers: ForkServers
    outputs: OutputWriters

    @property
    def requests(self) -> Requests:
        """What answers its workers."""

    @property
    def scheduler(self) -> Reserving:
        """What reserves for its actors."""

    @property
    def registry(self) -> Registry:
        """What makes its actors."""

    def ensure_started(self) -> None:
        """Start the thread that reads, unless it runs."""

    def launch(
        self,
        packed: PackedCall,
        name: str | Callable[..., Any],
        options: TaskOptions,
        *,
        streaming: bool,
        caller: Hashable = None,
    ) -> Any:
        """Submit a call."""

    def close_when_dropped(self, stream: Any) -> None:
        """Let a generator be closed when nobody can read its items any more."""

    def known_function(self, function: SerializedFunction) -> SerializedFunction:
        """Return the one of a function that several workers sent."""

    def call_back(self, fn: Callable[[], object]) -> None:
        """Call user code away from the event loop's thread."""
