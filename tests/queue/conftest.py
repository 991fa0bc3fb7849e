"""What the queue tests share."""

import os
import sys
from pathlib import Path

import pytest
import uvloop

from fray.testing.leaks import leaks_nothing, own_temporary_folder, process_wide  # noqa: F401

# gcsfs would ask every bucket for its layout over gRPC, which no emulator speaks, for a minute each.
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
# libuv opens one pipe in a process, with the first loop, and keeps it: it is no test's.
uvloop.new_event_loop().close()
sys.path.insert(0, str(Path(__file__).parent / "helpers"))


@pytest.fixture
def torture() -> int:
    """How many times as long the torture tests run: the variable TORTURE, which `nox -s torture` sets."""
    return int(os.environ.get("TORTURE", "1"))
