"""What a cluster does not declare it refuses, without a line of its author's."""

from collections.abc import Iterable
from typing import Any

import pytest

from fray import UnsupportedError
from fray.backend import ClusterCapabilities
from fray.cluster import ClusterBase, Entrypoint, JobInfo, JobPlan, JobRequest


class SmallCluster(ClusterBase):
    """Declares nothing but what it is given, and keeps what is submitted."""

    def __init__(self, **declared: Any) -> None:
        super().__init__("small")
        self.capabilities = ClusterCapabilities(**declared)
        self.submitted: list[JobPlan] = []

    def _submit(self, plan: JobPlan) -> None:
        self.submitted.append(plan)

    def _info(self, job_id: str) -> JobInfo | None:
        return None

    def _ids(self) -> Iterable[str]:
        return []

    def _read_log(self, job_id: str, replica: int | None, attempt: int, offset: int) -> bytes:
        return b""

    def _stop(self, job_id: str, grace: float) -> None:
        pass


@pytest.mark.parametrize(
    ("capability", "field", "value"), [("gangs", "gang", True), ("retries", "max_retries_failure", 2)]
)
def test_what_is_not_declared_is_refused_at_launch(capability: str, field: str, value: Any) -> None:
    request = JobRequest("asks", Entrypoint.from_binary("true"), **{field: value})
    small = SmallCluster()
    with pytest.raises(UnsupportedError, match=rf"SmallCluster: .*{field.partition('_')[0]}.*'asks'"):
        small.launch(request)
    assert small.submitted == []
    able = SmallCluster(**{capability: True})
    able.launch(request)
    assert len(able.submitted) == 1
