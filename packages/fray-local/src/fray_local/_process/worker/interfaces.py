"""What connections and asynchronous actors know of the worker that they belong to."""

from collections import deque
from typing import Any, Protocol

from fray_local._process.protocol.held_frames import HeldFrames
from fray_local._process.protocol.values import Blob
from fray_local._process.worker.context import WorkerContext
from fray_local._process.worker.incoming_calls import IncomingCall


class CallRunner(Protocol):
    """Runs calls; see `Worker`."""

    context: WorkerContext | None
    calls: Any
    concurrency: int | None
    held_frames: HeldFrames | None
    early: deque[IncomingCall]

    def finish(self) -> None:
        """Stop after the calls that are there."""

    def note_started(self, call: IncomingCall) -> None:
        """Let the owner know that a call has started."""

    def add_credit(self, call: IncomingCall | None, items: int) -> None:
        """Let a stream send more items."""

    def cancel(self, call: IncomingCall) -> None:
        """Interrupt a call, or drop it."""

    def abandon(self, call: IncomingCall) -> None:
        """Drop a call whose caller is gone, unless it runs."""

    def wants_more(self, call: IncomingCall) -> bool:
        """Whether a stream may send an item."""

    def pack(self, call: IncomingCall, value: Any) -> Blob:
        """Pickle what a call gave."""

    def send_item(self, call: IncomingCall, blob: Blob) -> None:
        """Send an item of a stream."""

    def finish_call(self, call: IncomingCall, state: int, blob: Blob, seconds: float) -> None:
        """Send how a call ended."""

    def flush(self) -> None:
        """Send the results and refcount deltas that were held back."""
