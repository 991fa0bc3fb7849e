"""What a pool does, in one event loop: fetch items, have them worked on, settle them, keep their leases.

    queue ──fetch──> ready ──dispatch──> runner ──finished──> settler ──> queue
                       ^                    │
                       └──── rest, retry ───┘          one heartbeat keeps every lease in between

Wherever the function is called, the pool is the same; it ends when it is stopped, and for no other reason.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from fray.backend import Heartbeat, QueueCapabilities, async_queue, describe
from fray.queue import Lease, Queue
from fray_queue._errors import TimeLimitError
from fray_queue._work.calls import Call, ItemResult, WorkItem
from fray_queue._work.faults import Faults
from fray_queue._work.options import WorkOptions, WorkSummary
from fray_queue._work.patience import GivenUpError, Patience
from fray_queue._work.prefetch import Prefetch
from fray_queue._work.reporting import Reporter
from fray_queue._work.runners import Runner
from fray_queue._work.settling import Ending, Settlement, Settler
from fray_queue._work.stopping import StopSignal, is_set
from fray_queue._work.vacancy import Vacancy

_log = logging.getLogger("fray.queue")
_LONGEST_WAIT = 20.0  # seconds of one waiting pop
_TICK = 0.05  # seconds between looks at the stop signal and at the time limits
_MOST_UNSETTLED = 5000  # items that are worked on and not settled, while the queue is slow or away
_LAST_TRIES = 2.0  # seconds after the grace period in which what is left is settled
_COUNTING: set[int] = set()  # ids of the summaries of pools at work
_ENDING: set["asyncio.Task[None]"] = set()  # of pools that were cancelled twice: nobody else holds them


class WorkerPool:
    """One pool at work.

    Args:
        stop: Ends the pool once it is set.
    """

    def __init__(
        self,
        queue: Queue[Any],
        runner: Runner,
        options: WorkOptions,
        summary: WorkSummary,
        stop: Sequence[StopSignal],
    ) -> None:
        self._runner, self._options, self._summary, self._stop = runner, options, summary, stop
        self._twin = async_queue(queue)
        self._lost: deque[str] = deque()  # ids of leases, from the heartbeat's thread
        self._heartbeat = Heartbeat(queue, options.lease_timeout, lost=self._lost.append)
        can_return = QueueCapabilities.of(type(queue))
        self._prefetch = Prefetch(options, allowed=can_return is not None and can_return.give_back)
        self._stopping, self._over, self._room = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._faults = Faults(self.stop, self._stopping.is_set)
        self.errors = self._faults.errors
        self._hurried = False
        self._ready: deque[WorkItem] = deque()
        self._resting: dict[WorkItem, asyncio.TimerHandle] = {}
        self._running: set[Call] = set()

    async def run(self) -> None:
        """Work until stopped, then give back what is left; `errors` has what ended it."""
        self._loop = asyncio.get_running_loop()
        if id(self._summary) in _COUNTING:
            raise ValueError("another pool counts in this summary now; each pool needs its own")
        self._linger: asyncio.TimerHandle | None = None
        self._patience = Patience(self._summary, self._over)
        self._settler = Settler(
            self._twin, self._patience, self._heartbeat, self._summary, settled=self._room.set
        )
        self._runner.start(self._options.concurrency, self._faults.in_callback(self._finished))
        self._begin_summary()
        fetching, watching, self._settling = (
            self._loop.create_task(self._faults.in_task(each))
            for each in (self._fetch(), self._watch(), self._settler.run())
        )
        reporter = Reporter(self._twin, self._summary)
        reporting = self._loop.create_task(reporter.run())
        grace = self._options.grace
        try:
            await self._stopping.wait()
        except asyncio.CancelledError:
            grace = 0.0
            raise
        finally:
            self._stopping.set()
            if self._loop.is_closed():  # with the pool in it: no item can be settled any more
                self._end_leases()
            else:
                reporting.cancel()
                ending = self._loop.create_task(self._wind_down(grace, fetching, watching))
                _ENDING.add(ending)
                ending.add_done_callback(_ENDING.discard)
                # A second cancellation ends this wait, and not what it waits for.
                await asyncio.shield(ending)
                reporter.tell()

    def _begin_summary(self) -> None:
        _COUNTING.add(id(self._summary))
        self._summary.ended_at = None
        self._summary.stuck = 0

    def stop(self) -> None:
        """Take nothing any more, and end."""
        self._stopping.set()
        self._room.set()

    def hurry(self) -> None:
        """Let the grace period be over; safe to call from any thread."""
        self._hurried = True

    # --- taking items ---

    async def _fetch(self) -> None:
        vacancy = Vacancy(self._twin, self._patience)
        while not self._stopping.is_set():
            self._room.clear()
            if (room := self._vacant()) <= 0:
                await self._room.wait()
                continue
            wait = 0.0 if self._options.stop_when_empty else _LONGEST_WAIT
            try:
                leases = await self._patience.ask(
                    self._twin.pop_many, room, self._options.lease_timeout, wait=wait
                )
                if leases:
                    self._arrived(leases)
                    vacancy.forget()
                elif self._options.stop_when_empty and await vacancy.looked(
                    self._summary.in_hand, self._room
                ):
                    self.stop()
            except GivenUpError:
                return

    def _vacant(self) -> int:
        """Return how many items to fetch now."""
        options = self._options
        if self._settler.backlog > _MOST_UNSETTLED:
            return 0
        slots = options.concurrency - self._summary.stuck
        free = max(0, options.concurrency - len(self._running))
        waiting = len(self._ready) + max(0, len(self._running) - options.concurrency)
        ahead = self._prefetch.ahead(slots)
        vacant = free * options.batch + ahead - waiting
        # One request for many: what is ahead is fetched when half of it is used up.
        return vacant if free > waiting or vacant > ahead // 2 else 0

    def _arrived(self, leases: list[Lease[Any]]) -> None:
        now = time.monotonic()
        self._summary.in_hand += len(leases)
        self._ready.extend(WorkItem(lease, now) for lease in leases)
        self._heartbeat.keep(leases)
        self._dispatch()

    # --- having them worked on ---

    def _dispatch(self) -> None:
        """Hand what is ready to the runner; a batch that is not full waits for `linger` seconds."""
        batch, running = self._options.batch, self._running
        most = self._options.concurrency
        if self._runner.ahead and batch == 1:
            most += self._prefetch.ahead(self._options.concurrency - self._summary.stuck)
        while self._ready and len(running) < most and not self._stopping.is_set():
            if len(self._ready) < batch and self._lingers():
                break
            entries = [self._ready.popleft() for _ in range(min(batch, len(self._ready)))]
            call = Call(entries)
            running.add(call)
            self._runner.submit(call)
        self._summary.running = min(len(running), self._options.concurrency)

    def _lingers(self) -> bool:
        left = self._ready[0].arrived + self._options.linger - time.monotonic()
        if left <= 0:
            return False
        if self._linger is None:
            self._linger = self._loop.call_later(left, self._faults.in_callback(self._lingered))
        return True

    def _lingered(self) -> None:
        self._linger = None
        self._dispatch()

    def _finished(self, call: Call) -> None:
        """Record a call that ended; called by the runner."""
        if self._lost:
            self._give_up_lost()
        self._running.discard(call)
        if call.started is not None:
            seconds = call.ended - call.started
            self._summary.seconds_in_work += seconds
            self._prefetch.learn(seconds)
        if call.overdue:
            self._summary.stuck -= 1
        if call.overdue and not call.interrupted:
            _log.info("a function that was beyond its time limit returned: its slot is free again")
        if call.fatal is not None:
            for entry in call.entries:
                self._settle(entry, Ending.RELEASED)
            self._faults.add(call.fatal)
        elif call.cancelled:
            for entry in call.entries:
                self._settle(entry, Ending.RELEASED)
        else:
            failed = []
            for entry, outcome in zip(call.entries, call.outcomes, strict=True):
                if outcome.error is not None and not entry.let_go:
                    failed.append((entry, outcome.error))
                self._conclude(entry, outcome)
            _log_failures(failed)
        self._room.set()
        self._dispatch()

    def _conclude(self, entry: WorkItem, outcome: ItemResult) -> None:
        if entry.let_go:
            return
        if outcome.error is None:
            self._settle(entry, Ending.DONE, outcome.value)
            return
        entry.calls += 1
        entry.error = outcome.error
        if entry.calls > self._options.retries or entry.lost or self._stopping.is_set():
            self._settle_unfinished(entry)
        else:
            delay = self._options.delay_after(entry.lease.attempt, entry.calls)
            self._resting[entry] = self._loop.call_later(delay, self._faults.in_callback(self._again), entry)

    def _again(self, entry: WorkItem) -> None:
        del self._resting[entry]
        self._ready.appendleft(entry)
        self._dispatch()

    def _settle_unfinished(self, entry: WorkItem) -> None:
        """Settle an item that no call works on: it failed, where a call did, else it was not begun."""
        if entry.error is None:
            self._settle(entry, Ending.RETURNED)
            return
        delay = self._options.delay_after(entry.lease.attempt, entry.calls)
        self._settle(entry, Ending.FAILED, error=entry.error, delay=delay)

    def _settle(
        self,
        entry: WorkItem,
        ending: Ending,
        value: Any = None,
        *,
        error: BaseException | None = None,
        delay: float = 0.0,
    ) -> None:
        if not entry.let_go:
            entry.let_go = True
            self._settler.add(Settlement(entry, ending, value, error, delay))

    # --- watching ---

    async def _watch(self) -> None:
        limit = self._options.time_limit
        tick = _TICK if limit is None else min(_TICK, limit / 4)
        while not self._stopping.is_set():
            await asyncio.sleep(tick)
            if any(is_set(each) for each in self._stop):
                self.stop()
            if limit is not None:
                self._enforce(limit)
            if self._lost:
                self._give_up_lost()
            if self._ready or len(self._running) > self._options.concurrency:
                self._return_unused()

    def _enforce(self, limit: float) -> None:
        now = time.monotonic()
        for call in list(self._running):
            if call.started is None or call.ended or now - call.started < limit:
                continue  # one that ended is only not collected yet
            if not call.overdue:
                call.overdue = True
                self._summary.stuck += 1
                self._let_go(call, limit)
            elif now - call.reported < 2 * (call.reported - call.started):
                continue  # logged ever less often
            call.reported = now
            call.interrupted = self._runner.interrupt(call)
            if call.interrupted:
                continue
            _log.warning(
                "a function has run for %.1f s, beyond its time limit of %g s: it occupies one of %d slots",
                now - call.started,
                limit,
                self._options.concurrency,
            )

    def _let_go(self, call: Call, limit: float) -> None:
        for entry in call.entries:
            entry.calls += 1
            _log.warning("item %s ran beyond its time limit of %g s", entry.lease.item_id, limit)
            error = TimeLimitError(f"the function ran for more than {limit:g} s")
            delay = self._options.delay_after(entry.lease.attempt, entry.calls)
            self._settle(entry, Ending.TIMED_OUT, error=error, delay=delay)

    def _give_up_lost(self) -> None:
        """Try nothing again whose lease is lost: another pool has the item, or will."""
        lost = {self._lost.popleft() for _ in range(len(self._lost))}
        for entry in (entry for call in self._running for entry in call.entries):
            entry.lost |= entry.lease.lease_id in lost
        for entry in (*self._ready, *self._resting):
            if entry.lease.lease_id in lost:
                if handle := self._resting.pop(entry, None):
                    handle.cancel()
                self._settle(entry, Ending.LOST)
        self._ready = deque(entry for entry in self._ready if not entry.let_go)
        self._room.set()

    def _return_unused(self) -> None:
        """Give back what was fetched ahead when no slot comes free for it: others may have one.

        What failed here and is to be tried again waits for a slot, as long as one may come free.
        """
        slots = self._options.concurrency
        if len(self._running) < slots or (
            self._summary.stuck < slots and not self._prefetch.is_stale(time.monotonic(), self._running)
        ):
            return
        self._withdraw()
        waits = self._summary.stuck < slots
        given_up = [entry for entry in self._ready if entry.error is None or not waits]
        self._ready = deque(entry for entry in self._ready if entry.error is not None and waits)
        for entry in given_up:
            self._settle_unfinished(entry)

    def _withdraw(self) -> None:
        for call in self._runner.withdraw():
            self._running.discard(call)
            self._ready.extend(call.entries)

    # --- ending ---

    async def _wind_down(self, grace: float, fetching: Any, watching: Any) -> None:
        try:
            await self._let_all_go(time.monotonic() + grace, fetching, watching)
        finally:  # also where the event loop ends first
            self._settling.cancel()
            self._end_leases()

    def _end_leases(self) -> None:
        """Extend no lease any more, and close the counts."""
        self._heartbeat.halt()
        self._summary.lost += self._summary.in_hand  # nobody knows what became of them
        self._summary.in_hand = self._summary.running = 0
        self._summary.ended_at = time.time()
        _COUNTING.discard(id(self._summary))

    async def _let_all_go(self, end: float, fetching: Any, watching: Any) -> None:
        """Take nothing more, let calls end until the time `end`, and settle everything in hand."""
        fetching.cancel()
        watching.cancel()
        await asyncio.wait([fetching, watching])
        if self._linger is not None:
            self._linger.cancel()
        self._withdraw()
        for handle in self._resting.values():
            handle.cancel()
        for entry in (*self._ready, *self._resting):
            self._settle_unfinished(entry)
        await self._finish_running(end)
        for call in self._running:
            for entry in call.entries:
                self._settle(entry, Ending.RELEASED)
            with self._faults.noted():
                self._runner.interrupt(call)
        self._runner.close()
        await self._settle_rest(max(0.0, end - time.monotonic()))

    async def _settle_rest(self, seconds: float) -> None:
        self._settler.finish()
        if self._settling.done() or self._settling.cancelling():
            # As `asyncio.run` cancels all tasks when its main one has ended.
            await asyncio.wait([self._settling])
            self._settling = self._loop.create_task(self._faults.in_task(self._settler.run()))
        await asyncio.wait([self._settling], timeout=seconds + _LAST_TRIES)
        self._over.set()
        await asyncio.wait([self._settling], timeout=_LAST_TRIES)

    async def _finish_running(self, end: float) -> None:
        """Wait for the calls under way; not for those that are beyond their time limit."""
        limit = self._options.time_limit
        while any(not call.overdue for call in self._running):
            self._room.clear()
            if limit is not None:
                with self._faults.noted():
                    self._enforce(limit)
            if self._hurried or (left := end - time.monotonic()) <= 0:
                return
            try:
                async with asyncio.timeout(min(left, _TICK)):
                    await self._room.wait()
            except TimeoutError:
                continue


def _log_failures(failed: Iterable[tuple[WorkItem, Exception]]) -> None:
    told: set[int] = set()  # errors: what failed a whole batch is one
    for entry, error in failed:
        traceback_of = None if id(error) in told else error
        _log.warning("item %s failed: %s", entry.lease.item_id, describe(error), exc_info=traceback_of)
        told.add(id(error))
