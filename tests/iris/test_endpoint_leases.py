"""Endpoints on a controller that forgets those that are not renewed."""

from typing import Any

import pytest
from fake_controller import Code, ConnectError, FakeController

from fray import create_cluster
from fray.testing.cluster import until

NAME = "/ada/job-1"


class Registered:
    """How often each endpoint was registered, by its id."""

    def __init__(self, controller: FakeController) -> None:
        self.counts: dict[str, int] = {}
        self.refused: set[str] = set()
        self.refusals: list[str] = []
        self.away = 0  # requests that are not answered
        controller.before = self.note

    def note(self, method: str, request: Any) -> None:
        if method != "register_endpoint":
            return
        if self.away:
            self.away -= 1
            raise ConnectError(Code.UNAVAILABLE, "away")
        self.counts[request.endpoint_id] = self.counts.get(request.endpoint_id, 0) + 1
        if request.endpoint_id in self.refused:
            self.refusals.append(request.endpoint_id)
            raise ConnectError(Code.FAILED_PRECONDITION, "attempt 0 is no longer current")

    def await_renewals(self, endpoint_id: str, count: int = 3) -> None:
        before = self.counts[endpoint_id]
        until(lambda: self.counts[endpoint_id] >= before + count, "it is renewed")


@pytest.fixture
def iris() -> Any:
    cluster: Any = create_cluster("iris", controller="http://nowhere", user="ada")
    return cluster.iris


@pytest.fixture
def registered(controller: FakeController) -> Registered:
    controller.lease = 30
    return Registered(controller)


def register(iris: Any, name: str) -> str:
    endpoint_id: str = iris.register({"name": f"{NAME}/{name}", "task_id": f"{NAME}/0"})
    return endpoint_id


def test_an_endpoint_is_renewed_under_its_id_until_it_is_removed(
    iris: Any, controller: FakeController, registered: Registered
) -> None:
    first = register(iris, "server")
    registered.await_renewals(first)
    registered.away = 1
    registered.await_renewals(first)
    assert list(controller.endpoints) == [first]
    iris.unregister(first)
    count = registered.counts[first]
    second = register(iris, "server")
    registered.await_renewals(second)
    assert registered.counts[first] <= count + 1  # one may have been on its way
    iris.unregister(second)


def test_an_endpoint_of_an_attempt_that_is_over_is_renewed_no_more(iris: Any, registered: Registered) -> None:
    first, second = register(iris, "server"), register(iris, "other")
    registered.refused.add(first)
    until(lambda: registered.refusals, "the endpoint is refused")
    registered.await_renewals(second)
    assert registered.refusals == [first]
    iris.unregister(second)


def test_a_controller_without_leases_is_asked_once(
    iris: Any, controller: FakeController, registered: Registered
) -> None:
    controller.lease = None
    first = register(iris, "server")
    controller.lease = 30
    second = register(iris, "other")
    registered.await_renewals(second)
    assert registered.counts[first] == 1
    iris.unregister(second)
