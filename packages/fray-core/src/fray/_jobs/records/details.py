"""What is known of a job beside its state: from its request, and from its record."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fray._jobs.records.record import JobRecord
from fray._values.job_states import JobId, JobInfo
from fray_resources import ResourceConfig


def with_request(info: JobInfo, about: Mapping[str, Any]) -> JobInfo:
    """Add to a job's state what `about_request` returned when it was launched; 0.1.0 wrote less of it."""
    return replace(
        info,
        command=about.get("entrypoint"),
        directory=about.get("directory"),
        resources=_resources(about.get("resources")),
        labels=about.get("labels", {}),
        environment=about.get("environment", {}),
        after=tuple(about.get("after", ())),
        user=about.get("user"),
        commit=about.get("commit"),
        dirty=about.get("dirty"),
    )


def described(record: JobRecord, info: JobInfo) -> JobInfo:
    """Add to a job's state what is in its record."""
    return replace(
        with_request(info, record.request()),
        children=tuple(sorted((child.job_id for child in record.children()), key=_place)),
        logs=tuple(path for each in (record, *record.replicas()) for path in _logs(each.logs)),
    )


def _resources(said: Any) -> ResourceConfig | None:
    """Read the request; None where it was not written, or can no longer be read."""
    if not isinstance(said, dict):
        return None
    try:
        return ResourceConfig.from_dict(said)
    except ValueError:
        return None


def _place(job_id: JobId) -> tuple[int, str]:
    """By which children are in order: the members of a sweep by position."""
    return (0, job_id) if job_id.sweep is None else (int(job_id.leaf), "")


def _logs(folder: Path) -> tuple[str, ...]:
    """The first file of each log, and so the name of all of them."""
    try:
        names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".log"))
    except OSError:
        return ()
    return tuple(os.fspath(folder / name) for name in names)
