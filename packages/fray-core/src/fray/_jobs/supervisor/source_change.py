"""Whether a job that has waited runs what was launched: a child of its supervisor compares the source."""

from __future__ import annotations

import os

from fray._jobs.processes.spawn import start_function

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fray._jobs.plans.plan import JobPlan
    from fray._jobs.processes.control_group import ControlGroup

_CHANGED = "changed"  # the file of the record in which the child writes what it found


def start_comparison(record: str, plan: JobPlan, group: ControlGroup | None) -> int:
    """Start the child, and return its process id.

    Raises:
        OSError: It could not be started.
    """

    def compare() -> None:
        from pathlib import Path

        from fray._jobs.plans.snapshots import SourceState, change_since
        from fray._jobs.records.predecessors import folder_of_records

        state = SourceState(commit=plan.commit)
        own = [folder_of_records(record, plan.job_id), plan.environ.get("FRAY_STATE_DIR")]
        change = change_since(plan.workspace, state, plan.submitted_at, [Path(each) for each in own if each])
        if change is not None:
            with open(os.path.join(record, _CHANGED), "w") as file:
                file.write(change)

    output = os.open(os.path.join(record, "supervisor.log"), os.O_WRONLY | os.O_APPEND)
    try:
        return start_function(compare, plan.workspace, output, group)
    finally:
        os.close(output)


def change_found(record: str) -> str | None:
    """Return what has changed since the launch, once the child has ended; None where nothing has."""
    try:
        with open(os.path.join(record, _CHANGED)) as file:
            return file.read()
    except OSError:  # nothing has changed, as a rule
        return None
