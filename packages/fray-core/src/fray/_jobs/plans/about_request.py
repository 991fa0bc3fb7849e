"""What may be shown of a request, with what there is to know of its launch."""

import os
import pwd
from pathlib import Path
from typing import Any

from fray._jobs.plans.snapshots import source_state
from fray._values.jobs import JobRequest


def about_request(request: JobRequest, workspace: Path) -> dict[str, Any]:
    """Return what may be shown of a request, with what there is to know of its launch."""
    source = source_state(workspace)
    return {
        **request.to_dict(),
        "directory": os.fspath(workspace),
        "user": _user(),
        "commit": source.commit,
        "dirty": source.dirty,
    }


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # in a container, say
        return str(os.getuid())
