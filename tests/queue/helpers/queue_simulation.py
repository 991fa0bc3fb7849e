"""Clients of one simulated store, interleaved at every request by a seeded scheduler.

One request of one client happens at a time. Before each, any client may crash (before or after the
request took effect, or with the request landing later), stall beyond its lease, or lose the answer
to a creation; listings come in two pages with requests of others in between; clocks differ.
"""

import threading
from collections.abc import Callable
from typing import Any

from simulated_store import BUCKET, LEASE_SECONDS, Crash, SimStore, Violation, World

from fray.queue import LeaseExpiredError
from fray_queue.testing import (
    Claim,
    Claims,
    FullBuckets,
    ItemAddress,
    Listing,
    file_listing,
    seal_batch,
    seal_payload,
)


def name_of(claim: Claim) -> str:
    """Name an item, in its batch or alone."""
    return claim.address.path + (f"-{claim.index}" if claim.address.count else "")


def new_items(world: World, batch: int, content: bytes) -> tuple[ItemAddress, list[str], bytes]:
    """Return a new file: its name, the names of its items, and what it holds."""
    name = f"{world.pushed:04x}"
    world.pushed += 1
    if not batch:
        alone = ItemAddress(BUCKET, name)
        return alone, [alone.path], seal_payload(content)
    address = ItemAddress(BUCKET, f"{name}x{batch:02x}")
    return address, [f"{address.path}-{index}" for index in range(batch)], seal_batch([content] * batch)


class Client:
    """A worker that takes, extends, settles or forgets items."""

    def __init__(
        self, world: World, number: int, step: Callable[[int], None], variant: Any, skew: float
    ) -> None:
        self.world, self.number, self.pushes = world, number, variant.pushes
        self.step = step
        self.batch = variant.batch
        self.store = variant.store(world, number, step)
        self.clock = world.clock(number)
        listing = variant.listing(self.store, skew=skew, chance=world.chance)
        self.claims: Claims = variant.claims(
            self.store,
            listing,
            clock=self.clock,
            skew=skew,
            max_attempts=None,
            remove=lambda payload, records: variant.remove(self.store, payload, records),
            share=variant.share,
        )
        self.full: FullBuckets | None = None
        if variant.full is not None:
            self.full = variant.full(self.store, self.clock, self.clock())
            self.claims.know_full_buckets(self.full)

    def work(self, rounds: int) -> None:
        if self.full is not None and self.number == 0:
            for _ in range(self.world.chance.choice([0, 5, 10, 20])):
                self.step(self.number)  # others have come so far meanwhile
            self.full.tell(BUCKET, len(self.world.stored), len(self.world.stored))
        for _ in range(rounds):
            if self.full is not None and self.world.chance.random() < 0.5:
                self.count()
            if self.world.chance.random() < self.pushes:
                self._push()
            count = self.world.chance.choice([1, 1, 2, 5]) if self.batch else 1
            claims = self.claims.take_many(count, LEASE_SECONDS)
            if not claims:
                self._rest()
            for claim in claims:
                self.took(claim)
            if len(claims) > 1 and self.world.chance.random() < 0.5:
                self._finish_together(claims)
                continue
            for claim in claims:
                self._use(claim)

    def count(self) -> None:
        """Count the items, while others finish some."""
        most = self.world.live()
        size, pending = self.claims.count()
        if not self.world.live() <= size <= most:
            raise Violation(f"{size} items counted, where there were {self.world.live()} to {most}")
        if pending > size:
            raise Violation(f"{pending} of {size} items are pending")

    def _finish_together(self, claims: list[Claim]) -> None:
        ids = [claim.lease_id for claim in claims]
        lost = set(self.claims.finish_batch(claims[0].address, ids))
        for claim in claims:
            if claim.lease_id not in lost:
                self._finished(claim)
            self.world.believed.pop((self.number, name_of(claim)), None)

    def _push(self) -> None:
        world = self.world
        address, names, data = new_items(world, self.batch, b"pushed")
        self.store.put([(address.path, data)])
        world.stored.update(names)

    def took(self, claim: Claim) -> None:
        world, item = self.world, name_of(claim)
        world.taken += 1
        if item in world.done:
            raise Violation(f"{item} came back after an accepted done")
        for (client, other), ends in world.believed.items():
            if other == item and client != self.number and world.now < ends:
                raise Violation(f"two live leases on {item}")
        self._believe(claim)

    def _believe(self, claim: Claim) -> None:
        ends = claim.until - self.world.skews[self.number]
        self.world.believed[self.number, name_of(claim)] = ends

    def _use(self, claim: Claim) -> None:
        chance, item = self.world.chance, name_of(claim)
        for _ in range(chance.choice([0, 0, 1, 4])):
            self._rest()
            try:
                self._believe(self.claims.extend(claim.lease_id, LEASE_SECONDS))
            except LeaseExpiredError:
                self.world.believed.pop((self.number, item), None)
                return
        choice = chance.random()
        if choice < 0.2:
            return  # forgets it
        try:
            if choice < 0.8:
                self.claims.finish(claim.lease_id)
                self._finished(claim)
            else:
                # From the request on the worker no longer relies on the lease.
                self.world.believed.pop((self.number, item), None)
                self.claims.release(claim.lease_id, 0.0)
        except LeaseExpiredError:
            pass
        self.world.believed.pop((self.number, item), None)

    def _rest(self) -> None:
        """Work, or wait, for a part of a lease: others look at an end that a later one replaces."""
        self.world.stalled[self.number] = self.world.now + self.world.chance.uniform(0, 0.9 * LEASE_SECONDS)
        self.step(self.number)

    def _finished(self, claim: Claim) -> None:
        item = name_of(claim)
        if item in self.world.done:
            raise Violation(f"two accepted dones of {item}")
        if self.world.finisher.get(item) != claim.record.lease_nonce:
            raise Violation(f"a stale done of {item} was accepted")
        self.world.done.add(item)


class Variant:
    """The protocol as it is; broken ones replace a part."""

    claims: Any = Claims
    listing: Any = Listing
    store: Any = SimStore
    remove_orphans: Any = staticmethod(file_listing.remove_orphans)
    taker_skew: float | None = None
    full: Any = None  # where a producer tells of full buckets
    share = 0.0  # seconds for which clients use a record again
    batch = 0  # how many items are stored together
    items, pushes = 3, 0.3  # files there at the start; chance of a push before each take

    @staticmethod
    def remove(store: Any, payload: str, records: list[str]) -> bool:
        store.delete([payload])
        store.delete(records)
        return True


class Counted(Variant):
    """One client tells that the bucket is full while others take from it, and all count."""

    full = FullBuckets
    pushes = 0.0


class Schedule:
    """One run: clients in threads, of which exactly one moves at a time."""

    def __init__(
        self, seed: int, variant: type[Variant], *, clients: int, skew: float, real_skew: float
    ) -> None:
        self.world = World(seed, skew=real_skew, clients=clients + 1)
        self._turns = [threading.Semaphore(0) for _ in range(clients)]
        self._back = threading.Semaphore(0)
        self._running = set(range(clients))
        self._errors: list[BaseException] = []
        self._variant, self._skew = variant, skew if variant.taker_skew is None else variant.taker_skew
        for _ in range(variant.items):
            address, names, data = new_items(self.world, variant.batch, b"there before")
            self.world.files[address.path] = data
            self.world.stored.update(names)

    def run(self) -> World:
        threads = [threading.Thread(target=self._client, args=(number,)) for number in self._running]
        for thread in threads:
            thread.start()
        while self._running:
            self._move()
        for thread in threads:
            thread.join()
        if self._errors:
            raise self._errors[0]
        self._drain()
        return self.world

    def _move(self) -> None:
        world = self.world
        awake = [client for client in self._running if world.stalled[client] <= world.now]
        world.now += world.chance.expovariate(2.0) if awake else 1.0
        if world.late and world.chance.random() < 0.05:
            world.late.pop(world.chance.randrange(len(world.late)))()
        if awake:
            self._turns[world.chance.choice(sorted(awake))].release()
            self._back.acquire()

    def _step(self, client: int) -> None:
        self._back.release()
        self._turns[client].acquire()

    def _client(self, number: int) -> None:
        self._turns[number].acquire()
        try:
            Client(self.world, number, self._step, self._variant, self._skew).work(6)
        except Crash:
            # A crashed worker relies on nothing.
            for key in [key for key in self.world.believed if key[0] == number]:
                del self.world.believed[key]
        except BaseException as error:
            self._errors.append(error)
        finally:
            self._running.discard(number)
            self._back.release()

    def _drain(self) -> None:
        """A last, faultless client takes what is left: nothing is lost, nothing comes back, no file stays."""
        world = self.world
        for request in world.late:
            request()
        world.now += 10 * file_listing.GRACE
        world.believed.clear()
        world.skews[-1] = 0.0
        world.chance.random = lambda: 0.99  # type: ignore[method-assign]
        whole = Variant if self._variant.full is None else Counted
        last = Client(world, len(world.skews) - 1, lambda client: None, whole, self._skew)
        if last.full is not None:
            last.count()
        drained = set()
        while (claim := last.claims.take(LEASE_SECONDS)) is not None:
            last.took(claim)
            drained.add(name_of(claim))
            last.claims.finish(claim.lease_id)
        gone = world.stored - drained - world.done - world.finishing
        if gone:
            raise Violation(f"lost: {gone}")
        for _ in range(2):
            world.now += 10 * file_listing.GRACE
            last.claims.take(LEASE_SECONDS)
        if world.files:
            raise Violation(f"files stay: {sorted(world.files)}")
