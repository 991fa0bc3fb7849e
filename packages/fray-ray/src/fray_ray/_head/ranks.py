"""What a member of a gang finds in its environment on Ray, by the layout that its plan asks for."""

from fray.backend import GangLayout, Meeting, rank_variables
from fray.cluster import TpuConfig
from fray_ray._plan import Plan


def variables_of(plan: Plan, number: int, units: int, meeting: Meeting) -> dict[str, str]:
    """Return the variables of a replica in a gang of so many units."""
    layout = GangLayout(units, plan.hosts, slices=isinstance(plan.resources.device, TpuConfig))
    return rank_variables(layout, number, meeting)
