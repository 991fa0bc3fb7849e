"""HTML as text that cannot be confused with text: whatever is not `Html` is escaped."""

import html
import re
from collections.abc import Iterable

# What would draw over others or turn the reading direction: other users choose names and write logs.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)
_SURROGATES = re.compile("[\ud800-\udfff\ufffe\uffff]")
_EMPTY = frozenset({"br", "hr", "input", "link", "meta"})


class Html(str):
    """Markup that is shown as it is."""

    __slots__ = ()


NOTHING = Html("")
UNKNOWN = "\u2013"
"""What stands for a value that is not known."""
Child = str | int | None


def text(value: object) -> Html:
    """Return a text as markup that shows it: no tag, no control character, no lone surrogate."""
    shown = str(value)
    if not shown.isprintable():  # most are
        shown = _SURROGATES.sub("\ufffd", _CONTROLS.sub("\ufffd", shown.replace("\r\n", "\n")))
    return Html(html.escape(shown, quote=True))


def join(parts: Iterable[Child], between: str = "") -> Html:
    """Return parts one after the other."""
    return Html(
        between.join(part if isinstance(part, Html) else text(part) for part in parts if part is not None)
    )


def tag(name: str, /, *children: Child, **attributes: str | float | bool | None) -> Html:
    """Return an element.

    Args:
        attributes: By name, with `_` for `-` and at the end of a Python keyword; None and False leave one
            out, True is one without a value.
    """
    written = "".join(
        f" {_name(key)}" if value is True else f' {_name(key)}="{text(value)}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _EMPTY:
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{join(children)}</{name}>")


def stranger(name: str) -> Html:
    """Return a name that another user chose: its direction of reading stays its own."""
    return tag("bdi", name)


def shortened(said: str, most: int = 2000) -> str:
    """Return a text, or its beginning and how long it is: a page is not where a megabyte is read."""
    return said if len(said) <= most else f"{said[:most]} … ({len(said):,} characters)"


def _name(key: str) -> str:
    return key.rstrip("_").replace("_", "-")
