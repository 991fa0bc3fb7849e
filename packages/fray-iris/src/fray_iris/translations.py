"""How Fray's requests, resources, states and names read in Iris, and back; nothing here needs Iris."""

from fray_iris._ids import IrisTask, iris_name, job_id_of, keyed_id
from fray_iris._requests import IrisLaunch, about_of, launch_of, native_options
from fray_iris._resources import (
    constraints_to_iris,
    coscheduling_to_iris,
    resources_from_iris,
    resources_to_iris,
)
from fray_iris._states import how_it_ended, job_info, task_status

__all__ = [
    "IrisLaunch",
    "IrisTask",
    "about_of",
    "constraints_to_iris",
    "coscheduling_to_iris",
    "how_it_ended",
    "iris_name",
    "job_id_of",
    "job_info",
    "keyed_id",
    "launch_of",
    "native_options",
    "resources_from_iris",
    "resources_to_iris",
    "task_status",
]
