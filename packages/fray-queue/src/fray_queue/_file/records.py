"""What a FileQueue keeps in its files: their names, and the records of an item's history.

    <bucket>/<item>        the payload, written once
    <bucket>/<item>~<n>    record n of the item's history; to write it first is to decide what happened
    <bucket>/<item>~<n>+   a later end for the lease of record n; only its holder writes it

    <bucket>/<item>x<k>    k items (in hex) that were pushed together
    <bucket>/<item>x<k>~<n>      record n of their history: the state of each
    <bucket>/<item>x<k>~<n>.<i>+ a later end for the lease that item i got by record n

    .sealed/, .full/, .taken/    which buckets need no look to be counted; see `full_buckets`

Bucket names begin with the time in hex and item names count up, so that names sort by age.
"""

import json
import re
import secrets
import zlib
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fray_queue._errors import DamagedError

_ITEM = r"[0-9a-f]{4}(?:x[0-9a-f]{2})?"
_FILE = re.compile(rf"({_ITEM})(?:~([1-9]\d{{0,5}})((?:\.\d{{1,3}})?\+)?)?")
_BUCKET = re.compile(r"[0-9a-f]{12}-[0-9a-f]{12}")
_LEASE_ID = re.compile(rf"([0-9a-f]{{12}}-[0-9a-f]{{12}})\.({_ITEM})(?:-(\d+))?\.(\d+)\.([0-9a-f]{{16}})")
_PAYLOAD = b"fray1\n"
_CRC = 8  # hex digits

LEASE, RELEASE, DEAD, REQUEUE, DONE = "lease", "release", "dead", "requeue", "done"
ALONE = -1  # the place in its batch of an item that was pushed alone
DAMAGED = "damaged"  # never written: what is there cannot be read, and only `repair` continues after it

Attempts = tuple[tuple[Any, ...], ...]  # of each: number, outcome, start, end and, if there is one, the error


@dataclass(frozen=True, slots=True)
class Record:
    """One step in the history of an item."""

    kind: str
    nonce: str  # distinguishes this record from another client's under the same name
    at: float
    until: float = 0.0  # of a lease its end; of a release the time before which nobody gets the item
    attempt: int = 0
    attempts: Attempts = ()  # those that ended without `done`
    extended: tuple[int, ...] = ()  # numbers of the leases that have a `+` file

    @property
    def lease_nonce(self) -> str:
        """The nonce of the lease's first record; those that renew it add one of their own."""
        return self.nonce.partition("-")[0]

    def encode(self) -> bytes:
        """Return the record as a line of JSON with its checksum, readable with plain tools."""
        return _sealed({name: getattr(self, name) for name in _FIELDS})


_FIELDS = Record.__slots__


@dataclass(frozen=True, slots=True)
class SharedRecord(Record):
    """A record that several items of one client have, byte for byte: on a disk each is a link to one file."""

    data: bytes = b""
    paths: set[str] = field(default_factory=set, compare=False)  # where this client wrote it, or tries to

    def encode(self) -> bytes:
        return self.data


def shared(record: Record) -> SharedRecord:
    """Return a record that says the same and can be written for several items."""
    return SharedRecord(
        record.kind,
        record.nonce,
        record.at,
        record.until,
        record.attempt,
        record.attempts,
        record.extended,
        record.encode(),
    )


def _sealed(fields: dict[str, Any]) -> bytes:
    text = json.dumps(fields, separators=(",", ":")).encode()
    return b"%s %08x\n" % (text, zlib.crc32(text))


def _unsealed(data: bytes, path: str) -> dict[str, Any]:
    text, _, crc = data.rstrip(b"\n").rpartition(b" ")
    if len(crc) != _CRC or crc != b"%08x" % zlib.crc32(text):
        raise DamagedError(f"the record {path!r} is damaged: its checksum does not fit")
    try:
        fields: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise DamagedError(f"the record {path!r} is damaged: {error}") from error
    return fields


def decode_record(data: bytes, path: str) -> Record:
    """Read a record; `path` is for the error."""
    fields = _unsealed(data, path)
    try:
        fields["attempts"] = tuple(tuple(attempt) for attempt in fields["attempts"])
        fields["extended"] = tuple(fields["extended"])
        return Record(**fields)
    except (KeyError, TypeError) as error:
        raise DamagedError(f"the record {path!r} is damaged, or of a newer version: {error}") from error


class Slot(NamedTuple):
    """The state of one item of a batch."""

    record: Record | None  # None: it was never leased
    since: int  # the number of the batch's record that made it so


BatchState = tuple[Slot, ...]


def encode_batch(state: BatchState, nonce: str) -> bytes:
    """Return a record of a batch: runs of items that are alike, in a line of JSON with its checksum."""
    runs: list[list[Any]] = []
    for slot in state:
        fields = None if slot.record is None else [getattr(slot.record, name) for name in _FIELDS]
        if runs and runs[-1][1:] == [slot.since, fields]:
            runs[-1][0] += 1
        else:
            runs.append([1, slot.since, fields])
    return _sealed({"nonce": nonce, "runs": runs})


def decode_batch(data: bytes, path: str, count: int) -> BatchState:
    """Read a record of a batch; `path` is for the error."""
    state: list[Slot] = []
    try:
        for length, since, fields in _unsealed(data, path)["runs"]:
            state += [Slot(None if fields is None else _record(fields), since)] * length
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedError(f"the record {path!r} is damaged, or of a newer version: {error}") from error
    if len(state) != count:
        raise DamagedError(f"the record {path!r} is damaged: it has {len(state)} items, not {count}")
    return tuple(state)


def _record(fields: list[Any]) -> Record:
    values = dict(zip(_FIELDS, fields, strict=True))
    values["attempts"] = tuple(tuple(attempt) for attempt in values["attempts"])
    values["extended"] = tuple(values["extended"])
    return Record(**values)


def seal_batch(payloads: list[bytes]) -> bytes:
    """Return the content of a batch's file: lengths, then items."""
    lengths = b"".join(len(payload).to_bytes(8, "big") for payload in payloads)
    return seal_payload(lengths + b"".join(payloads))


def open_batch(data: bytes, path: str, count: int) -> list[bytes]:
    """Read a batch's file."""
    content = open_payload(data, path)
    lengths = [int.from_bytes(content[8 * i : 8 * i + 8], "big") for i in range(count)]
    if len(content) != 8 * count + sum(lengths):
        raise DamagedError(f"the items {path!r} are damaged: they have another length")
    payloads, start = [], 8 * count
    for length in lengths:
        payloads.append(content[start : start + length])
        start += length
    return payloads


def is_blank(data: bytes) -> bool:
    """Return whether a file has its name, and perhaps its length, but nothing of its content."""
    return not data.strip(b"\0")


def encode_extension(until: float) -> bytes:
    """Return the content of a `+` file."""
    return _sealed({"until": until})


def decode_extension(data: bytes, path: str) -> float:
    """Read a `+` file."""
    return float(_unsealed(data, path)["until"])


def seal_payload(payload: bytes) -> bytes:
    """Return the content of an item's file."""
    return b"%s%08x\n%s" % (_PAYLOAD, zlib.crc32(payload), payload)


def open_payload(data: bytes, path: str) -> bytes:
    """Read an item's file."""
    head = len(_PAYLOAD) + _CRC + 1
    payload = data[head:]
    if data[:head] != b"%s%08x\n" % (_PAYLOAD, zlib.crc32(payload)):
        raise DamagedError(f"the item {path!r} is damaged: its checksum does not fit")
    return payload


def new_nonce() -> str:
    """Return 64 random bits."""
    return secrets.token_hex(8)


def is_bucket(name: str) -> bool:
    """Return whether a name is a bucket's, and not another file's in the folder."""
    return _BUCKET.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class ItemAddress:
    """Where an item is, or a batch of them."""

    bucket: str
    item: str

    @property
    def count(self) -> int:
        """The number of items that were pushed together; 0 for one that was pushed alone."""
        return int(self.item[5:] or "0", 16)

    @property
    def path(self) -> str:
        return f"{self.bucket}/{self.item}"

    def record(self, number: int) -> str:
        return f"{self.bucket}/{self.item}~{number}"

    def extension(self, number: int, index: int = ALONE) -> str:
        return f"{self.bucket}/{self.item}~{number}{'' if index == ALONE else f'.{index}'}+"

    def item_id(self, index: int = ALONE) -> str:
        return f"{self.bucket}.{self.item}{'' if index == ALONE else f'-{index}'}"

    def lease_id(self, number: int, nonce: str, index: int = ALONE) -> str:
        return f"{self.item_id(index)}.{number}.{nonce}"


def parse_lease_id(lease_id: str) -> tuple[ItemAddress, int, int, str] | None:
    """Return the item, its place in its batch, the number of the lease's first record and its nonce."""
    match = _LEASE_ID.fullmatch(lease_id)
    if match is None:
        return None
    index = ALONE if match[3] is None else int(match[3])
    address = ItemAddress(match[1], match[2])
    if not ALONE <= index < address.count or (index == ALONE) != (address.count == 0):
        return None
    return address, index, int(match[4]), match[5]


def parse_file(name: str) -> tuple[str, int] | None:
    """Return item and record number (0: the payload) of a file's name in a bucket; None for another file."""
    match = _FILE.fullmatch(name)
    if match is None:
        return None
    return match[1], int(match[2] or 0)
