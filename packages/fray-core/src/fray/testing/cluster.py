"""The promises of a cluster, one test each; a backend subclasses the contract and gives `spec`.

    class TestMyCluster(ClusterContract):
        @pytest.fixture
        def spec(self) -> str:
            return "mine?address=127.0.0.1:4000"

The tests open `create_cluster(spec)`, here and in other processes, and use nothing but the public
interface. They launch commands and functions that run within seconds, request 4 CPUs at most, and
expect jobs to see the files that the tests see. What a cluster can do beyond the rest, or cannot do, it
declares in the class attributes of `ClusterFixtures`.
"""

import pytest

_PARTS = (
    "dependencies",
    "events",
    "faults",
    "fixtures",
    "gangs",
    "life",
    "listing",
    "ports",
    "reading",
    "requests",
    "stopping",
    "sweeps",
)
pytest.register_assert_rewrite(*(f"fray.testing.cluster_{part}" for part in _PARTS))

from fray.testing.cluster_dependencies import DependencyContract  # noqa: E402
from fray.testing.cluster_events import JobEventsContract  # noqa: E402
from fray.testing.cluster_faults import DirectoryContract  # noqa: E402
from fray.testing.cluster_fixtures import ClusterFixtures, launch, program, until  # noqa: E402
from fray.testing.cluster_gangs import GangContract  # noqa: E402
from fray.testing.cluster_life import (  # noqa: E402
    EnvironmentContract,
    FailureContract,
    LaunchContract,
    ReplicaContract,
)
from fray.testing.cluster_listing import ListContract  # noqa: E402
from fray.testing.cluster_ports import EndpointContract, PortContract  # noqa: E402
from fray.testing.cluster_reading import (  # noqa: E402
    LogContract,
    SecretContract,
    UnsupportedContract,
    WaitContract,
)
from fray.testing.cluster_requests import ForgettingContract, RequestContract  # noqa: E402
from fray.testing.cluster_stopping import FamilyContract, SharingContract, TerminateContract  # noqa: E402
from fray.testing.cluster_sweeps import RetryContract, SweepContract  # noqa: E402

__all__ = [
    "ClusterContract",
    "ClusterFixtures",
    "DependencyContract",
    "DirectoryContract",
    "EndpointContract",
    "EnvironmentContract",
    "FailureContract",
    "FamilyContract",
    "ForgettingContract",
    "GangContract",
    "JobEventsContract",
    "LaunchContract",
    "ListContract",
    "LogContract",
    "PortContract",
    "ReplicaContract",
    "RequestContract",
    "RetryContract",
    "SecretContract",
    "SharingContract",
    "SweepContract",
    "TerminateContract",
    "UnsupportedContract",
    "WaitContract",
    "launch",
    "program",
    "until",
]


class ClusterContract(
    LaunchContract,
    ReplicaContract,
    EnvironmentContract,
    FailureContract,
    TerminateContract,
    FamilyContract,
    SharingContract,
    WaitContract,
    LogContract,
    SecretContract,
    UnsupportedContract,
    RequestContract,
    ForgettingContract,
    ListContract,
    DependencyContract,
    SweepContract,
    RetryContract,
    PortContract,
    EndpointContract,
    JobEventsContract,
):
    """Everything; a backend may also take the areas one by one."""
