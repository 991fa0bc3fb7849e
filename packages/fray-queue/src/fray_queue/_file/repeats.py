"""Settlements that failed, and are written all the same: the caller repeats the call, and is not refused."""

import contextlib
import threading
from collections.abc import Collection, Iterable, Iterator

from fray import LeaseExpiredError
from fray_queue._file.item_log import Claim
from fray_queue._file.records import Record

_MOST = 10_000  # leases that are remembered; most calls that fail are repeated soon, or never


class Settling:
    """One call that settles leases: what it tries to write, and what calls that failed tried before it."""

    def __init__(self, before: dict[str, frozenset[str]]) -> None:
        self._before = before
        self._nonces: dict[str, frozenset[str]] = dict(before)

    def tries(self, claim: Claim, record: Record) -> Record:
        """Note a record that is about to be written."""
        lease_id = claim.lease_id
        self._nonces[lease_id] = self._nonces.get(lease_id, frozenset()) | {record.nonce}
        return record

    def wrote(self, claim: Claim, found: Record | None, wanted: Record) -> bool:
        """Return whether what is there is what a call that failed wrote, and this one wants to."""
        known = self._before.get(claim.lease_id, ())
        return found is not None and found.kind == wanted.kind and found.nonce in known

    def tried(self, claim: Claim) -> frozenset[str]:
        """Return the nonces of all records that may have been written."""
        return self._nonces.get(claim.lease_id, frozenset())


class Repeats:
    """What calls that failed may have written, by lease."""

    def __init__(self) -> None:
        self._tried: dict[str, tuple[Claim, frozenset[str]]] = {}
        self._finished: dict[str, None] = {}
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def settling(self, claims: Collection[Claim]) -> Iterator[Settling]:
        """Settle leases; what was tried is remembered where the block fails."""
        with self._lock:
            known = [(each.lease_id, self._tried.pop(each.lease_id, None)) for each in claims]
        settling = Settling({lease_id: entry[1] for lease_id, entry in known if entry is not None})
        try:
            yield settling
        except LeaseExpiredError:
            raise
        except BaseException:
            with self._lock:
                self._tried.update({each.lease_id: (each, settling.tried(each)) for each in claims})
                _shorten(self._tried)
            raise

    def claim(self, lease_id: str) -> Claim | None:
        """Return the claim of a lease that could not be settled; an extension may have found it settled."""
        with self._lock:
            known = self._tried.get(lease_id)
        return None if known is None else known[0]

    def finished(self, lease_ids: Iterable[str]) -> None:
        """Remember leases that a call finished before it failed with others."""
        with self._lock:
            self._finished.update(dict.fromkeys(lease_ids))
            _shorten(self._finished)

    def was_finished(self, lease_id: str) -> bool:
        """Return, once, whether such a call finished the lease."""
        with self._lock:
            return self._finished.pop(lease_id, self) is None


def _shorten(known: dict[str, None] | dict[str, tuple[Claim, frozenset[str]]]) -> None:
    while len(known) > _MOST:
        del known[next(iter(known))]
