"""Who has which part of the machine, across all processes that launch jobs on it.

One file under one lock. Every supervisor enters what its job needs and leaves when it is done;
whoever changes the ledger decides for all and wakes those that may start. Entries of processes that
died are dropped by the next one who looks.
"""

import contextlib
import fcntl
import json
import os

from fray_local._supervisor.mailbox import post
from fray_local._supervisor.processes import alive

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    Claim = dict[str, Any]

_KINDS = ("cpu", "ram", "gpu", "slice")


class Ledger:
    """The ledger of a state directory.

    A claim: `job`, `dir` (its record), `process` (its supervisor's identity), `ticket` (when it was
    launched), `child` (whether a job launched it), `need` and `room` (amounts by kind, those that it
    needs none of may be left out), `gpu_ids` (of the machine), and from its entry on `granted` and `gpus`.
    """

    def __init__(self, state_dir: str) -> None:
        self._path = os.path.join(state_dir, "ledger.json")

    def enter(self, claim: "Claim") -> "Claim":
        """Enter a claim, or look again where it is entered; return it as it stands, `granted` or not."""
        with self._claims() as claims:
            if not any(entered["dir"] == claim["dir"] for entered in claims):
                claims.append(claim | {"granted": False, "gpus": []})
        return next(entered for entered in claims if entered["dir"] == claim["dir"])

    def leave(self, job_dir: str) -> None:
        """Give back what a job holds or waits for."""
        with self._claims() as claims:
            claims[:] = [claim for claim in claims if claim["dir"] != job_dir]

    def claims(self) -> "list[Claim]":
        """Return the claims of living supervisors."""
        with self._claims() as claims:
            return list(claims)

    @contextlib.contextmanager
    def _claims(self) -> "Iterator[list[Claim]]":
        """The living claims, locked; what is granted and written afterwards follows from them."""
        lock = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            claims = [claim for claim in self._read() if alive(claim["process"])]
            yield claims
            granted = admit(claims)
            self._write(claims)
        finally:
            os.close(lock)
        for claim in granted:
            post(claim["dir"], "granted")

    def _read(self) -> "list[Claim]":
        try:
            with open(self._path) as file:
                claims: list[Claim] = json.load(file)["claims"]
                return claims
        except (FileNotFoundError, ValueError):
            return []

    def _write(self, claims: "list[Claim]") -> None:
        new = f"{self._path}.new"
        with open(new, "w", opener=_private) as file:
            json.dump({"version": 1, "claims": claims}, file)
        os.replace(new, self._path)


def admit(claims: "list[Claim]") -> "list[Claim]":
    """Grant, in place, every claim whose turn it is and for which there is room; return those.

    In the order of launch; one that must wait keeps what it is short of for itself, so that small
    jobs do not starve a large one. The children of running jobs come first: their parents hold
    resources until they are done, so that waiting behind others would never end.
    """
    held = dict.fromkeys(_KINDS, 0.0)
    taken: set[str] = set()
    for claim in claims:
        if claim["granted"]:
            taken.update(claim["gpus"])
            _add(held, claim["need"])
    granted = []
    for claim in sorted(claims, key=lambda claim: (not claim["child"], claim["ticket"])):
        if claim["granted"]:
            continue
        if short := shortage(claim, held):
            # What waits for more than there is at all keeps nobody else waiting.
            held.update({kind: float("inf") for kind in short if claim["need"][kind] <= claim["room"][kind]})
            continue
        free = [gpu for gpu in claim["gpu_ids"] if gpu not in taken]
        claim["gpus"] = free[: int(claim["need"].get("gpu", 0))]
        claim["granted"] = True
        taken.update(claim["gpus"])
        _add(held, claim["need"])
        granted.append(claim)
    return granted


def shortage(claim: "Claim", held: "dict[str, float]") -> list[str]:
    """Return the kinds of which there is too little left for a claim."""
    return [
        kind
        for kind in _KINDS
        if claim["need"].get(kind) and held[kind] + claim["need"][kind] > claim["room"][kind] + 1e-9
    ]


def explain(claim: "Claim", claims: "list[Claim]") -> str:
    """Say what a claim waits for: how much it needs, how much is free, who has the rest."""
    others = [other for other in claims if other["granted"]]
    held = {kind: sum(other["need"].get(kind, 0) for other in others) for kind in _KINDS}
    # Where there is room and it waits nevertheless, jobs launched before it have the first right.
    kinds = shortage(claim, held) or [kind for kind in _KINDS if claim["need"].get(kind)]
    parts = [
        f"{amount(kind, claim['need'][kind])} ({amount(kind, claim['room'][kind] - held[kind])} "
        f"of {amount(kind, claim['room'][kind])} free)"
        for kind in kinds
    ]
    holders = ", ".join(sorted(other["job"] for other in others)) or "none"
    return f"waiting for {' and '.join(parts)}; running: {holders}"


def amount(kind: str, value: float) -> str:
    """Write an amount as people do: `2 CPUs`, `1.5 GiB`, `1 GPU`, `3 TPU slices`."""
    value = max(value, 0)
    if kind == "ram":
        return f"{value / 2**30:.3g} GiB"
    unit = "TPU slice" if kind == "slice" else kind.upper()
    return f"{value:g} {unit}{'' if value == 1 else 's'}"


def _add(held: "dict[str, float]", need: "dict[str, float]") -> None:
    for kind in _KINDS:
        held[kind] += need.get(kind, 0)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
