"""What a supervisor gives back and tidies up when its job has ended."""

from __future__ import annotations

import sys

from fray._values.job_words import JobStatus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fray._jobs.plans.plan import JobPlan


def leave_room(plan: JobPlan) -> None:
    """Give back what a job holds of the machine; where that cannot be written, its end gives it back."""
    if plan.admission is not None:
        try:
            plan.admission.leave()
        except OSError as error:
            _note(f"its room was not given back: {error}")


def settle_plan(record: str, plan: JobPlan, status: JobStatus) -> None:
    """Keep the plan of a job that did not succeed: it may be run again. One that succeeded needs none."""
    succeeded = status is JobStatus.SUCCEEDED
    if succeeded and not plan.kept:
        return  # as a rule: what follows imports `pickle`, which takes as long as all the rest of an end
    from fray._jobs.records.kept_plans import drop_plan, keep_plan

    if succeeded:
        drop_plan(record)
    else:
        keep_plan(record, plan)


def _note(text: str) -> None:
    """Write to supervisor.log, which may be on a disk that is full."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        return
