"""One queue on PostgreSQL: arguments for its functions, and what their answers mean."""

import secrets
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any
from weakref import finalize

import psycopg

from fray.backend import PushOptions, lease_machine
from fray.queue import Attempt, Lease, Reply
from fray_queue._checks import full_message
from fray_queue._engines.idempotency import IdempotencyKey
from fray_queue._engines.store import (
    Counts,
    DeletedQueueError,
    Letter,
    Verb,
    Wanted,
    stored_text,
    token_of,
)
from fray_queue._errors import LateRequestError, NoRoomError, QueueExistsError
from fray_queue._items import EncodedReply, Settings
from fray_queue._postgres import schema
from fray_queue._postgres.calls import call
from fray_queue._postgres.connection import Pool, pool
from fray_queue._postgres.listening import Listener

_NUMBER, _PRIORITY = itemgetter(0), itemgetter(7)  # of a row that `pop` returns
_MOST_AT_ONCE = (1 << 31) - 1  # items; an int4
_LONGEST_LEASE = 1e12  # seconds; its end in microseconds is an int8
_SYNCED = ("on", "local", "remote_write", "remote_apply")


class PostgresStore:
    """A queue's rows in the tables that all queues of a database share.

    Args:
        clock: Seconds since the epoch, for tests; default is the engine's.
    """

    tells_what = False

    def __init__(self, url: str, name: str, seconds: float, clock: Callable[[], float] | None) -> None:
        self._url, self._name, self._seconds, self._clock = url, name, seconds, clock
        self._number, self._tag = 0, ""
        self._held_pool: Pool | None = None
        self._listener: Listener | None = None

    @property
    def _pool(self) -> Pool:
        if self._held_pool is None:
            self._held_pool = pool(self._url, self._seconds)
        return self._held_pool

    def _run(self, name: str, kinds: str, *values: Any) -> list[Any]:
        """Call a function with the time and what it wants, of these `kinds`; return its rows."""
        now = None if self._clock is None else self._clock()
        with self._pool.connection(self._refuse) as connection:
            return call(connection, f"{name}_{schema.VERSION}", f"d{kinds}", (now, *values))

    def _execute(self, statement: str, *values: Any) -> list[Any]:
        with self._pool.connection(self._refuse) as connection:
            return connection.execute(statement, values, binary=True).fetchall()

    def _refuse(self, error: psycopg.Error) -> None:
        text = error.diag.message_primary or ""
        if error.sqlstate == "FR001" or isinstance(error, psycopg.errors.InvalidSchemaName):
            raise DeletedQueueError(self._name) from None
        if error.sqlstate == "FR003":
            raise LateRequestError(text) from None
        if error.sqlstate == "FR002":
            live, new, most = map(int, text.split())
            raise NoRoomError(full_message(live, new, most), ever=new <= most, count=new) from None
        if error.sqlstate == "FR004":
            field, has, given = text.split()
            raise QueueExistsError(f"queue {self._name!r} has {field}={has}, not {given}") from None

    # --- the queue ---

    def open(self, settings: Settings) -> Settings:
        """Make the tables and the queue if need be; those of an earlier version are upgraded."""
        with self._pool.connection() as connection:
            schema.prepare(connection)
        bounds = (settings.max_attempts, settings.max_size, settings.max_dead)
        opening = f"SELECT * FROM fray.open_{schema.VERSION}(%s, %s, %s::int4, %s::int4, %s::int4)"
        ((number, _, tag, *found, _, _),) = self._execute(opening, self._name, secrets.token_hex(4), *bounds)
        if number != self._number and self._listener is not None:  # of the queue that had the name before
            self._listener.stop()
            self._listener = None
        self._number, self._tag = number, tag
        return Settings(*found)

    def exists(self) -> bool:
        """Return whether the queue is there."""
        if not self._has_tables():
            return False
        ((found,),) = self._execute(f"SELECT fray.exists_{schema.VERSION}(%s)", self._name)
        return bool(found)

    def delete(self) -> None:
        """Remove the queue's rows, if it is there."""
        if self._has_tables():
            self._execute(f"SELECT fray.delete_{schema.VERSION}(%s)", self._name)

    def _has_tables(self) -> bool:
        with self._pool.connection() as connection:
            return schema.are_there(connection)

    def close(self) -> None:
        """Release the connections, which end with the last queue of the process that uses them."""
        if self._listener is not None:
            self._listener.stop()
        self._listener = self._held_pool = None

    def stored(self) -> tuple[bool, str]:
        """Return what the engine's settings keep of a push."""
        ((synced, fsync, standbys),) = self._execute(
            "SELECT current_setting('synchronous_commit'), current_setting('fsync'), "
            "current_setting('synchronous_standby_names')"
        )
        if fsync != "on":
            return False, "not surely on disk: a crash of the machine may damage the database (fsync off)"
        if synced not in _SYNCED:
            return False, "on disk within a second: a crash may lose the last (synchronous_commit off)"
        if not standbys or synced == "local":
            return (
                True,
                "on disk when push returns; a standby gets it later, and a fail-over may lose the last",
            )
        return True, f"on disk, and with a standby, when push returns (synchronous_commit {synced})"

    # --- items ---

    def push(self, key: IdempotencyKey, payloads: Sequence[bytes], options: PushOptions) -> list[str]:
        """Store payloads, all or none; return their ids."""
        for key_of_item in options.keys or ():
            if key_of_item is not None and "\0" in key_of_item:
                raise ValueError(
                    f"PostgreSQL holds no text with a zero byte: the key {key_of_item!r} has one"
                )
        ((ids,),) = self._run(
            "push",
            "qqoiBidddT",
            *self._key(key),
            list(payloads),
            options.priority,
            float(options.delay),
            options.ttl,
            options.reply_ttl or None,
            None if options.keys is None else list(options.keys),
        )
        return [self._item_id(number) for number in ids]

    def pop(
        self, key: IdempotencyKey, n: int, lease_timeout: float, *, token: str, woken: bool
    ) -> tuple[list[Lease[bytes]], float | None]:
        """Lease items in line."""
        n, seconds = min(n, _MOST_AT_ONCE), min(float(lease_timeout), _LONGEST_LEASE)
        rows = self._run("pop", "qqoiidto", *self._key(key), n, seconds, token, not key.waits)
        if rows and rows[0][0] is None:
            return [], rows[0][3]
        rows.sort(key=_NUMBER)  # they come in no order; most have one priority, and sorting is done at once
        rows.sort(key=_PRIORITY, reverse=True)
        tag = self._tag
        return [
            Lease(payload, f"{number:x}.{token}", at, f"{tag}-{number}", attempt, until, reply, pushed_at)
            for number, attempt, at, until, reply, payload, pushed_at, _ in rows
        ], None

    def done(
        self, key: IdempotencyKey, lease_ids: Sequence[str], answers: Sequence[EncodedReply | None]
    ) -> list[str]:
        """Finish items; return the leases that are lost."""
        outcomes = payloads = None  # most have none
        if any(answers):
            outcomes = [answer[0] if answer else None for answer in answers]
            payloads = [answer[1] if answer else None for answer in answers]
        ((lost,),) = self._run("done", "qqoiQTTB", *self._key(key), *_held(lease_ids), outcomes, payloads)
        return [lease_ids[index] for index in lost]

    def release(
        self,
        key: IdempotencyKey,
        lease_id: str,
        delay: float,
        *,
        error: str | None = None,
        failure: bytes | None = None,
        unreadable: str | None = None,
    ) -> bool:
        """Give an item back, or set it aside; False when the lease is lost."""
        ((answer,),) = self._run(
            "release",
            "qqoiqtdtbtD",
            *self._key(key),
            *token_of(lease_id),
            float(delay),
            _text(error),
            failure,
            _text(unreadable),
            list(lease_machine.UNREADABLE_DELAYS),
        )
        return bool(answer[0])

    def extend(self, lease_ids: Sequence[str], lease_timeout: float) -> list[float | None]:
        """Make leases end later; None for each that is lost."""
        once = list(dict.fromkeys(lease_ids))  # the engine counts each place of a list
        ((ends,),) = self._run("extend", "iQTd", self._number, *_held(once), float(lease_timeout))
        end_of = dict(zip(once, ends, strict=True))
        return [end_of[lease_id] for lease_id in lease_ids]

    def give_back(self, lease_ids: Sequence[str]) -> None:
        """Undo leases."""
        self._run("give_back", "iQT", self._number, *_held(list(dict.fromkeys(lease_ids))))

    # --- looking ---

    def peek(self) -> tuple[str, bytes] | None:
        """Return the first item in line."""
        rows = self._run("peek", "i", self._number)
        return (self._item_id(rows[0][0]), rows[0][1]) if rows else None

    def counts(self) -> Counts:
        """Count items."""
        ((counts,),) = self._run("counts", "i", self._number)
        return Counts(*counts)

    def oldest_seconds(self) -> float | None:
        """Return the age of the oldest item."""
        ((age,),) = self._run("oldest", "i", self._number)
        return None if age is None else float(age)

    def dead(self, after: int, most: int, *, payloads: bool) -> list[Letter]:
        """List the dead in line."""
        letters: list[Letter] = []
        rows = self._run("dead", "iqio", self._number, after, most, payloads)
        for number, payload, size, attempt, expired, history in rows:
            attempts = tuple(Attempt(*entry) for entry in history)
            letters.append(Letter(number, self._item_id(number), payload, size, attempt, attempts, expired))
        return letters

    def fetch(self, key: IdempotencyKey, item_ids: Sequence[str]) -> tuple[list[Reply], float | None]:
        """Return what became of items."""
        numbers = [self._place(item_id) for item_id in item_ids]
        ((change, outcomes, payloads),) = self._run("fetch", "qqoiQ", *self._key(key), numbers)
        replies = [
            Reply(item_id, outcome, payload)
            for item_id, outcome, payload in zip(item_ids, outcomes, payloads, strict=True)
            if outcome
        ]
        return replies, change

    # --- what an operator does ---

    def operate(self, key: IdempotencyKey, verb: Verb, item_ids: Sequence[str] | None = None) -> int:
        """Put the dead back in line, or remove what is not dead, or the dead."""
        numbers = None if item_ids is None else [self._place(item_id) for item_id in item_ids]
        ((answer,),) = self._run("operate", "qqoitQ", *self._key(key), verb, numbers)
        return int(answer[0])

    # --- waiting ---

    def wait(self, wanted: Wanted, seconds: float, *, alarm: str = "") -> Wanted:
        """Wait for something to change, whatever it is."""
        return wanted if self._listening().wait(seconds) else Wanted()

    def ring(self, alarm: str) -> None:
        """Wake all waiting calls."""
        self._listening().wake()

    def pass_on(self, told: Wanted) -> None:
        """Do nothing: everybody is notified."""

    def _listening(self) -> Listener:
        if self._listener is None:
            self._listener = Listener(self._pool, self._number)
            finalize(self, self._listener.stop)
        return self._listener

    # --- names ---

    def _key(self, key: IdempotencyKey) -> tuple[int, int, bool, int]:
        again, key.again = key.again, True
        return int(key.name, 16) >> 1, key.number, again, self._number

    def _item_id(self, number: int) -> str:
        return f"{self._tag}-{number}"

    def _place(self, item_id: str) -> int:
        tag, _, number = item_id.rpartition("-")
        known = tag == self._tag and number.isascii() and number.isdecimal() and len(number) < 19
        return int(number) if known else 0


def _held(lease_ids: Sequence[str]) -> tuple[list[int], list[str]]:
    pairs = [token_of(lease_id) for lease_id in lease_ids]
    return [number for number, _ in pairs], [token for _, token in pairs]


def _text(error: str | None) -> str | None:
    """Return what the engine can hold of a text: it takes no zero byte."""
    return None if error is None else stored_text(error).replace("\0", "\N{REPLACEMENT CHARACTER}")
