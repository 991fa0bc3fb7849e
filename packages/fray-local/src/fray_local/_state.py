"""Where this user's state lives on this machine."""

import os
import sys
from pathlib import Path

from fray import FrayError


def state_dir() -> Path:
    """Return where state lives: `FRAY_STATE_DIR`, else the platform's directory for a user's state.

    Raises:
        FrayError: There is neither.
    """
    given = os.environ.get("FRAY_STATE_DIR")
    if given:
        return Path(given).absolute()
    try:
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Application Support" / "fray"
        states = Path(os.environ.get("XDG_STATE_HOME") or "")
        # Its specification: a path that is not absolute is ignored.
        return (states if states.is_absolute() else Path.home() / ".local" / "state") / "fray"
    except RuntimeError as error:
        raise FrayError(
            "this user has no home directory: set FRAY_STATE_DIR to a folder for the records of jobs"
        ) from error
