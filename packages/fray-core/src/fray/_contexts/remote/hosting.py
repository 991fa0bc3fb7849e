"""A session's actors and streams in one worker process: their requests.

Each request comes on a thread of its own, with a future for its answer. What is answered is pickled; what
a user made travels in it packed.
"""

import pickle
import threading
from typing import Any

from fray._contexts.remote.ending import EndingContext
from fray._contexts.remote.hosted_actors import HostedActor
from fray._contexts.remote.hosted_calls import HostedCalls, Reply
from fray._contexts.remote.hosted_streams import HostedStreams
from fray._contexts.remote.names import ActorRecord


class SessionHost:
    """What runs a session's actors and streams in this process; public methods answer requests."""

    def __init__(self, context: EndingContext) -> None:
        self.context = context
        self._calls = HostedCalls(context)
        self._streams = HostedStreams(self._calls)
        self.open_stream, self.next_items = self._streams.open, self._streams.next_items
        self.close_stream = self._streams.close
        self._actors: dict[str, HostedActor] = {}
        self._lock = threading.Lock()

    def _actor(self, actor: str) -> "HostedActor":
        """Return an actor, also one whose construction is still on its way."""
        with self._lock:
            return self._actors.setdefault(actor, HostedActor(self._calls, self._streams))

    def construct(self, reply: Reply, record: ActorRecord, *call: Any) -> None:
        """Make an actor."""
        *arguments, holder = call
        self._actor(record.actor).construct(reply, record, arguments, holder)

    def call(self, reply: Reply, actor: str, place: tuple[str, int, int], *call: Any) -> None:
        """Call a method, in its caller's order."""
        self._actor(actor).arrived(reply, place, call)

    def hold_actor(self, reply: Reply, actor: str, holder: str) -> None:
        """Keep an actor for one more program."""
        self._actor(actor).hold(holder)
        reply.set_result(pickle.dumps(None))

    def drop_actor(self, reply: Reply, actor: str, holder: str) -> None:
        """Keep an actor for one program less; one without a name ends after the last."""
        self._actor(actor).drop(holder)
        reply.set_result(pickle.dumps(None))

    def kill_actor(self, reply: Reply, actor: str, reason: str) -> None:
        """End an actor."""
        detached = self._actor(actor).end(reason)
        reply.set_result(pickle.dumps(None))
        if detached:  # its session was its own
            self.context.ask_all("end_session")

    def actor_lives(self, reply: Reply, actor: str) -> None:
        """Answer whether an actor lives, or is on its way."""
        reply.set_result(pickle.dumps(self._actor(actor).dead is None))

    # The end.

    def drain(self, reply: Reply, cancel: bool) -> None:
        """Answer when what this process submitted is done, with how much that was."""
        reply.set_result(pickle.dumps(self.context.count_drained(cancel)))

    def close(self) -> None:
        """End everything of the session in this process."""
        for actor in list(self._actors.values()):
            actor.end("its context was shut down")
        self._streams.clear()
        self._calls.abort()
        self.context.end_in_worker()
