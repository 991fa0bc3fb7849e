"""One process's side of a session: what all parts of a context over a remote engine stand on.

The program that made a context and every worker that runs one of its calls have a context each, over the
same engine: a session. What crosses between them are keys, records of actors and bytes.
"""

import itertools
import os
import pickle
import random
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent import futures
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple, Self
from uuid import uuid4
from weakref import WeakKeyDictionary, WeakSet

from fray._contexts.remote.names import ActorNames, ActorRecord
from fray._contexts.remote.threads import Fresh, SerialThread
from fray._contexts.remote.values import StoredKey
from fray._contexts.runner_context import TaskRunnerContext
from fray._contracts.remote_engine import Key, RemoteEngine
from fray._contracts.task_runner import TaskRunner
from fray._engine.calls import dispatch
from fray._engine.refs import EngineRef
from fray._values.delays import poll_until
from fray._values.errors import TaskCancelledError, WorkerDiedError

CANCELLED = "cancelled"
"""The claimant of a call that is to run nowhere."""
PATIENCE = 10.0
"""Seconds that a worker gets to answer at once; one that is frozen does not block the others."""
WORKERS_COME_WITHIN = 60.0
"""Seconds in which an engine without a worker gets one: a machine starts, or a dead worker is replaced."""


class Session(NamedTuple):
    """What the workers have to know of a context."""

    name: str
    namespace: str
    packed: bytes
    """The class of the context, these two and the engine, for a worker."""

    @classmethod
    def make(cls, kind: type, remote: RemoteEngine, namespace: str) -> "Session":
        """Return a new one."""
        name = uuid4().hex[:16]
        return cls(name, namespace, pickle.dumps((kind, name, namespace, remote)))


class SessionContext(TaskRunnerContext):
    """The engine, the keys of references and what they hold, and requests to workers.

    Args:
        remote: The engine; this context closes it.
        runner: Hands calls to the engine.
        session: Of a context in a worker; None for a program's own.
    """

    def __init__(
        self,
        remote: RemoteEngine,
        runner: TaskRunner,
        *,
        max_retries: int | None = None,
        namespace: str | None = None,
        session: Session | None = None,
    ) -> None:
        self.remote = remote
        family = namespace or os.environ.get("FRAY_JOB_FAMILY") or "default"
        self._session, self._namespace = session, family if session is None else session.namespace
        self.is_root = session is None
        self.ended = False
        self.holder = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
        self.names = ActorNames(remote, self._namespace, self._lives)
        self.callbacks = Fresh("fray-callback")
        self._settler = SerialThread("fray-engine")
        self._numbers = itertools.count(1)
        self.made_keys = 0
        self.kept: dict[str, list[Any]] = {}  # what results name, by the worker that returned it
        self.submitted: WeakSet[EngineRef[Any]] = WeakSet()  # the engine will settle their keys, or has
        self._keys: WeakKeyDictionary[EngineRef[Any], Key] = WeakKeyDictionary()
        self._held: WeakSet[StoredKey] = WeakSet()
        self._published: WeakKeyDictionary[EngineRef[Any], StoredKey] = WeakKeyDictionary()
        self._unheld: list[Future[bytes]] = []
        self._placed: Counter[str] = Counter()
        super().__init__(runner, max_retries=max_retries)

    @classmethod
    def in_worker(cls, remote: RemoteEngine, session: Session) -> Self:
        """Return a worker's own context of a session, whatever else `__init__` of the class takes."""
        raise NotImplementedError

    @property
    def session(self) -> Session:
        """What the workers have to know of this context; made at its first use, with the engine's address."""
        if self._session is None:
            made = Session.make(type(self), self.remote, self._namespace)
            self._session = self._session or made
        return self._session

    def end_session(self, *, wait: bool) -> None:
        """Let every worker forget the session, and release the engine; once."""
        raise NotImplementedError

    # How things are called elsewhere, and what they become here: see `Traveller`.

    def describe(self, thing: Any) -> Any:
        """Return what makes a thing's counterpart elsewhere; None for what cannot travel."""
        raise NotImplementedError

    def arrive(self, description: Any) -> Any:
        """Return the counterpart here of what was described elsewhere."""
        raise NotImplementedError

    # Keys.

    def key_of(self, ref: EngineRef[Any]) -> Key:
        """Return what the engine calls a reference's value, chosen now where that has no name yet."""
        key = self._keys.get(ref)
        return self._keys.setdefault(ref, self.new_key()) if key is None else key

    def new_key(self) -> Key:
        """Return a key that is nobody's."""
        self.made_keys = number = next(self._numbers)
        return f"fray-{self.session.name}-{self.holder}-{number}"

    def hold(self, key: Key) -> StoredKey:
        """Return what holds a key in the engine for as long as it lives."""
        held = StoredKey(self, key, self.release)
        self._held.add(held)
        return held

    def keep(self, ref: EngineRef[Any], held: StoredKey) -> None:
        """Hold a key as long as a reference lives, which others may be handed, whatever its value becomes."""
        self._published[ref] = held

    def is_kept(self, ref: EngineRef[Any]) -> bool:
        """Whether the engine has the reference's outcome under its key, or will."""
        return ref in self._published

    def release(self, key: Key) -> None:
        """Release a key; a finalizer calls this."""
        if not self.ended:
            self.remote.release([key])

    def fetch(self, key: Key) -> bytes:
        """Return the value of a key.

        Raises:
            WorkerDiedError: It was lost.
        """
        return bytes(self.fetch_all([key])[0])

    def fetch_all(self, keys: Sequence[Key]) -> Sequence[bytes]:
        """Return the values of keys.

        Raises:
            WorkerDiedError: One was lost.
        """
        try:
            return self.remote.fetch(keys)
        except Exception as error:
            raise WorkerDiedError(
                f"a value was lost with the worker that kept it, and its task does not run again: {error}"
            ) from error

    def fetch_ahead(self, wanted: set[StoredKey]) -> list[StoredKey]:
        """Let the engine move many values at once; `load` raises for each that was lost."""
        missing = [held for held in wanted if held.data is None]
        if len(missing) < 2:
            return []
        try:
            values = self.remote.fetch([held.key for held in missing])
        except Exception:  # noqa: BLE001 - reading the lost one raises
            return []
        for held, value in zip(missing, values, strict=True):
            held.data = bytes(value)
        return missing

    def cancel_submitted(self, call: Any) -> bool:
        """Claim a call that waits in the engine, so that no worker runs it; False where one does."""
        held = call.state
        if call.over or not isinstance(held, StoredKey) or not hasattr(self.remote, "claim"):
            return False
        if self.remote.claim(held.key, CANCELLED):
            return False
        dispatch(call.fail(TaskCancelledError(f"{call.label} was cancelled before it started")))
        return True

    # Requests to workers.

    def post(self, act: Callable[..., object], *arguments: Any) -> None:
        """Run an act on this context's thread: callbacks of the engine leave its own at once."""
        self._settler.run(partial(act, *arguments))

    def ask(self, worker: str, act: str, *arguments: Any, session: bytes | None = None) -> "Future[bytes]":
        """Send a request to a worker's side of this session, or of the one that is given."""
        request = pickle.dumps((session or self.session.packed, act, arguments))
        answer: Future[bytes] = self.remote.ask(worker, request)  # type: ignore[attr-defined]
        return answer

    def tell(self, worker: str, act: str, *arguments: Any, session: bytes | None = None) -> None:
        """Send a request without waiting for its answer; from a finalizer too."""
        if not self.ended:
            self.post(lambda: self.ask(worker, act, *arguments, session=session))

    def ask_all(self, act: str, *arguments: Any, patience: float | None = None) -> Any:
        """Send a request to every worker; return answers by name, None for one that is gone or too slow."""
        asked = {worker: self.ask(worker, act, *arguments) for worker in self.remote.workers()}
        futures.wait(asked.values(), patience)
        return {worker: _answer(future) for worker, future in asked.items()}

    def choose_worker(self, without: str = "") -> str:
        """Return the worker on which this context has placed the fewest actors and streams.

        It waits for one where all are on their way, at first or after they died.

        Args:
            without: One that is known to be gone, whatever the engine says yet.

        Raises:
            WorkerDiedError: None came.
        """
        worker = poll_until(lambda: self._least_used(without), WORKERS_COME_WITHIN, longest=0.5)
        if worker is None:
            raise WorkerDiedError(
                f"the engine had no worker for {WORKERS_COME_WITHIN:.0f} s; see that its workers run"
            )
        self._placed[worker] += 1
        return worker

    def _least_used(self, without: str) -> str | None:
        known = [name for name in self.remote.workers() if name != without]
        random.shuffle(known)
        by_use = sorted(known, key=self._placed.__getitem__)
        # An engine notices a death a moment after it.
        return next((worker for worker in by_use if self._answers(worker)), None)

    def _answers(self, worker: str) -> bool:
        try:
            self.ask(worker, "ping").result(PATIENCE)
        except Exception:  # noqa: BLE001 - the engine's own error for a worker that is gone
            return False
        return True

    def _lives(self, record: ActorRecord) -> bool:
        """Return whether an actor lives, as its worker reports; False as well where its worker is gone."""
        try:
            answer = self.ask(record.worker, "actor_lives", record.actor, session=record.session)
            return bool(pickle.loads(answer.result()))
        except Exception:  # noqa: BLE001 - the engine's own error for a worker that is gone
            return False

    def await_later(self, answer: "Future[bytes]") -> None:
        """Wait for an answer before the call that runs now is over."""
        self._unheld.append(answer)

    def await_arrivals(self) -> None:
        """Make sure that actors whose handles arrived are kept, before their sender may release them."""
        answers, self._unheld = self._unheld, []
        for answer in answers:
            answer.exception()  # a worker that is gone has nothing to keep


def _answer(future: "Future[bytes]") -> Any:
    if not future.done() or future.exception() is not None:
        return None
    return pickle.loads(future.result())
