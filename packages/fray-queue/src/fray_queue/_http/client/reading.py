"""Reading what a server answered. A proxy may answer in its place, with success and a page of its own."""

import json
from typing import Any

from fray_queue._errors import DamagedError
from fray_queue._http.protocol.wire import unpack

_MOST_SHOWN = 100  # bytes


def read_fields(answer: bytes, *names: str) -> dict[str, Any]:
    """Read an answer in JSON, which has these fields.

    Raises:
        DamagedError: It was not a queue server that answered.
    """
    try:
        fields = json.loads(answer)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict) or not fields.keys() >= set(names):
        raise DamagedError(
            f"the answer is not that of a queue server, so nothing is known to be done: "
            f"{answer[:_MOST_SHOWN]!r}; look what answers at the queue's address"
        )
    return fields


def read_records(answer: bytes) -> list[tuple[dict[str, Any], bytes]]:
    """Read an answer that has payloads.

    Raises:
        DamagedError: It did not arrive as a server sent it.
    """
    try:
        return unpack(answer)
    except ValueError as error:
        raise DamagedError(f"the server's answer is damaged: {error}") from error
