"""The tables of older spellings, for the tests that try each row and for the page that lists them."""

import pytest

from fray._legacy import ALIASES, OLDER_CALLS, OLDER_MODULES, OLDER_NAMES, REPLACED, Call
from fray._values import older

__all__ = ["ALIASES", "OLDER_CALLS", "OLDER_MODULES", "OLDER_NAMES", "REPLACED", "Call", "forget_warnings"]


def forget_warnings(patch: pytest.MonkeyPatch) -> None:
    """Have no older spelling warned of yet, until the patch is undone."""
    patch.setattr(older, "_warned", set())
