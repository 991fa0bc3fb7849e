"""Dead letters of an engine, in answers of a bounded size."""

from fray_queue._engines.store import EngineStore, Letter

_PAGE = 200  # letters that are listed together, without what they hold


def read_letters(
    store: EngineStore, after: int, most: int | None = None, most_bytes: int | None = None
) -> tuple[list[Letter], int | None]:
    """Return dead letters behind a place in line, and the place to go on from; None where there are no more.

    Args:
        most: How many at most; None for all.
        most_bytes: No letter is read once those before it have as many; None leaves the payloads unread.
    """
    while True:
        listed, following = _listed(store, after, most, most_bytes)
        if most_bytes is None or not listed:
            return listed, following
        letters = store.dead(after, len(listed), payloads=True)
        if following is None:
            return letters, None
        if letters:  # where some were removed since, others behind them came in their stead
            return letters, letters[-1].place
        after = following


def _listed(
    store: EngineStore, after: int, most: int | None, most_bytes: int | None
) -> tuple[list[Letter], int | None]:
    found: list[Letter] = []
    size, place = 0, after
    while letters := store.dead(place, _PAGE, payloads=False):
        for letter in letters:
            if len(found) == most or (most_bytes is not None and size >= most_bytes):
                return found, place
            found.append(letter)
            size, place = size + letter.size, letter.place
    return found, None
