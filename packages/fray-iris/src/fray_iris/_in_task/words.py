"""The words between a replica and its launcher: what its lines begin with, where it is asked to end."""

import re

END = "fray-replica-ended "
STATE = "fray-replica-state "
FLUSH = "fray-replica-flush"
SAID = "fray-said"
"""The last part of the names of endpoints by which replicas say what else their status says."""
PLAN = "_fray_plan.json"
"""The file beside the archive that describes what to run."""
HIDDEN_VARIABLE = "FRAY_SECRET_"
"""With a number behind it: a piece of a JSON object with a request's variables. Iris shows the values of
variables in its answers and on its page, but for those whose names look secret."""
# Where a command that Iris runs beside the task looks, whatever TMPDIR is.
_PLACE = "/tmp/fray-iris-"  # noqa: S108


def place_of(task: str, attempt: int) -> str:
    """Return the folder by which an attempt is asked to end."""
    return _PLACE + re.sub(r"[^A-Za-z0-9]+", "-", f"{task}.{attempt}").strip("-")[-150:]
