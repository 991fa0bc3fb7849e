"""What the owner remembers of a call that runs in another process, and how such a call fails."""

from collections.abc import Sequence
from typing import Any

from fray import WorkerDiedError
from fray.backend import EngineRef, StoredError, dispatch, outcome, unpack_exception
from fray_local._process.owner.resources import Needs
from fray_local._process.protocol.serialization import SerializedFunction, pack
from fray_local._process.protocol.values import Blob, Budget


class CallState:
    """In the `state` of an engine's call.

    Args:
        function: None for a method.
        order: Counts up with the arrival of calls: older ones run first.
    """

    __slots__ = ("function", "needs", "number", "order", "worker")

    def __init__(self, function: SerializedFunction | None, needs: Needs, order: int) -> None:
        self.function, self.needs, self.order = function, needs, order
        self.worker: Any = None  # the WorkerConnection which it was given to
        self.number = 0  # under which that knows it

    @property
    def seconds(self) -> float | None:
        """How long a call of the function takes, once that is known."""
        return None if self.function is None else self.function.seconds


class PackedError(StoredError):
    """An exception as a worker sent it; its reader unpickles it.

    Args:
        keeps: The references inside it, which must live as long as it does.
    """

    __slots__ = ("_cancelled", "_keeps", "data")

    def __init__(self, data: bytes, *, keeps: Sequence[Any] = (), cancelled: bool = False) -> None:
        self.data, self._keeps, self._cancelled = data, keeps, cancelled

    @property
    def cancelled(self) -> bool:
        return self._cancelled

    def load(self) -> BaseException:
        """Return the exception, or a TaskError where its class cannot be loaded here."""
        return unpack_exception(self.data)


def blob_of(ref: EngineRef[Any], budget: Budget) -> Blob:
    """Return a reference's value in its travelling form, and keep it so."""
    if type(ref.content) is not Blob:
        ref.content = pack(outcome(ref), "the result of a future", budget)
    blob: Blob = ref.content
    return blob


def packs_values(call: Any, budget: Budget) -> bool:
    """Pack what futures of this process have given to a call; False where that has failed it."""
    try:
        for ref in call.refs:
            blob_of(ref, budget)
    except Exception as error:  # noqa: BLE001 - a value that cannot travel
        dispatch(call.fail(error))
        return False
    return True


def died(call: Any, pid: int, how: str) -> WorkerDiedError:
    """Return the error of a call whose worker died, or never ran: then it has no process id."""
    worker = f"the worker process {pid} that ran" if pid else "a worker process for"
    return WorkerDiedError(f"{worker} {call.label} {how}")
