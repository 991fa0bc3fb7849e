"""What a FileQueue keeps in its files: their names, and the records of an item's history.

    <bucket>/<item>        the payload, written once
    <bucket>/<item>~<n>    record n of the item's history; to write it first is to decide what happened
    <bucket>/<item>~<n>+   a later end for the lease of record n; only its holder writes it

Bucket names begin with the time in hex and item names count up, so that names sort by age.
"""

import json
import re
import secrets
import zlib
from dataclasses import dataclass, field
from typing import Any

from fray_queue._errors import DamagedError

_FILE = re.compile(r"([0-9a-f]{4})(?:~([1-9]\d{0,5})(\+?))?")
_BUCKET = re.compile(r"[0-9a-f]{12}-[0-9a-f]{12}")
_LEASE_ID = re.compile(r"([0-9a-f]{12}-[0-9a-f]{12})\.([0-9a-f]{4})\.(\d+)\.([0-9a-f]{16})")
_PAYLOAD = b"fray1\n"
_CRC = 8  # hex digits

LEASE, RELEASE, DEAD, REQUEUE, DONE = "lease", "release", "dead", "requeue", "done"
DAMAGED = "damaged"  # never written: what is there cannot be read, and only `repair` goes on from it

Attempts = tuple[tuple[Any, ...], ...]  # of each: number, outcome, start, end and, if there is one, the error


@dataclass(frozen=True, slots=True)
class Record:
    """One step in the history of an item."""

    kind: str
    nonce: str  # tells this record from another that somebody else wrote under the same name
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


def is_blank(data: bytes) -> bool:
    """Tell whether a file has its name, and perhaps its length, but nothing of its content."""
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
    """Tell a bucket from whatever else lies in the folder."""
    return _BUCKET.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class Address:
    """Where an item is."""

    bucket: str
    item: str

    @property
    def path(self) -> str:
        return f"{self.bucket}/{self.item}"

    def record(self, number: int) -> str:
        return f"{self.bucket}/{self.item}~{number}"

    def extension(self, number: int) -> str:
        return f"{self.bucket}/{self.item}~{number}+"

    @property
    def item_id(self) -> str:
        return f"{self.bucket}.{self.item}"

    def lease_id(self, number: int, nonce: str) -> str:
        return f"{self.bucket}.{self.item}.{number}.{nonce}"


def parse_lease_id(lease_id: str) -> tuple[Address, int, str] | None:
    """Return the item, the number of the lease's first record and its nonce; None for what is no lease id."""
    match = _LEASE_ID.fullmatch(lease_id)
    return (Address(match[1], match[2]), int(match[3]), match[4]) if match else None


def parse_file(name: str) -> tuple[str, int] | None:
    """Return item and record number (0: the payload) of a file's name in a bucket; None for a stranger's."""
    match = _FILE.fullmatch(name)
    if match is None:
        return None
    return match[1], int(match[2] or 0)
