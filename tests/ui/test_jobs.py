"""The page of jobs, in a real browser."""

import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest
from browser import Page
from clusters import SteppingCluster, StubCluster, job
from selenium.webdriver.common.keys import Keys

from fray.backend import UiServer
from fray.cluster import JobStatus

pytestmark = pytest.mark.timeout(180)

SCRIPT = "<script>document.title='pwned'</script>"
HOSTILE = f"{SCRIPT}<img src=x onerror=\"document.title='pwned'\">&amp;'\"\u202egnp.exe"


def rows(page: Page) -> list[str]:
    names: list[str] = page.script(
        "return [...document.querySelectorAll('tbody tr')].map((row) => row.dataset.key)"
    )
    return names


def test_jobs_come_change_and_go_while_the_page_is_open(
    page: Page, server: UiServer, stub: StubCluster
) -> None:
    page.open(server)
    page.shows("No jobs yet")
    stub.add(job("train-1"), job("eval-2", "pending", pending_reason="waiting for 4 CPUs"))
    page.until(lambda: sorted(rows(page)) == ["eval-2", "train-1"])
    assert "waiting for 4 CPUs" in page.text("[data-key='eval-2']")
    stub.add(job("train-1", "failed", error_message="replica 0 exited with code 1\nits last lines:"))
    page.shows("failed exited (1)", "[data-key='train-1']")
    assert "replica 0 exited with code 1" in page.text("[data-key='train-1'] .message")
    del stub.jobs["eval-2"]
    page.until(lambda: rows(page) == ["train-1"])
    assert page.text("#state") == "live"
    assert page.complaints() == []


def test_loading_empty_and_failed_look_different(page: Page, server: UiServer, stub: StubCluster) -> None:
    stub.answers.clear()
    page.open(server)
    page.until(lambda: page.find("[data-state=loading]").is_displayed())
    assert page.find("[data-part]").get_attribute("aria-busy") == "true"
    assert "No jobs" not in page.text("main")
    stub.answers.set()
    page.until(lambda: page.find("[data-state=empty]").is_displayed())
    assert page.find("[data-part]").get_attribute("aria-busy") == "false"
    stub.add(job("train-1"))
    page.until(lambda: rows(page) == ["train-1"])
    stub.problem = ConnectionRefusedError("the head at 10.0.0.1 does not answer")
    page.until(lambda: "10.0.0.1 does not answer" in page.text("[data-state=failed]"))
    assert rows(page) == ["train-1"]  # what was known stays, and is said to be old
    assert "s old" in page.text("[data-state=failed]")
    stub.problem = None
    page.until(lambda: not page.all("[data-state=failed]"))


def test_a_server_that_is_gone_is_said_and_what_was_shown_stays(page: Page, stub: StubCluster) -> None:
    stub.add(job("train-1"))
    with UiServer({"stub": stub}, token="same") as server:
        page.open(server)
        page.until(lambda: page.text("#state") == "live")
    page.until(lambda: page.text("#state").startswith("no answer"))
    assert rows(page) == ["train-1"]
    with UiServer({"stub": stub}, port=urlsplit(server.url).port or 0, token="same"):
        page.until(lambda: page.text("#state") == "live")


def test_ten_thousand_jobs_are_paged_filtered_and_sorted_by_the_server(
    page: Page, server: UiServer, stub: StubCluster
) -> None:
    states = ("succeeded", "failed", "running", "pending", "stopped")
    stub.add(
        *(
            job(
                f"train-{number:05}",
                states[number % 5],
                submitted_at=1e9 + number,
                labels={"seed": str(number)},
            )
            for number in range(10_000)
        )
    )
    page.open(server)
    page.shows("1 to 100 of 10,000 jobs")
    shown = rows(page)
    assert (len(shown), shown[0]) == (100, "train-09999")
    assert page.find("table").get_attribute("aria-rowcount") == "10001"
    size = page.script("return document.documentElement.outerHTML.length")
    assert size < 150_000, "the browser got what it shows, and no more"
    page.find(".pager a:last-child").click()
    page.shows("9,901 to 10,000 of 10,000")
    assert page.find("tbody tr").get_attribute("aria-rowindex") == "9902"
    page.find("th a").click()  # by name, from the first page
    page.until(lambda: rows(page)[0] == "train-00000")
    assert page.find("th").get_attribute("aria-sort") == "ascending"
    page.find("#q").send_keys("seed=77")
    page.until(lambda: all("77" in name for name in rows(page)))
    assert page.text(".chips").startswith("all 111")
    page.all(".chip")[3].click()
    page.until(lambda: 0 < len(rows(page)) < 111 and "failed" in page.driver.current_url)
    assert {badge.text for badge in page.all("tbody .badge")} == {"failed"}
    assert page.find("#q").get_attribute("value") == "seed=77"
    page.driver.refresh()  # the address has it all
    page.until(lambda: 0 < len(rows(page)) < 111)


def test_a_token_of_any_characters_is_in_the_link(page: Page, stub: StubCluster) -> None:
    with UiServer({"stub": stub}, token='a b+c#d&e%2Fé=?;"') as server:
        page.open(server)
        page.shows("No jobs yet")
        page.go("job?id=train-1")  # by the cookie
        page.shows("JobNotFoundError")


def test_names_and_logs_of_strangers_stay_text(page: Page, server: UiServer, stub: StubCluster) -> None:
    name = HOSTILE
    stub.add(
        job("evil-1", "failed", name=name, error_message=f"{HOSTILE}\n{HOSTILE}", labels={HOSTILE: HOSTILE})
    )
    stub.add(job(f"long-{'x' * 3000}", command=HOSTILE, warnings=(HOSTILE,)))
    stub.lines = [HOSTILE, "\x1b[31mred\x1b[0m", "10%\r90%", "\x00\x07bell", "y" * 100_000, "\ud800 lone"]
    page.open(server)
    page.until(lambda: len(rows(page)) == 2)
    assert SCRIPT in page.text("[data-key='evil-1']")
    page.go("job?id=evil-1")
    page.shows("lone", ".log")
    log = page.text(".log")
    assert HOSTILE.replace("\u202e", "\ufffd") in log
    assert "\nred\n90%\n" in log
    assert "100,000 characters" in log
    assert len(log) < 20_000
    page.go("job?id=" + f"long-{'x' * 3000}"[:400])
    page.shows("JobNotFoundError")
    assert "pwned" not in page.driver.title
    assert not page.all("main script, main img")
    assert page.complaints() == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [420, 1600])
def test_pages_fit_and_can_be_read(
    page: Page,
    server: UiServer,
    stub: StubCluster,
    width: int,
    screenshot: Callable[[str], Path],
    *,
    dark: bool,
) -> None:
    for number, state in enumerate(("pending", "running", "succeeded", "failed", "stopped")):
        said = (
            {"error_message": "replica 0 exited with code 1\nits last lines:\n  a\n  b"}
            if state == "failed"
            else {}
        )
        stub.add(job(f"train-{number}", state, **said, warnings=("files changed",)))
    stub.add(job(f"a-name-that-goes-on-{'and-on-' * 40}end"))
    stub.lines = [f"step {number}: loss {1 / (number + 1):.4f} {'word ' * number}" for number in range(40)]
    page.look(width, dark=dark)
    page.open(server)
    page.until(lambda: len(rows(page)) == 6)
    for path in ("", "job?id=train-3"):
        page.go(path)
        page.shows("train-3")
        page.until(lambda: not page.all("[data-state=loading]"))
        assert page.script("return document.documentElement.scrollWidth <= innerWidth"), path
        assert page.script(FAINT) == []
        assert screenshot(f"{path.partition('?')[0] or 'jobs'}").stat().st_size > 10_000


# The texts of the page with less than 4.5 to 1 between them and what they stand on.
FAINT = """
const parse = (colour) => colour.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
  .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
  .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
const backOf = (node) => {
  for (; node; node = node.parentElement) {
    const colour = parse(getComputedStyle(node).backgroundColor);
    if (colour.length < 4 || colour[3] > 0) return colour;
  }
  return [255, 255, 255];
};
return [...document.querySelectorAll("body *")].filter((node) =>
  [...node.childNodes].some((child) => child.nodeType === 3 && child.nodeValue.trim())
  && node.checkVisibility() && !node.matches(".off, option") && !node.closest("svg")
).filter((node) => {
  const [one, other] = [light(parse(getComputedStyle(node).color)), light(backOf(node))];
  return (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05) < 4.5;
}).map((node) => node.outerHTML.slice(0, 100));
"""


def test_a_job_is_stopped_and_retried_after_a_question(
    page: Page, server: UiServer, stub: StubCluster
) -> None:
    stub.add(job("train-1"))
    page.open(server, "job?id=train-1")
    page.click(lambda: page.find(".actions button"))
    page.until(lambda: page.find("#confirm").is_displayed())
    assert "train-1" in page.text("#question")
    assert page.driver.switch_to.active_element.text == "Cancel"
    page.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    page.until(lambda: not page.find("#confirm").is_displayed())
    assert stub.asked == []
    page.press("Stop")
    page.shows("train-1 was stopped", "#notice")
    page.shows("stopped", "[data-part='part/job'] .badge")
    page.press("Retry")
    page.shows("train-1 runs again", "#notice")
    assert stub.asked == [("stop", "train-1"), ("retry", "train-1")]
    stub.problem = PermissionError("not yours")
    page.press("Stop")
    page.shows("Stop was refused: PermissionError: not yours", "#problem")


UNNAMED = """
return [...document.querySelectorAll("input, select, button")]
  .filter((node) => node.type !== "hidden" && !node.labels?.length && !node.ariaLabel && !node.textContent)
  .map((node) => node.outerHTML);
"""


def test_the_keyboard_reaches_everything_and_refreshes_leave_the_focus(
    page: Page, server: UiServer, stub: StubCluster
) -> None:
    stub.add(job("train-1"), job("train-2"))
    page.open(server)
    page.until(lambda: len(rows(page)) == 2)
    reached = []
    for _ in range(30):
        page.driver.switch_to.active_element.send_keys(Keys.TAB)
        reached.append(page.script("return document.activeElement.textContent || document.activeElement.id"))
        if reached[-1] == "train-2":
            break
    assert reached[0] == "Skip to content"
    assert {"Jobs", "q", "train-1", "train-2"} <= set(reached)
    focused = page.driver.switch_to.active_element
    stub.add(job("train-0"))
    page.until(lambda: len(rows(page)) == 3)
    assert page.driver.switch_to.active_element == focused
    assert page.script(UNNAMED) == []
    assert page.find("#state").get_attribute("role") == "status"


AT_THE_END = """
const log = document.querySelector(".log");
return log.scrollTop + log.clientHeight >= log.scrollHeight - 2;
"""


def test_a_log_follows_and_is_searched(page: Page, server: UiServer, stub: StubCluster) -> None:
    stub.add(job("train-1"))
    stub.lines = [f"step {number}" for number in range(200_000)]
    page.open(server, "job?id=train-1")
    page.shows("step 199999", ".log")
    assert len(page.text(".log").split("\n")) == 500
    stub.lines = stub.lines[:2000]
    page.until(lambda: page.text(".log").split("\n")[-1] == "step 1999")
    stub.lines.append("the last one")
    page.shows("the last one", ".log")
    page.until(lambda: page.script(AT_THE_END))
    page.find("#follow").click()
    page.script("document.querySelector('.log').scrollTop = 0")
    stub.lines.append("one more")
    page.shows("one more", ".log")
    assert page.script("return document.querySelector('.log').scrollTop") == 0
    page.find("#grep").send_keys("step 190")
    page.until(lambda: page.text(".log").split("\n")[-1] == "step 1909")
    page.find("#grep").clear()
    page.find("#grep").send_keys("no such line")
    page.shows("No line has 'no such line'", "[data-part='part/log']")


def test_a_log_is_searched_for_plain_text(page: Page, server: UiServer, stub: StubCluster) -> None:
    """An expression can take for ever on one line, and nothing else of the server runs meanwhile."""
    stub.add(job("train-1"))
    stub.lines = ["a" * 60, "loss (a+)+$ = 0.5"]
    page.open(server, "job?id=train-1")
    page.shows("a" * 60, ".log")
    assert page.find("#grep").get_attribute("placeholder") == "plain text"
    page.find("#grep").send_keys("(a+)+$")
    page.until(lambda: page.text(".log") == "loss (a+)+$ = 0.5")
    page.find("#grep").send_keys("[")
    page.shows("No line has '(a+)+$['", "[data-part='part/log']")
    page.shows("fray logs --grep", "[data-part='part/log']")


def test_eight_tabs_are_live_at_once(page: Page, server: UiServer, stub: StubCluster) -> None:
    stub.add(job("train-1"))
    page.open(server)
    for _ in range(7):
        page.driver.switch_to.new_window("tab")
        page.go("")
    stub.add(job("train-1", "succeeded"))
    for handle in page.driver.window_handles:
        page.driver.switch_to.window(handle)
        page.shows("succeeded", "[data-key='train-1']")
        assert page.text("#state") == "live"


class _Prefix(BaseHTTPRequestHandler):
    """A proxy that leads to the page from below a path, as Jupyter's does."""

    target = ""

    def do_GET(self) -> None:
        path = self.path.removeprefix("/proxy/8123/")
        assert path != self.path, f"{self.path} was asked of the proxy's own root"
        headers = {
            key: value for key, value in self.headers.items() if key.lower() in ("cookie", "if-none-match")
        }
        try:
            answer = urlopen(Request(f"{self.target}{path}", headers=headers), timeout=30)
        except OSError as error:
            answer = error  # of urllib: an answer as well
        body = answer.read()
        self.send_response(answer.status)
        for key in ("Content-Type", "ETag", "Content-Security-Policy"):
            if answer.headers[key]:
                self.send_header(key, answer.headers[key])
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


def test_the_page_works_below_a_path_of_a_proxy(page: Page, server: UiServer, stub: StubCluster) -> None:
    stub.add(job("train-1"))
    page.open(server)  # the cookie is of the host
    handler = type("Handler", (_Prefix,), {"target": server.url})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        page.driver.get(f"http://127.0.0.1:{proxy.server_port}/proxy/8123/")
        page.until(lambda: page.text("#state") == "live")
        page.find("tbody a").click()
        page.shows("train-1", "h1")
        page.until(lambda: page.text("#state") == "live")
        stub.add(job("train-1", "stopped"))
        page.shows("stopped", ".badge")
        page.find("header a").click()
        page.until(lambda: rows(page) == ["train-1"])
        assert re.search(r"/proxy/8123/", page.driver.current_url)
        page.driver.get("about:blank")
        proxy.shutdown()


def test_pages_of_two_clusters_are_apart(page: Page) -> None:
    one, other = StubCluster(), StubCluster()
    one.add(job("here-1"))
    other.add(job("there-1", "failed"))
    with UiServer({"here": one, "there?a=1&b=<2>": other}) as server:
        page.open(server)
        page.until(lambda: rows(page) == ["here-1"])
        page.all("header .chip")[1].click()
        page.until(lambda: rows(page) == ["there-1"])
        page.find("tbody a").click()
        page.press("Retry")
        page.shows("runs again", "#notice")
        assert (one.asked, other.asked) == ([], [("retry", "there-1")])
        assert other.jobs["there-1"].status is JobStatus.RUNNING


def test_jobs_are_stopped_and_retried_from_the_list_by_keyboard(
    page: Page, server: UiServer, stub: StubCluster
) -> None:
    stub.add(job("train-1"), job("train-2", "failed"), job("train-3", "succeeded"))
    page.open(server)
    page.until(lambda: len(rows(page)) == 3)
    labels = page.script(
        "return [...document.querySelectorAll('tbody button')].map((button) => button.ariaLabel)"
    )
    assert sorted(labels) == ["Retry train-2", "Stop train-1"]

    def press(key: str, *more: str) -> None:
        page.driver.switch_to.active_element.send_keys(key, *more)

    page.script("document.querySelector('[aria-label=\"Stop train-1\"]').focus()")
    press(Keys.ENTER)
    page.until(lambda: page.find("#confirm").is_displayed())
    assert "Stop job train-1" in page.text("#question")
    press(Keys.ESCAPE)
    page.until(lambda: not page.find("#confirm").is_displayed())
    assert page.driver.switch_to.active_element.accessible_name == "Stop train-1"
    assert stub.asked == []
    press(Keys.SPACE)
    page.until(lambda: page.find("#confirm").is_displayed())
    press(Keys.TAB, Keys.ENTER)  # from Cancel to the other one
    page.shows("train-1 was stopped", "#notice")
    page.until(lambda: page.driver.switch_to.active_element.accessible_name == "Retry train-1")
    press(Keys.ENTER)
    page.until(lambda: page.find("#confirm").is_displayed())
    press(Keys.TAB, Keys.ENTER)
    page.shows("train-1 runs again", "#notice")
    assert stub.asked == [("stop", "train-1"), ("retry", "train-1")]
    stub.add(job("train-1", "succeeded"))  # its button goes away
    page.until(lambda: len(page.all("tbody button")) == 1)
    page.until(lambda: page.script("return document.activeElement.id") == "main")
    assert page.complaints() == []


def test_a_list_that_is_read_in_steps_says_how_much_is_missing(page: Page) -> None:
    cluster = SteppingCluster()
    cluster.add(*(job(f"train-{number:04}", submitted_at=1e9 + number) for number in range(250)))
    with UiServer({"steps": cluster}) as server:
        page.open(server)
        page.shows("100 of 250 jobs are shown and searched so far", "[data-state=part]")
        page.until(lambda: page.find("[data-part]").get_attribute("aria-busy") == "true")
        assert rows(page)[0] == "train-0249"
        cluster.rest.set()
        page.shows("1 to 100 of 250 jobs")
        assert not page.all("[data-state=part]")
        assert page.find("[data-part]").get_attribute("aria-busy") == "false"
