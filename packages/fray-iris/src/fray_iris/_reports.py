"""What a replica reports of itself where Iris has no field for it: a line of JSON after a marker.

The word and the line are written by `_in_task`, which runs alone in a task of Iris. Iris keeps the last line
on stderr of a task that failed in the error of its attempt, and a summary that a task may set in its status.
"""

import json
from collections.abc import Mapping
from typing import Any

from fray_iris._in_task.words import END, FLUSH, STATE

HIDDEN = (END, FLUSH)
"""What the lines begin with that are for this package, and no part of a job's log."""


def read_report(text: str, word: str) -> Mapping[str, Any]:
    """Return what stands behind a word in a text; nothing where it is not there, or cut off."""
    _, found, rest = text.partition(word)
    if not found:
        return {}
    try:
        value, _ = json.JSONDecoder().raw_decode(rest)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def end_of(text: str) -> Mapping[str, Any]:
    """Return how a replica reported that it ended: `reason`, `exit_code`, `message`."""
    return read_report(text, END)


def state_of(text: str) -> Mapping[str, Any]:
    """Return the report of a running replica: its `ports`, or how it `ended` while it waits for others."""
    return read_report(text, STATE)
