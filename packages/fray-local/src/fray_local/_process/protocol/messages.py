"""Every message between an owner, its workers and its fork server.

A message is a `NamedTuple` that is sent as its place in `_TYPES` and a pickle of its fields: a few
microseconds less than a pickle that names its class. Descriptors of large values travel beside it,
in the order in which the fields mention them (see `protocol.values`).
"""

from typing import Any, NamedTuple

from fray import ActorOptions, TaskOptions

Key = Any
"""Names a reference, a stream or an actor of the owner; made of counters, never of an `id()`."""

Value = Any
"""A value as a message describes it: its pickle, or where its descriptor stands."""

Deltas = tuple[tuple[Key, int], ...]
"""What a worker holds once more, or once less, of what keys name."""

FunctionShipment = tuple[bytes, bytes | None, tuple[bytes, ...]]
"""A function's key, its pickle where the worker does not have it, and the keys that the worker drops."""


class SentFunction(NamedTuple):
    """A function that a worker sends along with a call."""

    key: bytes
    data: bytes
    keeps: tuple[Key, ...]


SentValue = tuple[Value, tuple[Key, ...]]
"""A value that a worker sends, and the keys of the references inside it."""


# From the owner to a worker.


class Call(NamedTuple):
    """Run a call.

    Args:
        slots: Arguments that were references: where each stands, and its value.
        method: None for a function; the method's name, or "" for the constructor, of an actor.
        credits: Items of a stream that may be sent; None for a call with one result.
    """

    number: int
    function: FunctionShipment | None
    payload: Value
    slots: list[tuple[int | str, Value]]
    method: str | None
    credits: int | None


class Reply(NamedTuple):
    """Answer a request: `values` where it requests some."""

    number: int
    error: Value | None
    answer: Any
    values: list[Value]


class Credit(NamedTuple):
    """Let a stream send more items."""

    number: int
    items: int


class Cancel(NamedTuple):
    """Interrupt a call, or drop it unstarted."""

    number: int


class ForgetSegment(NamedTuple):
    """Unmap a large value that nobody refers to any more."""

    key: int


class Revoke(NamedTuple):
    """Give back every call that has not started."""


class Exit(NamedTuple):
    """End after the calls that are there."""


class Die(NamedTuple):
    """End now; an actor that several processes share gets this from any of them."""


# From a worker to the owner.


class Done(NamedTuple):
    """A call has ended; a stream's end has no value."""

    number: int
    state: int
    value: Value
    keeps: tuple[Key, ...]
    deltas: Deltas
    wrote: bool
    seconds: float


class Item(NamedTuple):
    """A stream has yielded."""

    number: int
    value: Value
    keeps: tuple[Key, ...]
    deltas: Deltas
    wrote: bool


class Parked(NamedTuple):
    """A stream has sent what it may and has an item more: until it gets credits, its worker is free."""

    number: int


class Returned(NamedTuple):
    """These calls had not started, and will not start here."""

    numbers: list[int]


class Loaded(NamedTuple):
    """What the worker's tasks have imported since it last said so."""

    modules: list[str]


class Request(NamedTuple):
    """A request of a task to the owner, or an order that has no answer.

    Args:
        number: None where no answer is wanted. Where one is, the task's worker slot is free meanwhile,
            whichever thread asks: the task may wait for a thread of its own.
        thread: The worker's thread: calls of an actor keep their order by thread.
    """

    number: int | None
    thread: int
    deltas: Deltas
    operation: "Operation"
    values: list[SentValue]


# The kinds of requests.


class Nothing(NamedTuple):
    """Only the refcount deltas were worth a message."""


class Lend(NamedTuple):
    """The worker's task waits for something else: its slot is free."""


class Reclaim(NamedTuple):
    """It continues."""


class Withdraw(NamedTuple):
    """Nobody waits for the answer to a request any more."""

    number: int


class Put(NamedTuple):
    """Store a value under a key."""

    key: Key


class Promise(NamedTuple):
    """Let a key name a reference that a future of the worker will settle."""

    key: Key


class Settle(NamedTuple):
    """Settle a promised reference."""

    key: Key
    state: int


class Run(NamedTuple):
    """Start a task; `key` names its reference or stream."""

    key: Key
    function: SentFunction | None
    places: list[tuple[int | str, Key]]
    label: str
    options: TaskOptions
    streaming: bool


class CallActor(NamedTuple):
    """Call an actor's method; `key` names the reference or stream."""

    key: Key
    actor: Key
    method: str
    places: list[tuple[int | str, Key]]


class Get(NamedTuple):
    """Send the values of references, and True; `now`: at once, or False where one is not there."""

    keys: list[Key]
    now: bool


class Wait(NamedTuple):
    """Return which are ready, once so many are; `now`: at once."""

    keys: list[Key]
    needed: int
    now: bool


class Next(NamedTuple):
    """Send a stream's next item."""

    key: Key


class CancelRef(NamedTuple):
    """Cancel what a key names."""

    key: Key


class CreateActor(NamedTuple):
    """Make an actor, or find it by name.

    Args:
        key: Where nobody waits for the answer, what names the actor.
    """

    function: SentFunction | None
    places: list[tuple[int | str, Key]]
    label: str
    methods: dict[str, bool]
    options: ActorOptions
    asynchronous: bool
    key: Key


class GetActor(NamedTuple):
    """Find an actor by name."""

    name: str


class FindActor(NamedTuple):
    """Find the actor of a handle that came from another process."""

    address: tuple[str, str, str]


class Kill(NamedTuple):
    """End an actor."""

    key: Key


Operation = (
    Nothing
    | Lend
    | Reclaim
    | Withdraw
    | Put
    | Promise
    | Settle
    | Run
    | CallActor
    | Get
    | Wait
    | Next
    | CancelRef
    | CreateActor
    | GetActor
    | FindActor
    | Kill
)


# Between the owner and its fork server.


class WorkerSettings(NamedTuple):
    """What a worker is started with.

    Args:
        owner: The process, its id, the context's key and the name of the context's class.
        concurrency: Calls that an actor runs at a time; None where that was not said.
    """

    env: dict[str, str]
    path: list[str]
    cwd: str
    owner: tuple[str, int, Any, str]
    concurrency: int | None


class Fork(NamedTuple):
    """Make a worker, which takes the descriptors beside the message."""

    number: int
    settings: WorkerSettings


class StartDetached(NamedTuple):
    """Start the process of a detached actor, which takes the descriptors beside the message."""

    env: dict[str, str]
    path: list[str]
    log: str


class KillWorker(NamedTuple):
    """End a worker and everything that its tasks started."""

    number: int


class Preload(NamedTuple):
    """Import modules, so that later workers find them imported."""

    modules: list[str]


class Forked(NamedTuple):
    """A worker runs."""

    number: int
    pid: int


class ForkFailed(NamedTuple):
    """A worker could not be made."""

    number: int
    reason: str


class Exited(NamedTuple):
    """A worker has ended: an exit code, or a signal's number below zero."""

    number: int
    status: int


class Preloaded(NamedTuple):
    """Modules are imported; `fit`: they have left neither a thread nor an open file, so it may fork."""

    fit: bool


Message = (
    Call
    | Reply
    | Credit
    | Cancel
    | ForgetSegment
    | Revoke
    | Exit
    | Die
    | Done
    | Item
    | Parked
    | Returned
    | Loaded
    | Request
    | Fork
    | StartDetached
    | KillWorker
    | Preload
    | Forked
    | ForkFailed
    | Exited
    | Preloaded
)

_TYPES: tuple[Any, ...] = Message.__args__
_CODES = {kind: code for code, kind in enumerate(_TYPES)}


def code_of(message: Message) -> int:
    """Return the number that stands for a message's type."""
    return _CODES[type(message)]


def rebuilt(code: int, fields: tuple[Any, ...]) -> Message:
    """Return the message with the type of that number."""
    message: Message = _TYPES[code]._make(fields)
    return message
