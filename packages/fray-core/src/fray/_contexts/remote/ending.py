"""The end of a session: what the workers still do is waited for, then each forgets it."""

import threading
from typing import Any

from fray._contexts.remote.session import PATIENCE, SessionContext
from fray._contracts.task_runner import CallKind
from fray._engine.calls import dispatch, inside
from fray._engine.refs import EngineRef
from fray._engine.waiting import await_one, blocking
from fray._values.threads import NoThreadError, start_thread


class _WorkersCalls:
    """Counted as under way while the workers still have calls of the session."""

    kind: CallKind = "task"
    streaming = over = False
    state = None
    label = "what the workers submitted"

    def cancel_unstarted(self, reason: BaseException) -> tuple[Any, ...]:
        """Do nothing: each worker cancels its own."""
        return ()


class EndingContext(SessionContext):
    """`shutdown`, and what has to be done for it on the workers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._over = threading.Event()
        self._finisher: threading.Thread | None = None
        self._starting_end = threading.Lock()
        self._end_asked = False
        self._unreachable: BaseException | None = None  # why the engine could not be asked at the end

    def shutdown(self, wait: bool = True, cancel_pending: bool = False) -> None:
        """End the context; see `JobContext.shutdown`. In a worker the program's own context ends it.

        Raises:
            Exception: What a primitive of the engine raised, which was gone: nothing is known of what its
                workers still do. The context has ended all the same.
        """
        if self.engine.scope.foreign or not self.is_root:
            return
        with self._starting_end:
            first, self._end_asked = not self._end_asked, True
        workers_calls = _WorkersCalls()
        if first:
            self.engine.scope.open.add(workers_calls)
            self._finisher = threading.Thread(
                target=self._finish, args=(workers_calls, cancel_pending), name="fray-ending", daemon=True
            )
        super().shutdown(wait=False, cancel_pending=cancel_pending)
        if cancel_pending:
            for call in self.engine.open_calls():
                if call.kind == "task" and not call.streaming:
                    self.cancel_submitted(call)
        if first and self._finisher is not None:
            try:
                start_thread(self._finisher)
            except NoThreadError:  # the program has ended
                self._finisher = None
                self._finish(workers_calls, cancel_pending)
        if wait and not inside(self.engine.scope):
            with blocking():
                self._over.wait()
            if self._finisher is not None and self._finisher is not threading.current_thread():
                self._finisher.join()
            gone, self._unreachable = self._unreachable, None
            if gone is not None:
                raise gone

    def _finish(self, workers_calls: Any, cancel: bool) -> None:
        """Wait for what was submitted, then end the session; also where the engine cannot be asked."""
        try:
            self._await_everywhere(workers_calls, cancel)
        except Exception as error:  # noqa: BLE001 - `shutdown` raises it
            self._unreachable = error
            self.engine.close(cancel_pending=True)
        try:
            self.engine.scope.leave(workers_calls)  # ends the actors
            self.end_session(wait=True)
        except Exception as error:  # noqa: BLE001 - the same
            self._unreachable = self._unreachable or error
        finally:
            self._over.set()

    def _await_everywhere(self, workers_calls: Any, cancel: bool) -> None:
        """Wait for what was submitted here, then for what the workers submitted, until nobody adds more."""
        scope = self.engine.scope
        seen = None
        while True:
            self._await_own(workers_calls)
            if not hasattr(self.remote, "ask"):
                break
            counts = self.ask_all("drain", cancel)
            if counts == seen and len(scope.open) <= 1:
                break
            seen = counts

    def _await_own(self, workers_calls: Any) -> None:
        scope = self.engine.scope
        while others := [call for call in list(scope.open) if call is not workers_calls]:
            for call in others:
                _await_call(call, scope)

    def count_drained(self, cancel: bool) -> int:
        """In a worker: wait for what was submitted here; return how much that was so far."""
        if cancel:
            self.engine.scope.cancelling = True
        scope = self.engine.scope
        while calls := list(scope.open):
            for call in calls:
                _await_call(call, scope)
        return self.made_keys

    def end_session(self, *, wait: bool) -> None:
        """Let every worker forget the session, and release the engine; once.

        Values of references that still live are fetched before: `get` of them still works.
        """
        if not wait or self.ended or not self.is_root:
            return
        live = [held for held in list(self._held) if held in self._readable()]
        self._keep_values(live)
        try:
            if hasattr(self.remote, "ask"):
                self.ask_all("end_session", patience=PATIENCE)
        finally:
            self.ended = True
            self._settler.close()
            self.remote.close()
            self._over.set()

    def end_in_worker(self) -> None:
        """Release everything that this process has of the session."""
        self._closed = True
        self.engine.close(cancel_pending=True)
        for actor in list(self.engine.actors):
            dispatch(actor.die("its context was shut down", kill=False))
        self._settler.close()
        self.ended = True
        self.remote.close()

    def _readable(self) -> set[Any]:
        return {ref.content for ref in list(self._keys) if ref.state}

    def _keep_values(self, live: list[Any]) -> None:
        if len(self.fetch_ahead(set(live))) > 1:
            return
        for held in live:
            try:
                held.data = self.fetch(held.key)
            except Exception:  # noqa: BLE001, S112 - it was lost: reading it raises
                continue


def _await_call(call: Any, scope: Any) -> None:
    if call.streaming:
        await_one(call, 0.05)  # it may be parked, and is then not under way
    elif not call.over:
        ref: EngineRef[Any] = call.ref
        await_one(ref)
    if call.over:
        scope.leave(call)
