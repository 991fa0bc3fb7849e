"""What a look at a log shows, and how many lines Iris has to serve for it."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from fake_controller import FakeController

from fray import create_cluster

NAME = "/ada/job-1"
LOG = f"{NAME}/0:0"
END = "fray-replica-ended {}"
LONG = 100_000


@pytest.fixture
def cluster(controller: FakeController) -> Any:
    return create_cluster("iris", controller="http://nowhere", user="ada", shared_files=True)


def write(controller: FakeController, count: int, *, ended: bool = True) -> list[str]:
    """Have a job that has written so many lines, line n at second n; some words for Fray are between."""
    controller.add(NAME, "SUCCEEDED" if ended else "RUNNING")
    controller.logs[LOG] = []
    lines = append(controller, count)
    if ended:
        controller.logs[LOG].append((count * 1000, END))
    return lines


def append(controller: FakeController, count: int) -> list[str]:
    log = controller.logs[LOG]
    begin = sum(isinstance(entry, tuple) and entry[1].startswith("line") for entry in log)
    lines = [f"line {number}" for number in range(begin, begin + count)]
    for number, line in enumerate(lines, begin):
        log.append((number * 1000, line))
        if not number % 7:
            log.append((number * 1000, "fray-replica-flush"))
    return lines


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("tail", [0, 3, 700])
def test_a_tail_costs_what_it_shows(cluster: Any, controller: FakeController, tail: int, ended: bool) -> None:
    lines = write(controller, LONG, ended=ended)
    assert list(cluster.monitor("job-1", tail=tail, follow=False)) == lines[LONG - tail :]
    assert controller.served < 600 + 10 * tail


def test_the_lines_since_a_time_cost_what_they_are(cluster: Any, controller: FakeController) -> None:
    lines = write(controller, LONG)
    assert list(cluster.monitor("job-1", since=99_000.0, follow=False)) == lines[99_000:]
    assert controller.served < 5000
    assert list(cluster.monitor("job-1", since=float(LONG + 1), follow=False)) == []
    assert list(cluster.monitor("job-1", since=99_000.0, tail=2, follow=False)) == lines[-2:]
    assert list(cluster.monitor("job-1", since=99_998.0, tail=5, follow=False)) == lines[-2:]
    assert controller.served < 10_000


def test_a_whole_log_is_served_once(cluster: Any, controller: FakeController) -> None:
    lines = write(controller, LONG)
    assert list(cluster.monitor("job-1", follow=False)) == lines
    assert controller.served < len(controller.logs[LOG]) + 1000


def test_a_tail_that_is_longer_than_iris_is_to_send_at_once_is_whole(
    cluster: Any, controller: FakeController
) -> None:
    lines = write(controller, LONG)
    assert list(cluster.monitor("job-1", tail=90_000, follow=False)) == lines[-90_000:]
    assert list(cluster.monitor("job-1", tail=1, grep="line 7$", follow=False)) == ["line 7"]


def grows(controller: FakeController, written: list[str], count: int) -> Callable[[str, Any], None]:
    """Have the program write so many lines after each of the first looks at its log, and then end."""
    looks = iter(range(6))

    def after(method: str, request: Any) -> None:
        if method == "fetch_logs" and (left := next(looks, None)) is not None:
            written.extend(append(controller, count))
            if left == 5:
                controller.logs[LOG].append((0, END))
                controller.add(NAME, "SUCCEEDED")

    return after


@pytest.mark.parametrize("count", [1, 3, 900])
@pytest.mark.parametrize("tail", [0, 2, 600, 3000, None])
@pytest.mark.parametrize("since", [None, 9_500.0])
def test_a_log_that_grows_meanwhile_is_followed_without_a_gap(
    cluster: Any, controller: FakeController, count: int, tail: int | None, since: float | None
) -> None:
    written = write(controller, 10_000, ended=False)
    controller.after = grows(controller, written, count)
    found = list(cluster.monitor("job-1", tail=tail, since=since))
    wanted = written if since is None else written[9_500:]
    assert found == wanted[len(wanted) - len(found) :]
    if tail is None:
        assert found == wanted
    else:  # of what was there at some moment of the first looks, and all that came then
        assert len(found) >= min(tail, len(wanted) - 6 * count)
        assert len(found) <= tail + 6 * count


def test_lines_that_are_alike_are_all_shown(cluster: Any, controller: FakeController) -> None:
    controller.add(NAME, "SUCCEEDED")
    rng = random.Random(1)
    lines = [rng.choice(["", "x", "\u00e9", "x\ty"]) for _ in range(3000)]
    controller.logs[LOG] = [*lines, END]
    for tail in (1, 2, 499, 500, 501, 2999, 3000, 4000):
        assert list(cluster.monitor("job-1", tail=tail, follow=False)) == lines[-tail:]
