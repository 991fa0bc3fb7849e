"""What a process has under way at one named actor: calls on their way there, results on their way back."""

import importlib
import os
import pickle
import threading
import time
import uuid
from collections import deque
from collections.abc import Hashable
from concurrent.futures import Future
from functools import partial
from typing import Any

from fray import ActorDiedError, FrayError
from fray.backend import BriefThreads, dumps, poll_delays, run_aside, unpack_exception
from fray.job import ObjectRef
from fray_iris._actor_host import ENDPOINT, MESSAGE_BYTES, SERVED
from fray_iris._connection import Iris, RefusedError
from fray_iris._states import ENDED_JOBS

_AT_ONCE = 100  # calls that are sent together
_PATIENCE = 1.0  # seconds that the actor's server keeps a question for results
_LONGEST = 30.0
_KNOWN_FOR = 2.0  # seconds after an answer in which the actor is taken for the one that gave it
_RENEWS_FOR = 5.0  # seconds, so that several fit into the time after which an actor ends by itself
_GONE = "its job has ended"
_TRIES = 5  # of a request that the actor's server answers with an error, or whose answer takes too long

_Permanent = (ImportError, RefusedError)

_settlers = BriefThreads(1000, "fray-iris-result")
_lock = threading.Lock()
_lines: dict[tuple[str, str, bool], "ActorLine"] = {}


class AnsweredError(FrayError):
    """An error that the actor's server answered a request with; no method's, which is a result."""


class ActorLine:
    """What this process has under way at one actor: calls in order, and results as they come.

    Args:
        iris: The controller.
        job: What Iris calls the actor's job.
        label: What messages call the actor.
    """

    def __init__(self, iris: Iris, job: str, label: str) -> None:
        self.iris, self.job, self.label = iris, job, label
        self._caller = _new_caller()
        self._queue: list[tuple[tuple[int, bytes], Future[Any]]] = []  # of calls, each with its lane there
        self._lanes: dict[Hashable, deque[tuple[Any, Future[Any]]]] = {}  # of callers that wait for arguments
        self._open: dict[int, Future[Any]] = {}
        self._settling: set[Future[Any]] = set()
        self._taken: list[int] = []
        self._sent = self._arrived = 0  # calls below these were sent, and may be at the actor
        self._dead: str | None = None
        self._incarnation: str | None = None
        self._answered_at = 0.0
        self._address: str | None = None
        self._wake = threading.Condition()
        self._started = False

    def call(
        self,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        context: Any,
        caller: Hashable = None,
    ) -> "Future[Any]":
        """Queue a call; behind a reference among its arguments only later calls of its caller wait.

        Args:
            caller: None for a caller whose calls have no references.
        """
        future: Future[Any] = Future()
        if any(isinstance(each, ObjectRef | Future) for each in (*args, *kwargs.values())):
            waiting: Any = (method, args, kwargs, context)
        else:
            waiting = _packed(self.label, method, args, kwargs)
        with self._wake:
            if self._dead is not None:
                future.set_exception(ActorDiedError(self.label, self._dead))
                return future
            alone = caller not in self._lanes
            if alone and isinstance(waiting, bytes):
                self._put(caller, waiting, future)
                return future
            self._lanes.setdefault(caller, deque()).append((waiting, future))
        if alone:
            run_aside(partial(self._resolve, caller), "fray-iris-arguments")
        return future

    def _put(self, caller: Hashable, call: bytes, future: "Future[Any]") -> None:
        self._queue.append(((hash(caller), call), future))
        self._start()
        self._wake.notify_all()

    def pending(self) -> "list[Future[Any]]":
        """Return the calls that have not ended."""
        with self._wake:
            unsent = [*self._queue, *(call for lane in self._lanes.values() for call in lane)]
            return [*(future for _, future in unsent), *self._open.values(), *self._settling]

    def die(self, reason: str) -> None:
        """Fail what is under way, and whatever comes."""
        with self._wake:
            self._dead = self._dead or reason
            left = [future for future in self.pending() if future not in self._settling]
            self._queue, self._lanes, self._open = [], {}, {}
            self._wake.notify_all()
        for future in left:
            if not future.done():
                future.set_exception(ActorDiedError(self.label, self._dead))

    def renew(self) -> None:
        """Let the actor know that the program that made it lives."""
        try:
            self._ask("renew", address=self._resolved(wait=False), timeout=_RENEWS_FOR)
        except Exception:  # noqa: BLE001 - it is not up yet, or gone: its callers find out
            self._address = None  # where it was; it may have been started again

    # --- on the way there ---

    def _start(self) -> None:
        if not self._started:
            self._started = True
            for act in (self._send, self._collect):
                threading.Thread(target=act, name="fray-iris-actor", daemon=True).start()

    def _resolve(self, caller: Hashable) -> None:
        """Queue the calls of one caller in order, each when its arguments are there, until none is left."""
        call: Any
        left = True
        while left:
            with self._wake:
                if self._dead is not None:
                    return
                call, future = self._lanes[caller][0]
            failure = None
            try:
                call = call if isinstance(call, bytes) else self._resolved_call(*call)
            except BaseException as error:  # noqa: BLE001 - a failed argument fails its call alone
                failure = error
            with self._wake:
                if self._dead is not None:
                    return
                self._lanes[caller].popleft()
                if failure is None:
                    self._put(caller, call, future)
                left = bool(self._lanes[caller])
                if not left:
                    del self._lanes[caller]
            if failure is not None:
                future.set_exception(failure)

    def _send(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._queue or self._dead is not None)
                if self._dead is not None:
                    return
                calls, size = [self._queue[0][0]], len(self._queue[0][0][1])
                for more, _ in self._queue[1:_AT_ONCE]:
                    if (size := size + len(more[1])) > MESSAGE_BYTES:
                        break
                    calls.append(more)
                first = self._sent
                for number in range(first, first + len(calls)):
                    self._open[number] = self._queue.pop(0)[1]
                self._sent += len(calls)
                self._wake.notify_all()
                caller = self._caller
            self._deliver(caller, first, calls)

    def _resolved_call(self, method: str, args: Any, kwargs: Any, context: Any) -> bytes:
        def value(each: Any) -> Any:
            return each.result() if isinstance(each, Future) else context.get(each)

        resolved = tuple(map(value, args)), {name: value(each) for name, each in kwargs.items()}
        return _packed(self.label, method, *resolved)

    def _deliver(self, caller: str, first: int, calls: list[tuple[int, bytes]]) -> None:
        """Send calls to one incarnation of the actor alone: one that took them may die with its answer.

        Another that answers has run none of them. So they are sent to it, unless the first may have them.
        """
        late, doubtful, incarnation = 0, False, None
        for failed, pause in enumerate(poll_delays(shortest=0.05, longest=1.0), 1):
            if self._dead is not None or self._caller != caller:
                return
            try:
                incarnation = incarnation or self._present()
                took = self._ask("submit", caller, first, calls, incarnation, timeout=_time_for(late))
            except Exception as error:  # noqa: BLE001 - whether it is gone is asked of Iris
                doubtful = incarnation is not None
                late = late + 1 if _is_late(error) else 0
                if not self._goes_on(error, failed, late):
                    return
                time.sleep(pause)
                continue
            arrived = doubtful or took == incarnation
            if arrived:
                self._note_arrival(first, first + len(calls), incarnation)
            if took != incarnation:
                self._adopt(took)
            if arrived:
                return
            incarnation = None

    def _present(self) -> str:
        """Return the incarnation to send to; one that has not answered for a while is asked first.

        It may be gone from its address: this request may be repeated then, and calls may not.
        """
        if self._incarnation is None or time.monotonic() - self._answered_at > _KNOWN_FOR:
            self._adopt(self._ask("identify"))
        assert self._incarnation is not None
        return self._incarnation

    def _note_arrival(self, first: int, until: int, incarnation: str | None) -> None:
        """Note that calls are, or may be, at an incarnation; they have died with it if there is a new one."""
        with self._wake:
            self._arrived = until
            died = [] if incarnation == self._incarnation else self._taken_out(range(first, until))
        self._fail_restarted(died)

    def _adopt(self, incarnation: str) -> None:
        """Send to this incarnation from now on, and fail what an earlier one may have had."""
        with self._wake:
            before, self._incarnation = self._incarnation, incarnation
            died = [] if before == incarnation else self._taken_out(range(self._arrived))
        self._fail_restarted(died)

    def _taken_out(self, numbers: range) -> "list[Future[Any]]":
        return [self._open.pop(number) for number in list(self._open) if number in numbers]

    def _fail_restarted(self, died: "list[Future[Any]]") -> None:
        for future in died:
            future.set_exception(ActorDiedError(self.label, "its process died, and it was started again"))

    # --- on the way back ---

    def _collect(self) -> None:
        failed = late = 0
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._open or self._taken or self._dead is not None)
                if self._dead is not None:
                    return
                patience = _PATIENCE if self._open else 0.0  # else it says what was taken, and no more
                taken, self._taken = self._taken, []
                caller, known = self._caller, self._incarnation
            began = time.monotonic()
            try:
                seconds = _time_for(late)
                incarnation, results = self._ask("results", caller, taken, patience, timeout=seconds)
            except Exception as error:  # noqa: BLE001 - whether it is gone is asked of Iris
                failed, late = failed + 1, late + 1 if _is_late(error) else 0
                if not self._goes_on(error, failed, late):
                    failed = late = 0
                time.sleep(0.2)
                continue
            failed = late = 0
            if known is not None and incarnation not in (known, self._incarnation):
                self._adopt(incarnation)
            for number, worked, data in results:
                self._take(number, worked, data)
            if not results and time.monotonic() - began < patience / 2:
                time.sleep(0.05)  # too many wait there

    def _take(self, number: int, worked: bool, data: bytes) -> None:
        """Have a call settled, in a thread that serves no other: what reads its result may take long."""
        with self._wake:
            self._taken.append(number)
            future = self._open.pop(number, None)
            if future is None:
                return
            self._settling.add(future)
        _settlers.submit(partial(self._settle, future, worked, data))

    def _settle(self, future: "Future[Any]", worked: bool, data: bytes) -> None:
        try:
            value = pickle.loads(data)
            failure = None if worked else unpack_exception(value)
        except BaseException as error:  # noqa: BLE001 - its reader has to know
            failure = error
        if isinstance(failure, ActorDiedError):
            failure = ActorDiedError(self.label, failure.reason)
        with self._wake:
            self._settling.discard(future)
        if failure is None:
            future.set_result(value)
        else:
            future.set_exception(failure)

    def _goes_on(self, error: Exception, failed: int, late: int) -> bool:
        """Whether a request that failed is to be sent again; where that is of no use, calls fail.

        Args:
            failed: How often it has failed by now.
            late: How often its answer did not come in time, since something else was wrong with it.
        """
        self._address = None
        if late >= _TRIES:
            self._fail(FrayError(_too_late(self.label)))
            return False
        if isinstance(error, AnsweredError) and failed >= _TRIES:
            self._fail(error)
            return False
        try:
            if isinstance(error, _Permanent):
                raise error
            return self._lives()
        except _Permanent as permanent:
            self._fail(permanent)
            return False

    def _fail(self, error: Exception) -> None:
        """Fail the calls on their way; later ones are those of a new caller, from whom none is missing."""
        with self._wake:
            left, self._open = list(self._open.values()), {}
            self._caller, self._taken = _new_caller(), []
        for future in left:
            future.set_exception(error)

    def _ask(self, method: str, *args: Any, address: str | None = None, timeout: float = _LONGEST) -> Any:
        address = address or self._resolved()  # which says what is missing where there is no Iris
        connect = importlib.import_module("iris.rpc.actor_connect")
        actor_pb2 = importlib.import_module("iris.rpc.actor_pb2")
        client = connect.ActorServiceClientSync(
            address=address, timeout_ms=int(timeout * 1000), accept_compression=[]
        )
        answer = client.call(
            actor_pb2.ActorCall(actor_name=SERVED, method_name=method, serialized_args=pickle.dumps(args))
        )
        if answer.HasField("error"):
            raise AnsweredError(f"{self.label}: {answer.error.error_type}: {answer.error.message}")
        self._answered_at = time.monotonic()
        return pickle.loads(answer.serialized_value)

    def _resolved(self, *, wait: bool = True) -> str:
        for pause in poll_delays(shortest=0.05, longest=0.5):
            if self._address is not None:
                return self._address
            # One that renews many actors (`wait` is False) waits long for none.
            for endpoint in self.iris.endpoints(f"{self.job}/{ENDPOINT}", exact=True, patient=wait):
                self._address = str(endpoint["address"])
                return self._address
            if not wait or not self._lives():
                break
            time.sleep(pause)
        raise ActorDiedError(self.label, self._dead or "it has no address")

    def _lives(self) -> bool:
        """Whether the actor's job runs; where it does not, all calls fail."""
        try:
            answer = self.iris.status(self.job)
        except _Permanent:
            raise
        except Exception:  # noqa: BLE001 - a controller that is away for a while ends no actor
            return True
        if answer is not None and answer[0].get("state") not in ENDED_JOBS:
            return True
        error = "" if answer is None else answer[0].get("error", "")
        self.die(f"{_GONE}: {error}" if error else _GONE)
        return False


def _is_late(error: BaseException) -> bool:
    """Whether an answer did not come in time: as Iris's client says it, or the system."""
    code = getattr(error, "code", None)
    return isinstance(error, TimeoutError) or getattr(code, "name", "") == "DEADLINE_EXCEEDED"


def _time_for(late: int) -> float:
    """Return the seconds of a request; from the second late answer on each try has twice as many.

    Not from the first: after each try Iris is asked whether the actor's worker is lost.
    """
    return _LONGEST * (1 << max(0, min(late, _TRIES - 1) - 1))


def _too_late(label: str) -> str:
    return (
        f"{label} did not answer in {_TRIES} tries, of which the last took {_time_for(_TRIES):g} s: a result "
        "or an argument is too large for the network, or a method keeps the actor's process from answering"
    )


def _new_caller() -> str:
    return f"{os.getpid()}-{uuid.uuid4().hex[:12]}"


def _packed(label: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    return dumps((method, args, kwargs), f"an argument of {label}.{method}()")


def line_of(iris: Iris, job: str, label: str, *, streams: bool = False) -> ActorLine:
    """Return this process's line to an actor.

    Args:
        streams: Its second line, for the items of streams: they are not to wait for a call before them, which
            may wait for one of them.
    """
    with _lock:
        key = iris.controller, job, streams
        if key not in _lines:
            _lines[key] = ActorLine(iris, job, label)
        return _lines[key]


def end_lines(iris: Iris, job: str, reason: str) -> None:
    """Fail what this process has under way at an actor, and whatever comes."""
    for streams in (False, True):
        line = _lines.get((iris.controller, job, streams))
        if line is not None:
            line.die(reason)


def forget_lines() -> None:
    """In a forked child: the lines are its parent's."""
    global _lines, _lock
    _lines, _lock = {}, threading.Lock()


os.register_at_fork(after_in_child=forget_lines)
