"""What the scheduler needs to have Ray run a job; as JSON, it travels apart from the job's plan."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fray_ray._reading import UNREADABLE
from fray_ray._scheduler import VERSION


@dataclass(frozen=True, kw_only=True)
class QueuedJob:
    """A job that waits for its turn.

    Args:
        command: What Ray runs for it on the head.
        metadata: That of its entry in Ray's job table.
        runtime_env: The environment of the job, whose workspace is uploaded.
        previous_run: The run of the job before this one, whose plan this one has; None for the first.
        version: Of Fray: its scheduler takes the job.
    """

    command: str
    metadata: Mapping[str, str]
    runtime_env: Mapping[str, Any]
    previous_run: str | None = None
    version: str = VERSION

    def to_json(self) -> bytes:
        """Return it as it travels."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "QueuedJob | None":
        """Return what travelled; None where it is not a queued job, or one of another version."""
        try:
            said = json.loads(data)
            found = cls(**said)
        except UNREADABLE:
            return None
        return found if found.version == VERSION else None


def metadata_of(data: bytes | None) -> Mapping[str, str] | None:
    """Return the metadata of a queued job of any version; None where there is none."""
    try:
        metadata = json.loads(data or b"null")["metadata"]
    except UNREADABLE:
        return None
    return metadata if isinstance(metadata, dict) else None
