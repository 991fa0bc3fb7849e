"""The tokens of a server, and what each may do with which queues."""

import base64
import binascii
import hashlib
import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fray_queue._checks import check_name

_log = logging.getLogger("fray.queue")
ROLES = ("push", "take", "read", "admin")
_PUSH = frozenset({"/push", "/submit", "/room", "/replies"})
_TAKE = frozenset(
    {"/pop", "/done", "/finish", "/release", "/extend", "/extend_many", "/give_back", "/withdraw"}
)
_QUEUE = "/queues/{name}"
_MOST_KNOWN = 100
_UNREAD = (0, 0)  # no version of a file


@dataclass(frozen=True, slots=True)
class Grant:
    """What the holder of a token may do.

    Args:
        roles: `push` stores items and fetches answers; `take` leases and settles them; `read` looks at
            counts, items and dead letters; `admin` makes, removes, purges and requeues, and includes the
            others.
        queues: The queues that it is for; None for all, and for requests about all.
    """

    roles: frozenset[str]
    queues: frozenset[str] | None = None

    def __post_init__(self) -> None:
        for role in self.roles:
            if role not in ROLES:
                raise ValueError(f"{role!r} is not a role of a token; roles are {', '.join(ROLES)}")
        if not self.roles:
            raise ValueError(f"a token has at least one role of {', '.join(ROLES)}")
        for name in self.queues or ():
            check_name(name)

    @property
    def is_limited(self) -> bool:
        """Whether other queues than its own are none of its holder's business."""
        return self.queues is not None

    def __str__(self) -> str:
        queues = "all queues" if self.queues is None else f"the queues {', '.join(sorted(self.queues))}"
        return f"{', '.join(sorted(self.roles))} of {queues}"

    def allows(self, method: str, path: str, name: str) -> bool:
        """Return whether a request may be made; `path` has `{name}` in the place of the queue's name."""
        if not path.startswith(_QUEUE):
            return self.queues is None and bool(self.roles & {"read", "admin"})
        if self.queues is not None and name not in self.queues:
            return False
        return "admin" in self.roles or bool(self.roles & _roles_for(method, path.removeprefix(_QUEUE)))


EVERYTHING = Grant(frozenset({"admin"}))
"""What the server's own token is good for."""


def _roles_for(method: str, verb: str) -> frozenset[str]:
    if method in ("GET", "HEAD"):
        if verb == "":  # its counts, and the limits that a client parts its requests by
            return frozenset({"push", "take", "read"})
        return frozenset({"take", "read"} if verb == "/peek" else {"read"})
    if method == "POST" and verb in _PUSH:
        return frozenset({"push"})
    return frozenset({"take"}) if method == "POST" and verb in _TAKE else frozenset()


class Auth:
    """The tokens of one server. A file has their digests: nothing in it is a secret.

    Args:
        token: The one that may do everything.
        grants: Further tokens.
        file: A file of digests and grants, as `fray queue tokens` writes it; read again when it changes.
    """

    def __init__(
        self, token: str, grants: Iterable[tuple[str, Grant]] = (), file: Path | None = None
    ) -> None:
        self._own = {digest(token): EVERYTHING, **{digest(text): grant for text, grant in grants}}
        self._known: dict[str, Grant] = {}  # headers with one of these: a client sends the same each time
        self._file, self._seen = file, _UNREAD
        self._filed: dict[str, Grant] = {}
        if file is not None:
            self._seen = _version(file)  # before it is read: else a change in between is never noticed
            self._filed = read_grants(file)

    def grant(self, authorization: str) -> Grant | None:
        """Return what an Authorization header allows; None for an unknown token, or none."""
        if known := self._known.get(authorization):
            return known
        token = _token_in(authorization)
        if token is None:
            return None
        # The lookup is by digest: how long it takes reveals nothing of a token.
        key = hashlib.sha256(token).hexdigest()
        if own := self._own.get(key):
            if len(self._known) < _MOST_KNOWN:  # a header may be written in many ways
                self._known[authorization] = own
            return own
        if self._file is not None:
            self._refresh(self._file)
        return self._filed.get(key)

    def _refresh(self, file: Path) -> None:
        try:
            version = _version(file)
            if version != self._seen:
                self._filed, self._seen = read_grants(file), version
        except (OSError, ValueError) as error:  # nobody gets more than the file says
            if self._seen != _UNREAD:
                _log.warning("no token of the file is good, as it cannot be read: %s", error)
            self._filed, self._seen = {}, _UNREAD


def digest(token: str) -> str:
    """Return what stands for a token in a file."""
    return hashlib.sha256(token.encode()).hexdigest()


def read_grants(file: Path) -> dict[str, Grant]:
    """Read a file of tokens.

    Raises:
        ValueError: A line of it cannot be understood.
    """
    grants: dict[str, Grant] = {}
    for number, line in enumerate(file.read_text().splitlines(), 1):
        try:
            row: dict[str, Any] = json.loads(line)
            queues = row.get("queues")
            grant = Grant(frozenset(row["roles"]), None if queues is None else frozenset(queues))
            grants[str(row["sha256"])] = grant
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"line {number} of {str(file)!r} does not describe a token: {error}") from None
    return grants


def grant_row(token: str, grant: Grant, name: str) -> str:
    """Return a token's line for such a file; the token itself is not in it."""
    queues = None if grant.queues is None else sorted(grant.queues)
    row = {"name": name, "roles": sorted(grant.roles), "queues": queues, "sha256": digest(token)}
    return json.dumps(row) + "\n"


def _version(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_mtime_ns, status.st_ino


def _token_in(header: str) -> bytes | None:
    """Return the token of an Authorization header: a bearer's, or the password of a browser."""
    scheme, _, credentials = header.partition(" ")
    given = credentials.strip().encode("utf-8", "surrogateescape")
    if scheme.lower() == "bearer":
        return given
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(given, validate=True).partition(b":")[2]
    except binascii.Error:
        return None
