"""Plans as bytes, as a launcher hands them to the supervisor that it starts."""

from __future__ import annotations

import os

from fray._jobs.records.files import PLAN
from fray._jobs.records.status_file import remove_file
from fray._values.light_tuples import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO

    from fray._jobs.plans.parts import Admission
    from fray._jobs.plans.plan import JobPlan
    from fray._jobs.plans.sweep_plan import SweepPlan
    from fray._jobs.plans.values import Grant


class PackedAdmission(NamedTuple):
    """An `Admission` that is unpickled when it is asked: no replica waits for what it imports."""

    pickled: bytes

    def enter(self) -> Grant | str:
        """See `Admission.enter`."""
        return self._unpacked().enter()

    def leave(self) -> None:
        """See `Admission.leave`."""
        self._unpacked().leave()

    def _unpacked(self) -> Admission:
        admission: Admission = _loads(self.pickled)
        return admission


def packed_plan(plan: JobPlan | SweepPlan) -> bytes:
    """Return a plan as its supervisor is given it: without the payload, which is in the record."""
    import pickle

    if plan.admission is not None:
        plan = plan._replace(admission=PackedAdmission(pickle.dumps(plan.admission)))
    return pickle.dumps(plan._replace(payload=None))


def unpacked_plan(data: bytes) -> JobPlan:
    """Read what `packed_plan` gave."""
    plan: JobPlan = _loads(data)
    return plan


def plan_in(file: BinaryIO) -> JobPlan | None:
    """Read what `packed_plan` gave from a file or a pipe, and nothing behind it; None where it is empty."""
    try:
        from _pickle import load
    except ImportError:
        from pickle import load

    try:
        plan: JobPlan = load(file)
    except EOFError:
        return None
    return plan


def _loads(data: bytes) -> Any:
    # Importing `pickle` takes 3 ms, for its half that is written in Python.
    try:
        from _pickle import loads
    except ImportError:
        from pickle import loads

    return loads(data)


def remove_plan(record: str) -> None:
    """Remove the plan, unless it was handed over: nobody is to start the job again."""
    remove_file(os.path.join(record, PLAN))
