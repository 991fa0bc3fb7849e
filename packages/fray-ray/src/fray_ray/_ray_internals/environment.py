"""The variables by which Ray's processes know each other."""

from ray._private.ray_constants import RAY_ADDRESS_ENVIRONMENT_VARIABLE, RAY_INTERNAL_FLAGS
from ray._private.runtime_env.constants import RAY_JOB_CONFIG_JSON_ENV_VAR

ADDRESS: str = RAY_ADDRESS_ENVIRONMENT_VARIABLE
"""Where the head is. Read in Ray 2.60."""
JOB_CONFIG: str = RAY_JOB_CONFIG_JSON_ENV_VAR
"""What Ray gives a job's driver about the job, as JSON; with it a process joins the job. Read in Ray 2.60."""


def is_of_one_process(name: str) -> bool:
    """Whether a variable is one worker's own, and no other process may have it. Read in Ray 2.60."""
    return name in RAY_INTERNAL_FLAGS
