"""Files of a FileQueue that cannot be read, and those that are not the queue's."""

from dataclasses import dataclass

from fray_queue._errors import DamagedError
from fray_queue._file.claims import Claims
from fray_queue._file.listing import Spot
from fray_queue._file.records import DAMAGED, is_bucket, parse_file
from fray_queue._file.stores.store import MARKER, Store


@dataclass(frozen=True, slots=True)
class Damage:
    """A file that a queue leaves alone.

    Args:
        path: Where it is, below the queue's folder.
        problem: `foreign`, `damaged record` or `damaged item`.
        item_id: The item that it belongs to, if it does.
        restored: Whether that item was put back.
    """

    path: str
    problem: str
    item_id: str | None = None
    restored: bool = False


def find_damage(store: Store, claims: Claims, *, restore: bool) -> list[Damage]:
    """Read every file of a queue; put items back whose history cannot be read, where that is requested."""
    return [*_strangers(store), *_damaged(claims, restore=restore)]


def _strangers(store: Store) -> list[Damage]:
    found: list[Damage] = []
    for name in sorted(store.names("")):
        if is_bucket(name):
            files = [f"{name}/{file}" for file in sorted(store.names(name)) if parse_file(file) is None]
            found += [Damage(path, "foreign") for path in files]
        elif name != MARKER and not name.startswith("."):
            found.append(Damage(name, "foreign"))
    return found


def _damaged(claims: Claims, *, restore: bool) -> list[Damage]:
    found: list[Damage] = []
    restored: dict[str, bool] = {}  # a batch has one record for all its items
    for spot, _ in claims.survey():
        item_id = spot.address.item_id(spot.index)
        if spot.record is not None and spot.record.kind == DAMAGED:
            path = spot.address.record(spot.number)
            if path not in restored:
                restored[path] = restore and claims.restore(spot)
            found.append(Damage(path, "damaged record", item_id, restored[path]))
        if _is_damaged(claims, spot):
            found.append(Damage(spot.address.path, "damaged item", item_id))
    return found


def _is_damaged(claims: Claims, spot: Spot) -> bool:
    try:
        claims.payload(spot)
    except DamagedError:
        return True
    return False
