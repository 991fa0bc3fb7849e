"""What can be done to the queues of a store. Every call is part of a transaction that its caller opened.

The rules are those of the lease machine. Where a rule is cheaper in SQL it is there, and the queue's tests
compare the two. A call that refuses raises before it writes.
"""

import math
import secrets
from collections.abc import Callable, Iterable, Sequence

from fray import LeaseExpiredError
from fray.backend import PLAIN, LeaseState, PushOptions, lease_machine
from fray_queue._items import EncodedReply, Taken
from fray_queue._sqlite import dead, pushing, replies
from fray_queue._sqlite.connection import StoreFile
from fray_queue._sqlite.queue_table import QueueTable
from fray_queue._sqlite.rows import (
    STATE,
    QueueRow,
    dump_history,
    lease_id_of,
    seq_of,
    seq_of_lease,
    state_number,
    state_of,
)
from fray_queue._sqlite.schema import DEAD, HELD, RETURNED
from fray_queue._sqlite.takeable import takeable

DEADLINE = "ifnull(deadline, 9e999)"

_TOKENS = 64  # requested together


class QueueStore(QueueTable):
    """The queues of one store."""

    def __init__(self, file: StoreFile, *, shared: bool) -> None:
        super().__init__(file, shared=shared)
        self.on_reply: Callable[[str, str | None], None] | None = None
        self.synced = -1  # changes that are on the disk; `commits.sync` counts them
        self._tokens: list[str] = []

    def _token(self) -> str:
        """Return 64 random bits; those of many leases are read from the system together."""
        if not self._tokens:
            text = secrets.token_hex(8 * _TOKENS)
            self._tokens = [text[start : start + 16] for start in range(0, len(text), 16)]
        return self._tokens.pop()

    # --- what a worker does ---

    def push(
        self, queue: QueueRow, records: Sequence[tuple[str | None, bytes]], options: PushOptions = PLAIN
    ) -> list[str]:
        """Store payloads; their ids are given, or made, or those of the items that have their keys.

        Raises:
            NoRoomError: They are more than `max_size` leaves room for.
        """
        if queue.max_size is not None or options is not PLAIN:
            return pushing.push(self, queue, records, options)
        return self.append(queue, records)

    def append(self, queue: QueueRow, records: Iterable[tuple[str | None, bytes]]) -> list[str]:
        """Store plain items at the end of the line.

        Fresh items follow each other with nothing between: else the first would be found by a walk past all
        of that. So an item behind one with options goes to `leases`, too, as long as others are fresh.
        """
        at = self.file.clock.now() + self.file.clock.offset()
        if not queue.fresh:
            queue.cursor = queue.pushed
        fresh = queue.cursor + queue.fresh == queue.pushed
        base, seq, size = queue.base, queue.pushed, 0
        rows: list[tuple[int, str | None, float, bytes]] = []
        for item_id, payload in records:
            seq += 1
            size += len(payload)
            rows.append((base + seq, item_id, at, payload))
        self.file.connection.executemany("INSERT INTO items VALUES (?, ?, ?, ?)", rows)
        if fresh:
            queue.fresh += len(rows)
        else:
            self.file.connection.executemany(
                "INSERT INTO leases VALUES (?, ?, ?, 0, '', 0, 0, '', ?, 0, NULL, NULL, NULL, NULL)",
                [(row, queue.number, RETURNED, len(payload)) for row, _, _, payload in rows],
            )
            queue.returned += len(rows)
        queue.pushed, queue.bytes, queue.changed = seq, queue.bytes + size, True
        return [queue.item_id(seq_of(row), item_id) for row, item_id, _, _ in rows]

    def pop(
        self, queue: QueueRow, n: int, lease_timeout: float, *, most_bytes: int | None = None
    ) -> list[Taken]:
        """Lease up to `n` items in line; fewer when their payloads are `most_bytes` together."""
        now, offset = self.file.clock.now(), self.file.clock.offset()
        self.sweep(queue, now)
        taken: list[Taken] = []
        size = 0
        for row, item_id, payload, pushed_at, state, reply in takeable(self._execute, queue, n):
            seq = seq_of(row)
            lease_id = lease_id_of(seq, self._token())
            before = state or lease_machine.FRESH
            leased = lease_machine.lease(before, lease_id, lease_timeout, now, queue.max_attempts)
            if state is None:
                self._execute(
                    "INSERT INTO leases VALUES (?, ?, ?, ?, ?, ?, ?, '', ?, 0, NULL, NULL, NULL, NULL)",
                    (row, queue.number, HELD, 1, lease_id, now, leased.until, len(payload)),
                )
                queue.cursor = seq
                queue.fresh -= 1
            else:
                self._write(row, before, leased)
                queue.returned -= 1
            item_id = queue.item_id(seq, item_id)
            each = Taken(item_id, lease_id, now + offset, leased.until + offset, leased.attempt, payload, seq)
            each.reply, each.pushed_at = reply, pushed_at
            taken.append(each)
            size += len(payload)
            if most_bytes is not None and size >= most_bytes:
                break
        if taken:
            queue.count(HELD, len(taken))
            queue.earliest = min(queue.earliest, now + lease_timeout)
        return taken

    def done(
        self, queue: QueueRow, lease_ids: Iterable[str], answers: Sequence[EncodedReply | None] = ()
    ) -> list[str]:
        """Finish items by their leases, with their answers; return the leases that are not good."""
        now, refused = self.file.clock.now(), []
        most = queue.most_attempts
        for index, lease_id in enumerate(lease_ids):
            seq = seq_of_lease(lease_id)
            row = queue.base + (seq or 0)
            # What is over is so when its lease ran out: lease_machine.is_over, in SQL.
            gone = self._execute(
                "DELETE FROM leases WHERE id = ?1 AND lease_id = ?2 "
                f"AND NOT (until <= ?3 AND (attempt >= ?4 OR {DEADLINE} <= ?3)) "
                "RETURNING state, bytes, reply_ttl, askers",
                (row, lease_id, now, most),
            ).fetchall()
            if seq is None or not gone:
                refused.append(lease_id)
                continue
            self._execute("DELETE FROM items WHERE id = ?", (row,))
            ((state, size, reply_ttl, askers),) = gone
            queue.count(state, -1)
            queue.bytes -= size
            if reply_ttl is not None:
                answer = answers[index] if answers else None
                replies.put(self, queue, row, answer or ("value", b""), reply_ttl, askers)
        return refused

    def release(
        self,
        queue: QueueRow,
        lease_id: str,
        delay: float = 0.0,
        *,
        unreadable: str | None = None,
        error: str | None = None,
        failure: bytes | None = None,
    ) -> None:
        """Give an item back.

        Args:
            unreadable: Why its taker could not unpickle it: then it is set aside.
            error: What failed the attempt, for the history; `failure` is the same for the producer.

        Raises:
            LeaseExpiredError: The lease is not good.
        """
        now = self.file.clock.now()
        row, before, number = self._held(queue, lease_id, now)
        if unreadable is None:
            after = lease_machine.release(before, lease_id, delay, now, queue.max_attempts, error)
        else:
            after = lease_machine.set_aside(before, lease_id, unreadable, now, queue.max_attempts)
        self._write(row, before, after)
        queue.count(number, -1)
        queue.count(state_number(after), 1)
        if after.dead:
            self._mark_dead(queue, row, after, failure)
        elif after.until or after.deadline < math.inf:
            queue.earliest = min(queue.earliest, after.until or math.inf, after.deadline)

    def _mark_dead(self, queue: QueueRow, row: int, state: LeaseState, failure: bytes | None = None) -> None:
        """Answer the producer of an item that was given up, and drop dead letters that are too many."""
        if queue.special:
            ((reply_ttl, askers),) = self._execute(
                "SELECT reply_ttl, askers FROM leases WHERE id = ?", (row,)
            ).fetchall()
            if reply_ttl is not None:
                answer = ("expired" if state.expired else "dead", b"")
                if failure is not None:
                    answer = ("error", failure)
                replies.put(self, queue, row, answer, reply_ttl, askers)
        if queue.dead > queue.max_dead:
            dead.drop_first(self, queue, queue.dead - queue.max_dead)

    def give_back(self, queue: QueueRow, lease_ids: Iterable[str]) -> list[str]:
        """Give back items that were not worked on; return the leases that are not good."""
        now, refused = self.file.clock.now(), []
        for lease_id in lease_ids:
            try:
                row, before, number = self._held(queue, lease_id, now)
            except LeaseExpiredError:
                refused.append(lease_id)
                continue
            after = lease_machine.give_back(before, lease_id)
            self._write(row, before, after)
            queue.count(number, -1)
            queue.count(state_number(after), 1)
            queue.earliest = min(queue.earliest, after.deadline)
        return refused

    def extend_many(
        self, queue: QueueRow, lease_ids: Iterable[str], lease_timeout: float
    ) -> list[float | None]:
        """Make leases end `lease_timeout` seconds from now; return each one's end, None if it is not good."""
        ends: list[float | None] = []
        for lease_id in lease_ids:
            try:
                ends.append(self.extend(queue, lease_id, lease_timeout))
            except LeaseExpiredError:
                ends.append(None)
        return ends

    def extend(self, queue: QueueRow, lease_id: str, lease_timeout: float) -> float:
        """Make a lease end `lease_timeout` seconds from now; return that, in seconds since the epoch.

        Raises:
            LeaseExpiredError: The lease is not good.
        """
        now = self.file.clock.now()
        row, before, number = self._held(queue, lease_id, now)
        after = lease_machine.extend(before, lease_id, lease_timeout, now)
        self._write(row, before, after)
        queue.count(number, -1)
        queue.count(HELD, 1)
        queue.earliest = min(queue.earliest, after.until)
        return after.until + self.file.clock.offset()

    def held(self, queue: QueueRow, lease_id: str) -> Taken | None:
        """Return the item of a good lease."""
        seq = seq_of_lease(lease_id)
        found = self._execute(
            "SELECT item_id, leased_at, until, attempt, payload, pushed_at, reply_ttl, key "
            "FROM leases JOIN items USING (id) "
            "WHERE id = ? AND lease_id = ?",
            (queue.base + (seq or 0), lease_id),
        ).fetchall()
        if seq is None or not found:
            return None
        ((item_id, leased_at, until, attempt, payload, pushed_at, reply_ttl, key),) = found
        offset = self.file.clock.offset()
        item_id = queue.item_id(seq, item_id)
        taken = Taken(item_id, lease_id, leased_at + offset, until + offset, attempt, payload, seq)
        taken.reply, taken.pushed_at = reply_ttl is not None or key is not None, pushed_at
        return taken

    # --- what an operator does ---

    def requeue(self, queue: QueueRow, item_ids: Sequence[str] | None) -> int:
        """Put the dead (all, or those of these ids) back at their old places with a fresh count."""
        return dead.requeue(self, queue, item_ids)

    def purge(self, queue: QueueRow) -> int:
        """Remove every item that is not dead, leased ones too; return how many."""
        self.sweep(queue, self.file.clock.now())
        count, first, last = queue.live, queue.base, queue.base + queue.pushed
        self._execute(
            "DELETE FROM items WHERE id > ?1 AND id <= ?2 "
            f"AND id NOT IN (SELECT id FROM leases WHERE queue = ?3 AND state = {DEAD})",
            (first, last, queue.number),
        )
        self._execute(f"DELETE FROM leases WHERE id > ? AND id <= ? AND state <> {DEAD}", (first, last))
        queue.cursor, queue.fresh, queue.returned, queue.held = queue.pushed, 0, 0, 0
        queue.changed = True
        queue.bytes = self._execute(
            "SELECT (SELECT coalesce(sum(bytes), 0) FROM leases WHERE id > ?1 AND id <= ?2) + "
            "(SELECT coalesce(sum(length(payload)), 0) FROM replies WHERE id > ?1 AND id <= ?2)",
            (first, last),
        ).get
        self.note_reply(queue, None)
        return count

    def purge_dead(self, queue: QueueRow, item_ids: Sequence[str] | None) -> int:
        """Remove the dead (all, or those of these ids); return how many."""
        return dead.purge(self, queue, item_ids)

    def sweep(self, queue: QueueRow, now: float) -> None:
        """Have what ran out wait again, and give up what is over: last leases, and items past their time."""
        if now < queue.earliest or not (queue.held or queue.special):
            return
        over = self._execute(
            f"SELECT id, {STATE} FROM leases WHERE queue = ? AND state = {HELD} AND until <= ?",
            (queue.number, now),
        ).fetchall()
        for row, *columns in over:
            self._end(queue, row, HELD, state_of(*columns), now)
        if queue.special:
            late = self._execute(
                f"SELECT id, {STATE} FROM leases WHERE queue = ? AND state = {RETURNED} AND deadline <= ?",
                (queue.number, now),
            ).fetchall()
            for row, *columns in late:
                self._end(queue, row, RETURNED, state_of(*columns), now)
        if not self._shared:
            change = self.next_change(queue)
            queue.earliest = math.inf if change is None else change

    def _end(self, queue: QueueRow, row: int, number: int, before: LeaseState, now: float) -> None:
        """Settle an item whose lease, delay or time is over."""
        after = lease_machine.expire(before, now, queue.max_attempts)
        if after.dead:
            self._write(row, before, after)
        else:
            self._execute(f"UPDATE leases SET state = {RETURNED} WHERE id = ?", (row,))
        queue.count(number, -1)
        queue.count(DEAD if after.dead else RETURNED, 1)
        if after.dead:
            self._mark_dead(queue, row, after)

    def next_change(self, queue: QueueRow) -> float | None:
        """Return when something may become takeable, or be given up, by itself."""
        until: float | None = self._execute(
            f"SELECT min(until) FROM leases WHERE queue = ? AND state = {HELD}", (queue.number,)
        ).get
        if not queue.special:
            return until
        deadline: float | None = self._execute(
            f"SELECT min(deadline) FROM leases WHERE queue = ? AND state = {RETURNED} AND deadline > 0",
            (queue.number,),
        ).get
        return min((time for time in (until, deadline) if time is not None), default=None)

    def note_reply(self, queue: QueueRow, row: int | None) -> None:
        """Note that an item was answered, or items were removed: the calls that wait for answers may look."""
        if self.on_reply is not None:
            self.on_reply(queue.name, None if row is None else queue.item_id(seq_of(row), None))

    # --- rows ---

    def _held(self, queue: QueueRow, lease_id: str, now: float) -> tuple[int, LeaseState, int]:
        """Return the row of a good lease's item, its state, and the state's number."""
        seq = seq_of_lease(lease_id)
        row = queue.base + (seq or 0)
        found = self._execute(f"SELECT state, {STATE} FROM leases WHERE id = ?", (row,)).fetchall()
        if seq is None or not found:
            raise LeaseExpiredError(lease_id)
        number, *columns = found[0]
        state = state_of(*columns)
        lease_machine.check_held(state, lease_id)
        if lease_machine.is_over(state, now, queue.max_attempts):
            raise LeaseExpiredError(lease_id)
        return row, state, number

    def _write(self, row: int, before: LeaseState, after: LeaseState) -> None:
        history = dump_history(after.history, len(before.history), self.file.clock.offset())
        deadline = after.deadline if after.deadline < math.inf else None
        self._execute(
            "UPDATE leases SET state = ?1, attempt = ?2, lease_id = ?3, leased_at = ?4, until = ?5, "
            f"history = ?6, deadline = ?7, key = CASE WHEN ?1 = {DEAD} THEN NULL ELSE key END WHERE id = ?8",
            (
                state_number(after),
                after.attempt,
                after.lease_id,
                after.leased_at,
                after.until,
                history,
                deadline,
                row,
            ),
        )
