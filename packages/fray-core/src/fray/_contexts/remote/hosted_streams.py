"""Generators that run in a worker process, and whose items are requested from elsewhere."""

import pickle
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

from fray._contexts.base import DEFAULT_TASK
from fray._contexts.remote.hosted_calls import HostedCalls, Reply
from fray._contexts.remote.values import failed_with
from fray._contracts.remote_engine import CallFailed, Key
from fray._engine.refs import ERROR, outcome
from fray._engine.streams import EngineStream
from fray._engine.waiting import watch_for
from fray._values.errors import TaskCancelledError


class HostedStreams:
    """The streams of one session in this process, by name."""

    def __init__(self, calls: HostedCalls) -> None:
        self._calls = calls
        self._streams: dict[str, EngineStream[Any]] = {}

    def open(
        self,
        reply: Reply,
        name: str,
        label: str,
        data: bytes,
        slots: Sequence[bytes | None],
        keys: Sequence[Key],
    ) -> None:
        """Start a generator; the answer says that its arguments are here, or why they cannot be."""
        try:
            fn, args, kwargs = self._calls.arguments(data, slots, keys)
            self._streams[name] = self._calls.local._submit(fn, args, kwargs, DEFAULT_TASK)
        except BaseException as error:  # noqa: BLE001 - what it could not unpickle is the caller's
            reply.set_result(pickle.dumps(failed_with(error)))
            return
        self._calls.context.await_arrivals()
        reply.set_result(pickle.dumps(label))

    def keep(self, stream: EngineStream[Any]) -> str:
        """Return the name of a stream that a method of an actor returned."""
        name = uuid4().hex
        self._streams[name] = stream
        return name

    def next_items(self, reply: Reply, name: str, most: int) -> None:
        """Answer when an item is there, with all that are, and whether the stream has ended and how."""
        stream = self._streams.get(name)
        if stream is None:
            cancelled = failed_with(TaskCancelledError("the stream was closed"))
            reply.set_result(pickle.dumps(([], True, cancelled)))
            return
        stream.call.ask()

        def collect() -> None:
            _answer_with(reply, lambda: self._collected(name, stream, most))

        watch_for([stream.call], 1, lambda: self._calls.context.callbacks.run(collect))

    def _collected(self, name: str, stream: EngineStream[Any], most: int) -> Any:
        items: list[bytes] = []
        failure: CallFailed | None = None
        while len(items) < most and failure is None and (item := stream.call.take()) is not None:
            try:
                items.append(self._calls.packed(outcome(item), f"an item of {stream.call.label}", name))
            except BaseException as error:  # noqa: BLE001 - the generator's own, or an item that cannot travel
                failure = failed_with(error)
                if item.state != ERROR:
                    self._calls.local.cancel(stream)
        ended = failure is not None or (stream.call.ended and not stream.call.buffered)
        if ended:
            self._streams.pop(name, None)
        return items, ended, failure

    def close(self, reply: Reply, name: str) -> None:
        """Close a generator whose items nobody wants."""
        stream = self._streams.pop(name, None)
        if stream is not None:
            self._calls.local.cancel(stream)
        reply.set_result(pickle.dumps(stream is not None))

    def clear(self) -> None:
        """Forget all."""
        self._streams.clear()


def _answer_with(reply: Reply, act: Callable[[], Any]) -> None:
    """Answer with what an act returns, or raise there what it raises."""
    try:
        reply.set_result(pickle.dumps(act()))
    except BaseException as error:  # noqa: BLE001 - it is raised in the caller that waits for the answer
        reply.set_exception(error)
