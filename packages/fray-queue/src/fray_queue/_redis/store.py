"""One queue on Redis: arguments for the scripts, and what their answers mean."""

import secrets
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import redis

from fray import QueueUnavailableError, UnsupportedError
from fray.backend import PushOptions, lease_machine
from fray.queue import Attempt, Lease, Reply
from fray_queue._checks import full_message
from fray_queue._engines.idempotency import IdempotencyKey
from fray_queue._engines.store import Counts, DeletedQueueError, Letter, Verb, Wanted, stored_text
from fray_queue._errors import (
    AccessRefusedError,
    LateRequestError,
    NoRoomError,
    QueueExistsError,
    QueueVersionError,
)
from fray_queue._items import EncodedReply, Settings
from fray_queue._redis import scripts, server_settings
from fray_queue._redis.nodes import Keys, Nodes
from fray_queue._redis.places import held_by, item_id_at, place_of
from fray_queue._stamps import STAMP_BYTES, unstamped

_MICRO = 1_000_000
_FIELDS = {"attempts": "max_attempts", "size": "max_size", "dead": "max_dead"}
_UNREADABLE = [_MICRO * round(delay) for delay in lease_machine.UNREADABLE_DELAYS]
_MOST_LISTS = 1000  # that one waiting question looks at
_FORGOTTEN = 60  # seconds; nobody takes what was written to a list
_LONGEST = 1e12  # seconds; of more there are no microseconds
_KEYS = "meta line ready held dated dead items state keys replies reply_until wake room"

_NOT_ALLOWED = ("NOPERM", "The user executing the script", "ACL failure in script")  # the last is Valkey's


class RedisStore:
    """A queue's keys, all of them in one slot of a cluster.

    Args:
        clock: Seconds since the epoch, for tests; default is the engine's.
    """

    tells_what = True

    def __init__(self, nodes: Nodes, name: str, clock: Callable[[], float] | None) -> None:
        self._nodes, self._name, self._clock = nodes, name, clock
        self._base = f"fray:{{{name}}}:"
        self._meta = f"{self._base}meta"
        self._names = [self._base + key for key in _KEYS.split()]
        self._keys = Keys(*self._names)
        self._tag = ""  # of the queue that was opened: another may have its name by now, and the same places

    def _run(self, name: str, *arguments: Any, tag: str | None = None) -> Any:
        """Run a script.

        Args:
            tag: That of the queue whose places are among the arguments, or in the answer.
        """
        now = "" if self._clock is None else _micro(self._clock())
        last = self._tag if tag is None else tag
        return self._evaluate(scripts.script(name), self._keys, now, *arguments, last)

    def _run_swept(self, name: str, *arguments: Any, tag: str) -> Any:
        """Run a script until it has swept all: each time keeps others waiting for a moment."""
        while (answer := self._run(name, *arguments, tag=tag)) == [-1]:
            continue
        return answer

    def _evaluate(self, script: scripts.Script, keys: Keys, *arguments: Any) -> Any:
        try:
            return self._nodes.run(script, keys, arguments)
        except redis.exceptions.ResponseError as error:
            self._refuse(str(error))
            answer = f"queue {self._name!r}: Redis answered {str(error)!r}"
            raise QueueUnavailableError(f"{answer}, which the scripts of this release never do") from error

    def _refuse(self, text: str) -> None:
        code, *words = text.split() or [""]
        if code == "FRAYOTHER":
            self._tag = words[0]  # of the next calls
        if code in ("FRAYGONE", "FRAYOTHER"):
            raise DeletedQueueError(self._name) from None
        if code == "FRAYLATE":
            raise LateRequestError(" ".join(words)) from None
        if code == "FRAYVERSION":
            self._refuse_version(words[0])
        if code == "FRAYEXISTS":
            field, has, given = _FIELDS[words[0]], words[1], words[2]
            raise QueueExistsError(f"queue {self._name!r} has {field}={has}, not {given}") from None
        if code == "FRAYFULL":
            live, new, most = map(int, words[:3])
            raise NoRoomError(full_message(live, new, most), ever=new <= most, count=new) from None
        if any(refusal in text for refusal in _NOT_ALLOWED):
            raise AccessRefusedError(
                f"queue {self._name!r}: the user lacks a right that this call needs: {text}"
            ) from None

        if "Error compiling script" in text:  # it knows no flags of scripts
            raise UnsupportedError(
                f"queue {self._name!r}: this Redis is too old; use Redis 7 or newer, or Valkey"
            ) from None

    def _refuse_version(self, found: str) -> NoReturn:
        what = f"is of version {found}" if found.isdecimal() else "is not a queue, though it has its name"
        raise QueueVersionError(
            f"the key {self._meta!r} {what}, and this release of fray-queue reads version {scripts.VERSION}; "
            "use one release for all programs, the newest first for a moment: it upgrades the queue"
        ) from None

    # --- the queue ---

    def open(self, settings: Settings) -> Settings:
        """Make the queue if need be; one of an earlier version is brought up to this one."""
        bounds = ["" if value is None else value for value in _bounds(settings)]
        arguments = [secrets.token_hex(4), *bounds]
        while True:
            try:
                answer = self._evaluate(scripts.script("open"), Keys(self._meta), *arguments)
                break
            except QueueVersionError:
                if not self._upgrade():
                    raise
        if not isinstance(answer, list) or len(answer) != len(arguments):
            raise QueueUnavailableError(
                f"queue {self._name!r}: {answer!r} is not the answer of a Redis; check its address"
            )
        tag, *found = answer
        self._tag = tag.decode()
        server_settings.refuse_eviction(self._nodes, self._name)
        return Settings(*(int(value) if value else None for value in found))

    def _upgrade(self) -> bool:
        found = self._nodes.command("HGET", self._meta, "version") or b""
        if not found.isdigit() or int(found) not in scripts.UPGRADES:
            return False
        self._evaluate(scripts.upgrade(int(found)), self._keys)
        return True

    def exists(self) -> bool:
        """Return whether the queue is there."""
        return bool(self._nodes.command("EXISTS", self._meta))

    def delete(self) -> None:
        """Remove all of the queue's keys but those that expire by themselves."""
        self._nodes.command("UNLINK", *self._names)

    def close(self) -> None:
        """Release the connections."""
        self._nodes.close()

    def stored(self) -> tuple[bool, str]:
        """Return what the engine's settings keep of a push."""
        return server_settings.stored(self._nodes)

    # --- items ---

    def push(self, key: IdempotencyKey, payloads: Sequence[bytes], options: PushOptions) -> list[str]:
        """Store payloads, all or none; return their ids."""
        ttl = _micro(options.ttl) if options.ttl else 0
        keys = [key or "" for key in options.keys or ()]
        tag = self._tag
        found = self._run(
            "push",
            key.name,
            key.number,
            len(payloads),
            options.priority,
            _micro(options.delay),
            ttl,
            _micro(options.reply_ttl),
            int(bool(keys)),
            *payloads,
            *keys,
            tag=tag,
        )
        if keys:
            return [item_id_at(tag, place) for place in found]
        first = int(found[0], 16)
        return [f"{tag}-{number}" for number in range(first, first + 2 * len(payloads), 2)]

    def pop(
        self, key: IdempotencyKey, n: int, lease_timeout: float, *, token: str, woken: bool
    ) -> tuple[list[Lease[bytes]], float | None]:
        """Lease items in line."""
        tag = self._tag
        arguments = (key.name, key.number, n, _micro(lease_timeout), token, int(woken))
        found = self._run_swept("pop", *arguments, tag=tag)
        leases = []
        for at in range(1, len(found), 6):
            place, attempt, leased_at, until, reply, payload = found[at : at + 6]
            number = int(place, 16)
            payload, pushed_at = unstamped(payload)
            leases.append(
                Lease(
                    payload,
                    f"{number:x}.{token}",
                    leased_at / _MICRO,
                    f"{tag}-{number}",
                    attempt,
                    until / _MICRO,
                    bool(reply),
                    pushed_at,
                )
            )
        return leases, _seconds(found[0])

    def done(
        self, key: IdempotencyKey, lease_ids: Sequence[str], answers: Sequence[EncodedReply | None]
    ) -> list[str]:
        """Finish items; return the leases that are lost."""
        arguments: list[Any] = []
        for lease_id, answer in zip(lease_ids, answers, strict=True):
            arguments += held_by(lease_id)
            arguments += answer or ("value", b"")
        refused = self._run("done", key.name, key.number, len(lease_ids), *arguments)
        return [lease_ids[index] for index in refused]

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
        texts = [stored_text(error), failure or b"", stored_text(unreadable)]
        more = _UNREADABLE if unreadable else []
        return bool(
            self._run("release", key.name, key.number, *held_by(lease_id), _micro(delay), *texts, *more)
        )

    def extend(self, lease_ids: Sequence[str], lease_timeout: float) -> list[float | None]:
        """Make leases end later; None for each that is lost."""
        held = [part for lease_id in lease_ids for part in held_by(lease_id)]
        return [end / _MICRO if end else None for end in self._run("extend", _micro(lease_timeout), *held)]

    def give_back(self, lease_ids: Sequence[str]) -> None:
        """Undo leases."""
        self._run("give_back", *(part for lease_id in lease_ids for part in held_by(lease_id)))

    # --- looking ---

    def peek(self) -> tuple[str, bytes] | None:
        """Return the first item in line."""
        tag = self._tag
        found = self._run_swept("look", "peek", tag=tag)
        return (item_id_at(tag, found[0]), unstamped(found[1])[0]) if found else None

    def counts(self) -> Counts:
        """Count items."""
        return Counts(*self._run("look", "counts"))

    def oldest_seconds(self) -> float | None:
        """Return the age of the oldest item; where many are held it takes several calls."""
        ages: list[int] = []
        step, cursor = b"held", b"0"
        while step:
            step, cursor, *age = self._run("oldest", step, cursor)
            ages += age
        return max(ages) / _MICRO if ages else None

    def dead(self, after: int, most: int, *, payloads: bool) -> list[Letter]:
        """List the dead in line."""
        letters: list[Letter] = []
        tag = self._tag
        first = f"({after:012x}" if after else "-"
        found = self._run("look", "dead", first, most, int(payloads), tag=tag)
        for place, payload, attempt, expired, history in found:
            attempts = tuple(_attempt(*entry) for entry in history)
            item_id = item_id_at(tag, place)
            data = unstamped(payload)[0] if payloads else b""
            size = len(data) if payloads else max(0, payload - STAMP_BYTES)  # each has one, in this release
            letters.append(Letter(int(place, 16), item_id, data, size, attempt, attempts, bool(expired)))
        return letters

    def fetch(self, key: IdempotencyKey, item_ids: Sequence[str]) -> tuple[list[Reply], float | None]:
        """Return what became of items."""
        tag = self._tag
        places = [place_of(tag, item_id) for item_id in item_ids]
        change, found = self._run("fetch", key.name, key.number, *places, tag=tag)
        replies = [
            Reply(item_id, outcome[0].decode(), outcome[1])
            for item_id, outcome in zip(item_ids, found, strict=True)
            if outcome
        ]
        return replies, _seconds(change)

    # --- what an operator does ---

    def operate(self, key: IdempotencyKey, verb: Verb, item_ids: Sequence[str] | None = None) -> int:
        """Put the dead back in line, or remove what is not dead, or the dead."""
        tag = self._tag
        which = ["all"] if item_ids is None else ["these", *(place_of(tag, each) for each in item_ids)]
        count: int = self._run("operate", key.name, key.number, verb, *which, tag=tag)
        return count

    # --- waiting ---

    def wait(self, wanted: Wanted, seconds: float, *, alarm: str = "") -> Wanted:
        """Block on the lists that scripts write to."""
        lists: dict[bytes, Wanted] = {}
        if wanted.items:
            lists[self._list("wake")] = Wanted(items=True)
        if wanted.room:
            lists[self._list("room")] = Wanted(room=True)
        for item_id in wanted.answers[:_MOST_LISTS]:
            lists[self._list(f"told:{place_of(self._tag, item_id)}")] = Wanted(answers=(item_id,))
        if alarm:
            lists[self._list(f"told:alarm-{alarm}")] = Wanted()
        found = self._nodes.block(seconds, *lists)
        return lists[found[0]] if found else Wanted()

    def ring(self, alarm: str) -> None:
        """Write to a list that one waits for alone."""
        self._write(self._list(f"told:alarm-{alarm}"))

    def pass_on(self, told: Wanted) -> None:
        """Write what was taken to its list again."""
        if told.items:
            self._nodes.command("LPUSH", self._list("wake"), "1")
        for item_id in told.answers:
            self._write(self._list(f"told:{place_of(self._tag, item_id)}"))

    def _write(self, key: bytes) -> None:
        self._nodes.command("LPUSH", key, "1")
        self._nodes.command("EXPIRE", key, _FORGOTTEN)

    def _list(self, name: str) -> bytes:
        return (self._base + name).encode()


def _bounds(settings: Settings) -> tuple[int | None, int | None, int | None]:
    return settings.max_attempts, settings.max_size, settings.max_dead


def _attempt(number: int, outcome: bytes, started: int, ended: int, error: bytes | None) -> Attempt:
    text = None if error is None else error.decode("utf-8", "replace")
    return Attempt(number, outcome.decode(), started / _MICRO, ended / _MICRO, text)  # type: ignore[arg-type]


def _micro(seconds: float) -> int:
    return round(min(seconds, _LONGEST) * _MICRO)


def _seconds(micro: int | None) -> float | None:
    return None if micro is None else micro / _MICRO
