"""How long an interrupted call of an HttpQueue is held up until what it was granted is given back."""

import pytest

from fray_queue import HttpQueue


def give_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let it take as long as a busy machine needs, for tests of what is given back, not of the time."""
    client = HttpQueue.__module__.rpartition(".")[0]
    for module in ("network", "loop_network"):
        monkeypatch.setattr(f"{client}.{module}.LAST_WORDS", 30.0)
