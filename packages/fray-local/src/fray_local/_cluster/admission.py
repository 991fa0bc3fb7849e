"""Which job has which part of the machine, across all processes that launch jobs on it.

One file for each start of the machine, under one lock. Every supervisor enters what its job needs and leaves
when it is done; the process that changes the file decides for all and wakes those that may
start. Claims of processes that are gone are dropped by the next reader.
"""

from __future__ import annotations

import os

from fray.backend import (
    Grant,
    Liveness,
    NamedTuple,
    boot_id,
    liveness_of,
    post_to_supervisor,
    release_lock,
    replace_file,
    to_json,
    wait_for_lock,
)

TYPE_CHECKING = False  # a supervisor loads this, and imports little
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

_KINDS = ("cpu", "ram", "gpu", "slice")


class Amounts(NamedTuple):
    """So much of each kind of thing."""

    cpu: float = 0
    ram: float = 0
    gpu: float = 0
    slice: float = 0

    def of(self, kind: str) -> float:
        """Return the amount of one kind."""
        amount: float = getattr(self, kind)
        return amount

    def plus(self, other: Amounts) -> Amounts:
        """Return the sum."""
        return Amounts(*(self.of(kind) + other.of(kind) for kind in _KINDS))


class Claim(NamedTuple):
    """What a job needs of what there is.

    Args:
        record: The directory of its record, whose lock says whether its supervisor lives.
        child: Whether a job launched it.
        ticket: When it was launched.
        gpu_ids: The GPUs of the machine.
        gpus: Those that are its own, once it is granted.
    """

    job: str
    record: str
    child: bool
    ticket: float
    need: Amounts
    room: Amounts
    gpu_ids: tuple[str, ...] = ()
    granted: bool = False
    gpus: tuple[str, ...] = ()

    @property
    def alive(self) -> bool:
        """Whether its supervisor lives; of one that is about to start, its launcher holds the lock."""
        return liveness_of(os.path.join(self.record, "lock")) in (Liveness.ALIVE, Liveness.UNKNOWN)


class MachineRoom(NamedTuple):
    """Where a job of this machine waits for room; an `Admission`.

    Args:
        state_dir: Where the claims are kept.
    """

    state_dir: str
    claim: Claim

    def enter(self) -> Grant | str:
        """Request room, or request it again."""
        entered = AdmissionFile(self.state_dir).enter(self.claim)
        if entered.granted:
            return Grant(entered.gpus)
        return explain(entered, AdmissionFile(self.state_dir).claims())

    def enter_at_launch(self) -> Grant | None:
        """Request room, as a launcher does; None where there is none yet."""
        entered = AdmissionFile(self.state_dir).enter(self.claim)
        return Grant(entered.gpus) if entered.granted else None

    def leave(self) -> None:
        """Give back the room, or the place in line."""
        AdmissionFile(self.state_dir).leave(self.claim.record)


class AdmissionFile(NamedTuple):
    """The claims of a state directory."""

    state_dir: str

    @property
    def path(self) -> str:
        """Where they are: claims of another start of the machine, or of another machine, are not ours."""
        return os.path.join(self.state_dir, f"claims.{boot_id()[:13]}.json")

    def enter(self, claim: Claim) -> Claim:
        """Enter a claim, or look again where it is entered; return it as it stands, granted or not."""

        def add(claims: list[Claim]) -> None:
            if not any(entered.record == claim.record for entered in claims):
                claims.append(claim)

        lock = self._lock()
        try:
            claims, granted = self._change(add)
        finally:
            release_lock(lock)
        _tell(granted)
        return next(entered for entered in claims if entered.record == claim.record)

    def leave(self, record: str) -> None:
        """Give back what a job holds or waits for."""

        def remove(claims: list[Claim]) -> None:
            claims[:] = [claim for claim in claims if claim.record != record]

        lock = self._lock()
        try:
            granted = [] if self._clear_where_alone(record) else self._change(remove)[1]
        finally:
            release_lock(lock)
        _tell(granted)

    def claims(self) -> list[Claim]:
        """Return the claims of living supervisors; changes nothing."""
        return [claim for claim in self._read() if claim.alive]

    def _lock(self) -> int:
        return wait_for_lock(f"{self.path}.lock")

    def _change(self, change: Callable[[list[Claim]], None]) -> tuple[list[Claim], list[Claim]]:
        """Let a function change the living claims; return them, and those that were granted by that."""
        before = self._read()
        claims = [claim for claim in before if claim.alive]
        change(claims)
        granted = admit(claims)
        if claims != before:
            self._write(claims)
        return claims, granted

    def _clear_where_alone(self, record: str) -> bool:
        """Remove the claim of a job that is the only one: its end would wait for the import of `json`."""
        try:
            with open(self.path) as file:
                _, row, *others = file.read().splitlines()
        except (OSError, ValueError):
            return False
        # All of the path: the members of every sweep are called 0, 1, 2, ...
        alone = len(others) == 1 and f'"record": {to_json(record)}, "child"' in row
        if alone:
            replace_file(self.path, b"[]")
        return alone

    def _read(self) -> list[Claim]:
        import json

        try:
            with open(self.path) as file:
                rows = list(json.load(file))
        except (FileNotFoundError, ValueError, TypeError):
            return []
        # Each by itself: a row that is damaged must not free what the jobs of the others hold.
        return [claim for claim in map(_claim_of, rows) if claim is not None]

    def _write(self, claims: list[Claim]) -> None:
        import json

        rows = ",\n".join(json.dumps(_data_of(claim)) for claim in claims)
        replace_file(self.path, f"[\n{rows}\n]\n".encode())


def _tell(granted: list[Claim]) -> None:
    for claim in granted:
        post_to_supervisor(claim.record, "granted")


def admit(claims: list[Claim]) -> list[Claim]:
    """Grant, in place, every claim whose turn it is and for which there is room; return those.

    In the order of launch; one that must wait keeps what it is short of for itself, so that small
    jobs do not starve a large one. The children of running jobs come first: their parents hold
    resources until they are done, so that waiting behind others would never end.
    """
    running = [claim for claim in claims if claim.granted]
    held, taken = held_by(running)
    parents = {claim.job: claim for claim in running}
    granted = []
    for place, claim in sorted(enumerate(claims), key=lambda each: (not each[1].child, each[1].ticket)):
        if claim.granted:
            continue
        if short := shortage(claim, held, taken):
            # What does not fit beside the job's own parents cannot be granted while they run, and what is
            # larger than the machine never can. So it does not block the others.
            if not shortage(claim, *held_by(ancestors(claim, parents))):
                held = held._replace(**dict.fromkeys(short, float("inf")))
                taken.update(claim.gpu_ids if "gpu" in short else ())
            continue
        free = [gpu for gpu in claim.gpu_ids if gpu not in taken]
        own = tuple(free[: int(claim.need.gpu)])
        claims[place] = claim._replace(gpus=own, granted=True)
        taken.update(own)
        held = held.plus(claim.need)
        granted.append(claims[place])
    return granted


def held_by(claims: Iterable[Claim]) -> tuple[Amounts, set[str]]:
    """Return how much some granted claims hold, and which GPUs."""
    held, taken = Amounts(), set[str]()
    for claim in claims:
        taken.update(claim.gpus)
        held = held.plus(claim.need)
    return held, taken


def ancestors(claim: Claim, running: dict[str, Claim]) -> list[Claim]:
    """Of the running jobs, by their ids, return those that launched this one: its parent and those above."""
    names = claim.job.split("/")
    above = ("/".join(names[:depth]) for depth in range(1, len(names)))
    return [running[job] for job in above if job in running]


def shortage(claim: Claim, held: Amounts, taken: set[str]) -> list[str]:
    """Return the kinds of which there is too little left for a claim.

    Args:
        taken: The GPUs that others have, or wait for.
    """
    needed = ((kind, claim.need.of(kind)) for kind in _KINDS)
    return [kind for kind, need in needed if need and need > left_for(claim, kind, held, taken) + 1e-9]


def left_for(claim: Claim, kind: str, held: Amounts, taken: set[str]) -> float:
    """Return how much of a kind is left of what a claim may have."""
    if kind != "gpu" or not claim.gpu_ids:
        return claim.room.of(kind) - held.of(kind)
    # Another launcher may use other GPUs. One that is named otherwise (by an UUID) may be any of these.
    numbered = claim.gpu_ids[0].isdecimal()
    own = sum(gpu not in taken for gpu in claim.gpu_ids)
    return own - sum(gpu.isdecimal() is not numbered for gpu in taken)


def explain(claim: Claim, claims: list[Claim]) -> str:
    """Describe what a claim waits for: how much it needs, how much is free, which jobs have the rest."""
    others = [other for other in claims if other.granted]
    held, taken = held_by(others)
    # Where there is room and it waits nevertheless, jobs launched before it have the first right.
    kinds = shortage(claim, held, taken) or [kind for kind in _KINDS if claim.need.of(kind)]
    parts = [
        f"{amount(kind, claim.need.of(kind))} ({amount(kind, left_for(claim, kind, held, taken))} "
        f"of {amount(kind, claim.room.of(kind))} free)"
        for kind in kinds
    ]
    holders = ", ".join(sorted(other.job for other in others)) or "none"
    above = ancestors(claim, {other.job: other for other in others})
    holds = [
        f"its parent {parent.job} holds {amount(kind, parent.need.of(kind))}"
        for kind in shortage(claim, *held_by(above))
        for parent in above
        if parent.need.of(kind)
    ]
    never = f"; it cannot start while {' and '.join(holds)}" if holds else ""
    return f"waiting for {' and '.join(parts)}; running: {holders}{never}"


def amount(kind: str, value: float) -> str:
    """Write an amount as people do: `2 CPUs`, `1.5 GiB`, `1 GPU`, `3 TPU slices`."""
    value = max(value, 0)
    if kind == "ram":
        return f"{value / 2**30:.3g} GiB"
    unit = "TPU slice" if kind == "slice" else kind.upper()
    return f"{value:g} {unit}{'' if value == 1 else 's'}"


def _data_of(claim: Claim) -> dict[str, object]:
    return {**claim._asdict(), "need": claim.need._asdict(), "room": claim.room._asdict()}


def _claim_of(data: Any) -> Claim | None:
    """Return the claim of a row, without what only a later Fray knows of it; None where it is damaged."""
    try:
        values = {name: data[name] for name in Claim._fields if name in data}
        lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        amounts = {name: _amounts_of(values[name]) for name in ("need", "room")}
        return Claim(**values | lists | amounts)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _amounts_of(data: dict[str, float]) -> Amounts:
    return Amounts(**{kind: float(value) for kind, value in data.items() if kind in _KINDS})
