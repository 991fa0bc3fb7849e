"""The page, in a real browser without a window."""

import base64
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from http_calls import Wire
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from fray_queue import HttpQueueServer
from fray_queue._http.protocol.wire import pack, unpack

TOKEN = "page-token"
SCRIPT_ID = "<script>document.title='pwned'</script>"
pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def server() -> Iterator[HttpQueueServer]:
    with HttpQueueServer(token=TOKEN) as server:
        yield server


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1100,560"):
        options.add_argument(argument)
    options.add_argument(f"--user-data-dir={tmp_path / 'profile'}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(shutil.which("chromedriver") or "chromedriver")
    driver = webdriver.Chrome(options, service)
    try:
        yield driver
    finally:
        driver.quit()


def _open(browser: webdriver.Chrome, server: HttpQueueServer) -> None:
    # What the browser does after its user typed the token as a password.
    credentials = base64.b64encode(f":{TOKEN}".encode()).decode()
    browser.execute_cdp_cmd("Network.enable", {})
    browser.execute_cdp_cmd(
        "Network.setExtraHTTPHeaders", {"headers": {"Authorization": f"Basic {credentials}"}}
    )
    browser.get(f"{server.url}/")


def _until(browser: webdriver.Chrome, condition: Any) -> Any:
    def look(driver: webdriver.Chrome) -> Any:
        try:
            return condition(driver)
        except Exception:  # the page replaced what was being read
            return False

    return WebDriverWait(browser, 30, poll_frequency=0.05).until(look)


def _text(browser: webdriver.Chrome, selector: str) -> str:
    return str(browser.find_element(By.CSS_SELECTOR, selector).text)


def test_the_page_shows_changes_requeues_and_deletes_and_runs_no_strangers_script(
    server: HttpQueueServer, browser: webdriver.Chrome
) -> None:
    queue = server.new_queue("tasks", max_attempts=1)
    _open(browser, server)
    _until(browser, lambda page: _text(page, "[data-queue=tasks] .pending") == "0")

    queue.push_many(range(7))  # a live change, without reloading
    _until(browser, lambda page: _text(page, "[data-queue=tasks] .pending") == "7")
    assert queue.pop() is not None
    _until(browser, lambda page: _text(page, "[data-queue=tasks] .in-flight") == "1")

    for item_id in (SCRIPT_ID, "second", "third"):
        Wire(queue)._send("push", pack([{"id": item_id}], [b"x"]), "application/octet-stream")
    for lease in server_pop_all(queue):
        if lease[0] in (SCRIPT_ID, "second", "third"):
            Wire(queue)._json("release", {"item_id": lease[0], "lease_id": lease[1]})
    _until(browser, lambda page: _text(page, "[data-queue=tasks] .dead button") == "3")
    browser.find_element(By.CSS_SELECTOR, "[data-queue=tasks] .dead button").click()
    _until(browser, lambda page: _text(page, "#letters .item") == SCRIPT_ID)  # a name stays text
    screenshot = browser.get_screenshot_as_png()
    assert screenshot.startswith(b"\x89PNG")

    _refreshes_leave_the_focus(browser, queue)
    _click(browser, "Requeue", row=0)
    _until(browser, lambda page: _text(page, "[data-queue=tasks] .dead button") == "2")
    assert [letter["item_id"] for letter in _dead(queue)] == ["second", "third"]
    _click(browser, "Delete", row=0)
    _until(browser, lambda page: _text(page, "[data-queue=tasks] .dead button") == "1")
    assert [letter["item_id"] for letter in _dead(queue)] == ["third"]
    assert browser.title == "Fray queues"
    complaints = [entry for entry in _console(browser) if "favicon" not in entry["message"]]
    assert complaints == []


def _refreshes_leave_the_focus(browser: webdriver.Chrome, queue: Any) -> None:
    for selector in ("[data-queue=tasks] .dead button", "#letters tbody tr:last-child button"):
        chosen = browser.find_element(By.CSS_SELECTOR, selector)
        browser.execute_script("arguments[0].focus()", chosen)
        before = _text(browser, "[data-queue=tasks] .pending")
        queue.push("one more")
        _until(browser, lambda page, seen=before: _text(page, "[data-queue=tasks] .pending") != seen)
        assert browser.switch_to.active_element == chosen


def test_the_page_says_what_was_refused(tmp_path: Path, browser: webdriver.Chrome) -> None:
    with HttpQueueServer(token=TOKEN) as server:
        queue = server.new_queue("tasks", max_attempts=1)
        queue.push("x")
        lease = queue.pop()
        assert lease is not None
        queue.release(lease)
        _open(browser, server)
        _until(browser, lambda page: page.find_element(By.CSS_SELECTOR, ".dead button").click() or True)
        browser.execute_script(
            "window.good = fetch; window.fetch = (path, options) =>"
            " good(path, options.body ? { ...options, body: '{\"surprise\": 1}' } : options)"
        )
        _click(browser, "Requeue", row=0)
        _until(browser, lambda page: "unknown field 'surprise'" in _text(page, "#problem"))
        browser.execute_script("window.fetch = window.good")
        _click(browser, "Requeue", row=0)
        _until(browser, lambda page: not page.find_element(By.ID, "problem").is_displayed())
        assert queue.pending() == 1


def server_pop_all(queue: Any) -> list[tuple[str, str]]:
    records = unpack(Wire(queue)._send("pop", b'{"n": 100}', "application/json"))
    return [(meta["item_id"], meta["lease_id"]) for meta, _ in records]


def _dead(queue: Any) -> list[dict[str, Any]]:
    letters: list[dict[str, Any]] = queue.dead_facts()
    return letters


def _console(browser: Any) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = browser.get_log("browser")
    return entries


def _click(browser: webdriver.Chrome, label: str, row: int) -> None:
    def click(page: webdriver.Chrome) -> bool:
        rows = page.find_elements(By.CSS_SELECTOR, "#letters tbody tr")
        next(each for each in rows[row].find_elements(By.TAG_NAME, "button") if each.text == label).click()
        return True

    _until(browser, click)


def test_the_page_says_when_the_server_is_away(server: HttpQueueServer, browser: webdriver.Chrome) -> None:
    server.new_queue("tasks")
    _open(browser, server)
    _until(browser, lambda page: _text(page, "#state").startswith("live"))
    server.stop()
    _until(browser, lambda page: _text(page, "#state").startswith("no answer"))
