"""The job of a named actor: an actor server of Iris, found by an endpoint, in front of one actor.

Iris's actor server calls methods on threads of its own, in any order. So callers number their calls, and this
keeps the order of each of them; the actor itself is one of Fray's, in threads, so that `max_concurrency`,
async methods and the exceptions of methods are what they are anywhere.
"""

import importlib
import json
import os
import pickle
import sys
import threading
import time
import traceback
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn

from fray import ActorDiedError, FrayError, create_context
from fray.backend import BriefThreads, dumps, pack_exception
from fray.job import ActorOptions, ObjectStream
from fray_iris._connection import Iris
from fray_iris._ids import IrisTask
from fray_iris._states import ENDED_JOBS

ENDPOINT = "fray-actor"
"""The last part of the name of an actor's endpoint."""
NEXT, CLOSE = "fray-next", "fray-close"
"""What a caller says for a method to have the next item of a stream, and to have no more of them."""
SERVED = "fray"  # what Iris's server calls the one thing that it serves here
_OWNER_EVERY = 2.0  # seconds between two looks at the job that made the actor
OWNER_SILENT = 60.0
"""Seconds after which a program that made the actor, and is not a job, is taken for dead."""
_GIVEN_UP = 600.0  # seconds after which a caller that does not take its results has died
_ANSWERED_WITHIN = 10.0
"""Seconds that callers of an actor that could not be made have to find out why."""
MESSAGE_BYTES = 8 << 20
"""Bytes of calls, or of results, that one message has; one that is larger has a message of its own."""
_POLLERS = 16  # of the 32 threads of Iris's server, those that may wait for results
_READERS = 1000  # threads that unpickle calls, each those of one caller


class Owner:
    """For whom an actor lives: for a job, for a program that says that it lives, or, detached, for nobody.

    Args:
        job: What Iris calls the job.
        program: Whether it is a program outside of jobs.
    """

    def __init__(self, job: str | None = None, program: bool = False) -> None:
        self.job, self.program = job, program


class Caller:
    """The calls of one process: those that came too early, and the results that it has not taken.

    A process sends the calls of several callers: each has a lane, in which one call is begun after the other.
    """

    def __init__(self) -> None:
        self.next: int | None = None  # what it sends first says it
        self.early: dict[int, tuple[int, bytes]] = {}
        self.lanes: dict[int, deque[tuple[int, bytes]]] = {}
        self.results: dict[int, tuple[bool, bytes]] = {}
        self.running = 0
        self.seen_at = time.monotonic()


class ServedActor:
    """What Iris's actor server serves: calls in, results out."""

    def __init__(self, make: Callable[[], Any], context: Any, label: str) -> None:
        self.incarnation = uuid.uuid4().hex
        self.renewed_at = time.monotonic()
        self._context, self._label = context, label
        self._handle = make()
        self._callers: dict[str, Caller] = {}
        self._streams: dict[str, ObjectStream[Any]] = {}
        self._changed = threading.Condition()
        self._polling = 0
        self._readers = BriefThreads(_READERS, "fray-iris-calls")

    def submit(self, caller: str, first: int, calls: list[tuple[int, bytes]], incarnation: str | None) -> str:
        """Take calls, in order; a second time they change nothing. Returns which incarnation took them.

        Args:
            calls: Each with its lane. They are unpickled later: the thread that is here serves all callers.
        """
        if incarnation not in (None, self.incarnation):
            return self.incarnation
        with self._changed:
            known = self._known(caller)
            known.next = first if known.next is None else known.next
            known.early |= {number: call for number, call in enumerate(calls, first) if number >= known.next}
            idle = []
            while known.next in known.early:
                lane, call = known.early.pop(known.next)
                if lane not in known.lanes:
                    idle.append(lane)
                known.lanes.setdefault(lane, deque()).append((known.next, call))
                known.running += 1
                known.next += 1
        for lane in idle:
            self._readers.submit(partial(self._begin_all, known, lane))
        return self.incarnation

    def _begin_all(self, caller: Caller, key: int) -> None:
        """Begin the calls of a lane, in order, until none is left."""
        lane = caller.lanes[key]
        while lane:
            self._begin(caller, *lane[0])
            with self._changed:
                lane.popleft()
                if not lane:
                    del caller.lanes[key]
                    return

    def results(
        self, caller: str, taken: list[int], patience: float
    ) -> tuple[str, list[tuple[int, bool, bytes]]]:
        """Return what calls have given that were not taken yet, after a while nothing.

        Of many bytes it is a part: the rest follows when that is taken.
        """
        with self._changed:
            known = self._known(caller)
            for number in taken:
                known.results.pop(number, None)
            if self._polling < _POLLERS:
                self._polling += 1
                self._changed.wait_for(lambda: known.results, timeout=patience)
                self._polling -= 1
            return self.incarnation, _first_of(known.results)

    def forget_silent(self, silent: float = OWNER_SILENT, given_up: float = _GIVEN_UP) -> None:
        """Forget callers that were silent for so many seconds, and have taken all their results.

        Args:
            given_up: Seconds after which the results of others are dropped; one that returns gets an error.
        """
        lost = _packed(FrayError(f"{self._label}: the result was dropped, its caller did not take it"))
        with self._changed:
            for name, known in list(self._callers.items()):
                quiet = time.monotonic() - known.seen_at
                if known.running or quiet < silent:
                    continue
                if not known.results and not known.early:
                    del self._callers[name]
                elif quiet >= given_up:
                    known.results = dict.fromkeys(known.results, (False, lost))

    def _known(self, name: str) -> Caller:
        known = self._callers.setdefault(name, Caller())
        known.seen_at = time.monotonic()
        return known

    @property
    def dead(self) -> bool:
        """Whether the actor could not be made."""
        return bool(self._handle._endpoint.actor.dead)

    def why_dead(self) -> BaseException:
        """Return what a call raises of an actor that is dead."""
        actor = self._handle._endpoint.actor
        error: BaseException = actor._death.load()
        return error

    def identify(self) -> str:
        """Return the incarnation that answers here."""
        return self.incarnation

    def renew(self) -> str:
        """Note that the program that made the actor lives; no other caller sends this."""
        self.renewed_at = time.monotonic()
        return self.incarnation

    def _begin(self, caller: Caller, number: int, call: bytes) -> None:
        def end(worked: bool, data: bytes) -> None:
            with self._changed:
                caller.running -= 1
                caller.results[number] = worked, data
                self._changed.notify_all()

        try:
            method, args, kwargs = pickle.loads(call)
            if method in (NEXT, CLOSE):  # each stream is read by one consumer, and waits on one thread
                asked = (lambda: self._of_stream(method, *args)), method, end
                threading.Thread(target=self._answer, args=asked, daemon=True).start()
                return
            ref = getattr(self._handle, method)(*args, **kwargs)  # in order, here
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            end(False, _packed(error))
            return

        def answer(_: object = None) -> None:
            self._answer(lambda: self._value(ref), method, end)

        if isinstance(ref, ObjectStream):
            answer()
        else:  # on the actor's own thread: a call that waits there has none here
            self._context._future(ref).add_done_callback(answer)

    def _answer(self, find: Callable[[], Any], method: str, end: Callable[[bool, bytes], None]) -> None:
        try:
            data = dumps(find(), f"the result of {self._label}.{method}()")
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            end(False, _packed(error))
        else:
            end(True, data)

    def _value(self, ref: Any) -> Any:
        """Return the result of a call; of a generator method the key of its stream."""
        if not isinstance(ref, ObjectStream):
            return self._context.get(ref)
        key = uuid.uuid4().hex
        self._streams[key] = ref
        return key

    def _of_stream(self, what: str, key: str) -> tuple[Any, ...] | None:
        """Return the next item of a stream, in a tuple; None at its end, and where it is closed."""
        if what == CLOSE:
            stream = self._streams.pop(key, None)
            if stream is not None:
                self._context.cancel(stream)
            return None
        if key not in self._streams:
            raise ActorDiedError(self._label, "its process died, and it was started again")
        for item in self._streams[key]:
            return (self._context.get(item),)
        return None


def _first_of(results: Mapping[int, tuple[bool, bytes]]) -> list[tuple[int, bool, bytes]]:
    """Return as many results as one answer has, and at least one if there is any."""
    found: list[tuple[int, bool, bytes]] = []
    size = 0
    for number, (worked, data) in results.items():
        size += len(data)
        if found and size > MESSAGE_BYTES:
            break
        found.append((number, worked, data))
    return found


def _packed(error: BaseException) -> bytes:
    return pickle.dumps(pack_exception(error))


def serve_actor(
    made: bytes, options: ActorOptions, label: str, namespace: str, job_context: str
) -> ServedActor:
    """Make an actor in threads of this process, for an actor server.

    Args:
        namespace: Whose named actors its methods find.
        job_context: The spec of the context that the actor's job has.
    """
    context = create_context(job_context, tasks="threadpool", namespace=namespace)
    cls, args, kwargs = pickle.loads(made)
    own = ActorOptions(max_concurrency=options.max_concurrency)
    return ServedActor(lambda: context.create_actor(cls, *args, options=own, **kwargs), context, label)


def host_actor(
    made: bytes,
    options: ActorOptions,
    label: str,
    methods: Mapping[str, bool],
    owner: Owner,
    namespace: str,
) -> None:
    """Be the job of an actor: serve it until it is killed, or nobody is left whom it is for."""
    host = serve_actor(made, options, label, namespace, os.environ.get("FRAY_JOB_CONTEXT", "iris"))
    everywhere = "0.0.0.0"  # noqa: S104 - as Iris's own actors
    server = importlib.import_module("iris.actor.server").ActorServer(host=everywhere)
    server.register(SERVED, host)
    port = server.serve_background()
    task = IrisTask.parse(os.environ["IRIS_TASK_ID"])
    iris = Iris(os.environ["IRIS_CONTROLLER_ADDRESS"])
    address = os.environ.get("FRAY_HOST_ADDRESS") or "127.0.0.1"
    iris.register(
        {
            "name": f"{task.job}/{ENDPOINT}",
            "address": f"http://{address}:{port}",
            "task_id": task.name,
            "attempt_id": task.attempt or 0,
            "metadata": {"label": label, "methods": json.dumps(dict(methods))},
        }
    )
    while _is_wanted(iris, host, owner):
        if host.dead:
            _fail(host)
        host.forget_silent()
        time.sleep(_OWNER_EVERY)
    os._exit(0)  # nobody is there to wait for what it still does


def _fail(host: ServedActor) -> NoReturn:
    """End as a job that failed, so that its name is free, or it is started again."""
    time.sleep(_ANSWERED_WITHIN)
    traceback.print_exception(host.why_dead())
    sys.stderr.flush()
    os._exit(1)


def _is_wanted(iris: Iris, host: ServedActor, owner: Owner) -> bool:
    if owner.program:
        return time.monotonic() - host.renewed_at < OWNER_SILENT
    if owner.job is None:
        return True
    try:
        answer = iris.status(owner.job)
    except Exception:  # noqa: BLE001 - a controller that is away for a while ends no actor
        return True
    return answer is not None and answer[0].get("state") not in ENDED_JOBS
