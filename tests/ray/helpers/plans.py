"""Plans of jobs for tests that need no cluster."""

from fray import ResourceConfig
from fray_ray._plan import Plan


def plan(replicas: int = 1, retries: int = 0) -> Plan:
    """Make a plan of the cheapest kind."""
    return Plan(
        job_id="job-1",
        submission="job-1",
        submitted_at=0.0,
        name="job",
        choices=(replicas,),
        hosts=1,
        gang=False,
        resources=ResourceConfig(replicas=replicas),
        labels={},
        command=("true",),
        payload=None,
        environ={},
        secrets=(),
        cwd=None,
        pip=(),
        max_retries_failure=retries,
        max_retries_preemption=0,
        timeout=None,
        placement_timeout=None,
    )
