"""The pages of queues: a server's own, and the same ones in `fray ui`."""

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Page
from clusters import StubCluster

from fray.backend import UiServer
from fray.queue import open_queue
from fray_queue import HttpQueue, HttpQueueServer, Limits

TOKEN = "page-token"
SCRIPT = "<script>document.title='pwned'</script>"
HOSTILE = f"{SCRIPT}\u202e&amp;'\""
pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def queues() -> Iterator[HttpQueueServer]:
    with HttpQueueServer(token=TOKEN, limits=Limits(queues=20_000)) as server:
        yield server


@pytest.fixture(params=["own", "ui"])
def opened(request: pytest.FixtureRequest, page: Page, queues: HttpQueueServer) -> Iterator[Page]:
    """The page of queues: of the server itself, and as a part of `fray ui`."""
    if request.param == "own":
        show_own(page, queues)
        yield page
        page.driver.execute_cdp_cmd("Network.setExtraHTTPHeaders", {"headers": {}})
        return
    server = HttpQueue.server(queues.url, TOKEN)
    with UiServer({"stub": StubCluster()}, queues={"tests": server}) as ui:
        page.open(ui, "queues")
        yield page
    server.close()


def show_own(page: Page, queues: HttpQueueServer) -> None:
    """Do what the browser does after its user typed the token as a password."""
    credentials = base64.b64encode(f":{TOKEN}".encode()).decode()
    page.driver.execute_cdp_cmd("Network.enable", {})
    headers = {"headers": {"Authorization": f"Basic {credentials}"}}
    page.driver.execute_cdp_cmd("Network.setExtraHTTPHeaders", headers)
    page.base = f"{queues.url}/"
    page.driver.get(page.base)


def cell(page: Page, queue: str, label: str) -> str:
    return page.text(f"[data-key='{queue}'] [data-label='{label}']").removeprefix(label).strip()


def kill(queue: Any, *reasons: str) -> None:
    """Make dead letters, one for each reason."""
    for reason in reasons:
        queue.push(reason)
        lease = queue.pop()
        queue.release(lease, error=ValueError(reason))


def test_the_page_shows_changes_and_dead_letters_with_their_errors(
    opened: Page, queues: HttpQueueServer
) -> None:
    opened.shows("No queues yet")
    queue = queues.new_queue("tasks", max_attempts=1)
    opened.until(lambda: cell(opened, "tasks", "waiting") == "0")
    kill(queue, HOSTILE, "second\nwith more of it", "third")
    queue.push_many(range(7))
    opened.until(lambda: cell(opened, "tasks", "waiting") == "7")
    opened.until(lambda: cell(opened, "tasks", "dead") == "3")
    assert queue.pop() is not None
    opened.until(lambda: cell(opened, "tasks", "in flight") == "1")
    opened.find("[data-key='tasks'] a").click()
    opened.shows("3 shown")
    opened.until(lambda: len(opened.all("tbody tr")) == 3)
    assert SCRIPT in opened.text("tbody")
    opened.click(lambda: opened.find("summary"))
    opened.shows("with more of it", "tbody")
    queue.push("one more")
    opened.until(lambda: opened.text("dl.facts dd") == "7")
    opened.shows("with more of it", "tbody")  # what was opened stays open
    opened.press("Requeue")
    opened.shows("Requeue: 1", "#notice")
    opened.until(lambda: len(opened.all("tbody tr")) == 2)
    opened.press("Delete all")
    opened.shows("No dead letters")
    assert queue.stats()["dead"] == 0
    assert queue.pending() == 8
    assert "pwned" not in opened.driver.title
    assert opened.complaints() == []


def test_what_the_server_refuses_is_said(opened: Page, queues: HttpQueueServer) -> None:
    queue = queues.new_queue("tasks", max_attempts=1)
    kill(queue, "bad")
    opened.go("queue?name=tasks")
    opened.shows("1 shown")
    queue.delete()
    opened.press("Requeue all")
    opened.shows("Requeue all was refused", "#problem")
    opened.shows("tasks", "#problem")


def test_ten_thousand_queues(page: Page, queues: HttpQueueServer) -> None:
    make_many(queues, 10_000)
    kill(queues.new_queue("q-00077", max_attempts=1), "x")
    queues.new_queue("q-09999", max_attempts=1).push_many(range(5))
    show_own(page, queues)
    page.shows("1 to 100 of 10,000 queues")
    assert len(page.all("tbody tr")) == 100
    assert page.script("return document.documentElement.outerHTML.length") < 150_000
    page.find("#q").send_keys("q-0007")
    page.until(lambda: len(page.all("tbody tr")) == 10)
    page.click(lambda: page.all("main .chip")[2])
    page.until(lambda: [row.get_attribute("data-key") for row in page.all("tbody tr")] == ["q-00077"])
    page.find("#q").clear()
    page.find("#q").send_keys("q-09999")
    page.shows("None of 10,000 queues fits")
    page.click(lambda: page.all("main .chip")[1])
    page.until(lambda: cell(page, "q-09999", "waiting") == "5")
    page.driver.execute_cdp_cmd("Network.setExtraHTTPHeaders", {"headers": {}})


def make_many(queues: HttpQueueServer, count: int) -> None:
    server = HttpQueue.server(queues.url, TOKEN)
    for number in range(count):
        server.ask("PUT", f"/queues/q-{number:05}", {"max_attempts": 1})
    server.close()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [420, 1600])
def test_pages_of_queues_fit(
    page: Page, queues: HttpQueueServer, width: int, screenshot: Callable[[str], Path], *, dark: bool
) -> None:
    show_own(page, queues)
    long = "a-name-that-goes-on-" + "and-on-" * 11
    for name in ("tasks", long):
        queue = queues.new_queue(name, max_attempts=1)
        kill(queue, "ValueError: the loss is not a number\nTraceback", "x" * 500)
        queue.push_many(range(20))
    page.look(width, dark=dark)
    page.driver.refresh()
    page.until(lambda: len(page.all("tbody tr")) == 2)
    screenshot("queues")
    assert page.script("return document.documentElement.scrollWidth <= innerWidth")
    page.go(f"queue?name={long}")
    page.shows("2 shown")
    screenshot("queue")
    assert page.script("return document.documentElement.scrollWidth <= innerWidth")
    page.driver.execute_cdp_cmd("Network.setExtraHTTPHeaders", {"headers": {}})


def test_dead_letters_behind_ten_million_others_are_reached(queues: HttpQueueServer) -> None:
    queues.new_queue("tasks")
    headers = {"Authorization": f"Bearer {TOKEN}"}
    address = f"{queues.url}/part/letters?name=tasks&after=123456789"
    with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=60) as answer:
        assert answer.status == 200


def test_what_the_page_shows_is_what_programs_get(queues: HttpQueueServer) -> None:
    queue = queues.new_queue("tasks", max_attempts=1)
    kill(queue, "first", "second", "third")
    server = HttpQueue.server(queues.url, TOKEN)
    listed = server.ask("GET", "/queues?limit=10&only=dead&sort=-dead")
    assert [each["name"] for each in listed["queues"]] == ["tasks"]
    assert listed["counts"] == {"total": 1, "named": 1, "found": 1, "waiting": 0, "dead": 1}
    first = server.ask("GET", "/queues/tasks/dead?limit=2")
    assert (len(first["dead"]), first["more"]) == (2, True)
    rest = server.ask("GET", f"/queues/tasks/dead?limit=2&after={first['dead'][-1]['place']}")
    assert (len(rest["dead"]), rest["more"]) == (1, False)
    assert "third" in rest["dead"][0]["history"][-1][4]
    for path in (
        "/queues?limit=x",
        "/queues?limit=1&sort=no",
        "/queues?limit=1&only=x",
        "/queues?limit=1&page=-1",
    ):
        with pytest.raises(ValueError, match=r"limit|sort|only|page"):
            server.ask("GET", path)
    server.close()


def test_a_server_that_is_away_is_said_and_the_others_are_shown(page: Page, queues: HttpQueueServer) -> None:
    queues.new_queue("here")
    gone = HttpQueueServer(token=TOKEN)
    with gone:
        url = gone.url
    servers = {"gone": HttpQueue.server(url, TOKEN), "here": HttpQueue.server(queues.url, TOKEN)}
    with UiServer({"stub": StubCluster()}, queues=servers) as ui:
        page.open(ui, "queues")
        page.shows("The list of queues cannot be read")
        page.click(lambda: page.all("header .chip")[1])
        page.shows("here", "tbody")
    for each in servers.values():
        each.close()


def test_only_what_is_about_dead_letters_is_handed_on(queues: HttpQueueServer) -> None:
    queue = queues.new_queue("tasks", max_attempts=1)
    queue.push_many(range(3))
    server = HttpQueue.server(queues.url, TOKEN)
    with UiServer({"stub": StubCluster()}, queues={"tests": server}, token=TOKEN) as ui:
        bodies: list[tuple[str, Any]] = [
            ("purge", {"dead": False, "item_ids": None}),
            ("purge", {"item_ids": None}),
            ("purge", {"dead": True, "item_ids": None, "more": 1}),
            ("purge", {"dead": True, "item_ids": "x"}),
            ("purge", {"dead": 1, "item_ids": None}),
            ("requeue", {}),
            ("requeue", {"item_ids": [1]}),
            ("push", {"item_ids": None}),
            ("pop", {"n": 1}),
        ]
        for verb, body in bodies:
            for place in ("tests/queues/tasks", "other/queues/tasks", "tests/queues/..%2F..%2Fx"):
                assert 400 <= post(ui, f"servers/{place}/{verb}", body) < 500, (place, verb, body)
        assert queue.size() == 3
        assert post(ui, "servers/tests/queues/tasks/purge", {"dead": True, "item_ids": None}) == 200
    server.close()
    assert open_queue(f"{queues.url}/tasks", token=TOKEN).size() == 3


def post(ui: UiServer, path: str, body: Any) -> int:
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{ui.url}{path}", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            status: int = answer.status
            return status
    except urllib.error.HTTPError as error:
        with error:
            return error.code
