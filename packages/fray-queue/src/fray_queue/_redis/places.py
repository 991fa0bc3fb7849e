"""Places in line, which scripts know items by, and the ids that programs know them by."""

from fray_queue._engines.store import token_of


def item_id_at(tag: str, place: bytes) -> str:
    """Return the id of the item at a place of the queue with this tag."""
    return f"{tag}-{int(place, 16)}"


def place_of(tag: str, item_id: str) -> str:
    """Return the place of an item of the queue with this tag; for an item of another queue, one without."""
    of, _, number = item_id.rpartition("-")
    if of != tag or not (number.isascii() and number.isdecimal()):
        return "none"
    return f"{int(number):012x}"


def held_by(lease_id: str) -> tuple[str, str]:
    """Return the place of a lease's item, and the token of the lease."""
    number, token = token_of(lease_id)
    return f"{number:012x}", token
