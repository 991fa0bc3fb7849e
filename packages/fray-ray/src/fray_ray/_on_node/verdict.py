"""How an attempt ended: its process supervisor says it, or the guardian of that; its actor reads it."""

import json
import sys
from typing import Any


def write_verdict(verdict: dict[str, Any]) -> None:
    """Say how the attempt ended, in a line of stderr."""
    # The line before it may lack its end: its writer was killed, or it is a warning of Python's.
    sys.stderr.write(f"\n{json.dumps(verdict)}\n")
    sys.stderr.flush()


def verdict_in(words: str, code: int) -> dict[str, Any]:
    """Return how an attempt ended.

    Args:
        words: What the process supervisor wrote, and then its guardian; none where both were killed. The
            first whole verdict counts: a supervisor that is killed after it had seen the end of all.
        code: Of the process that was to start these.
    """
    lines = words.split("\n")
    for line in lines:
        if (verdict := _read(line)) is not None:
            return verdict
    others = "\n".join(line for line in lines if line and not line.startswith("{"))
    if not others and code < 0:
        others = f"the process that was to keep it was ended by signal {-code}"
    return {"lost": others or "the processes that kept it are gone, and none has said why"}


def _read(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    try:
        return dict(json.loads(line))
    except ValueError:  # it was cut off
        return None
