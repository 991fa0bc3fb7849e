"""For every test of every package."""

import os
import signal

import pytest
from hypothesis import settings

# The suite asks the same questions at every run: a change is not blamed for what was always
# there. `nox -s torture` asks others each time.
settings.register_profile("repeatable", derandomize=True)
if "TORTURE" not in os.environ:
    settings.load_profile("repeatable")

# A shell without job control starts what it puts in the background with Ctrl-C ignored, and so would be
# all that the tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def no_fray_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the developer's shell says of Fray, a test starts without it."""
    for name in [name for name in os.environ if name.startswith("FRAY_")]:
        monkeypatch.delenv(name)
