"""Claim several items for one `pop_many`."""

import math
from collections.abc import Callable

from fray.backend import map_in_threads
from fray_queue._file.claims import Claims
from fray_queue._file.item_log import Claim
from fray_queue._file.listing import FRESH_FOR

ASIDE = 16  # requests of one call that run beside each other on an object store


def claim_many(
    claims: Claims, n: int, lease_timeout: float, clock: Callable[[], float], *, beside: bool
) -> list[Claim]:
    """Claim up to `n` items, each once; what an error cuts short is returned, or given back.

    Args:
        beside: Send requests beside each other.
    """
    taking = _Taking(claims, clock, lease_timeout)
    try:
        while len(taking.claims) < n and taking.take(n - len(taking.claims)):
            left = n - len(taking.claims)
            if left and beside and not taking.claims[-1].address.count:
                taking.take_beside(left)
    except Exception as error:
        if not isinstance(error, ConnectionError):  # a store that is away takes nothing back, either
            claims.undo(taking.not_in_hand(), delay=FRESH_FOR)  # the calls that follow try others first
        if not taking.claims:  # else who pops gets what is in hand, and the next pop says what is wrong
            raise
    except BaseException:  # an interrupt: nobody will get what is in hand, or was about to be
        claims.undo(taking.begun)
        raise
    return taking.in_order()


class _Taking:
    """The claims of one `pop_many`.

    It ends when half of the first lease has passed: a lease that runs out while others are fetched would be
    returned dead, or its item twice.
    """

    def __init__(self, claims: Claims, clock: Callable[[], float], lease_timeout: float) -> None:
        self._claims, self._clock, self._lease_timeout = claims, clock, lease_timeout
        self._end = math.inf
        self._empty = False  # one look of those beside each other found nothing
        self.claims: list[Claim] = []
        self.begun: list[Claim] = []  # those, and what was tried

    def take(self, n: int) -> bool:
        """Claim up to `n` more items; False when there is none, or no time."""
        if self._clock() >= self._end:
            return False
        claims = self._claims.take_many(n, self._lease_timeout, self.begun)
        self.claims += claims
        for claim in claims:
            self._end = min(self._end, claim.record.at + self._lease_timeout / 2)
        return bool(claims)

    def take_beside(self, n: int) -> None:
        """Claim up to `n` more items one by one, with requests beside each other."""

        def one(_: int) -> None:
            if not self._empty and not self.take(1):
                self._empty = True  # each look lists all there is: the others would find as little

        map_in_threads(one, range(n), ASIDE, "fray-queue-pop")

    def not_in_hand(self) -> list[Claim]:
        """Return the claims that were tried and not had; the store may have got the records of some."""
        places = {(claim.address, claim.index) for claim in self.claims}
        return [claim for claim in self.begun if (claim.address, claim.index) not in places]

    def in_order(self) -> list[Claim]:
        """Return the newest claim of each item, the oldest item first."""
        newest = {(claim.address.path, claim.index): claim for claim in self.claims}
        return [newest[place] for place in sorted(newest)]
