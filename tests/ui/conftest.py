"""One browser for all tests, without a window; each test has a server, a port and so a cookie of its own."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from clusters import StubCluster
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from fray.backend import UiServer

PATIENCE = 30.0


class Page:
    """What a person sees and does."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver
        self.base = ""

    def open(self, server: UiServer, path: str = "") -> None:
        """Open the link that the server prints, and then a page."""
        self.base = server.url
        self.driver.get(server.link)
        if path:
            self.driver.get(self.base + path)

    def go(self, path: str) -> None:
        self.driver.get(self.base + path)

    def look(self, width: int, height: int = 1000, *, dark: bool = False) -> None:
        """See the page in a window of this size, in the light or the dark."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def until(self, condition: Callable[[], Any], what: str = "") -> Any:
        """Wait until something can be seen."""

        def seen(_: webdriver.Chrome) -> Any:
            try:
                return condition()
            except Exception:  # noqa: BLE001 - the page replaced what was being read
                return False

        return WebDriverWait(self.driver, PATIENCE, poll_frequency=0.05).until(seen, what)

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        return str(self.find(selector).text)

    def shows(self, text: str, selector: str = "main") -> None:
        """Wait until a text is there."""
        self.until(lambda: text in self.text(selector), f"{text!r} in {selector}")

    def script(self, code: str, *arguments: Any) -> Any:
        return self.driver.execute_script(code, *arguments)

    def press(self, title: str) -> None:
        """Press a button that asks first, and confirm."""
        self.until(lambda: self._button("main", title).click() or True, f"the button {title}")
        self.until(lambda: self.find("#confirm").is_displayed(), "the question")
        self._button("#confirm", title).click()

    def _button(self, inside: str, title: str) -> WebElement:
        return next(button for button in self.all(f"{inside} button") if button.text == title)

    def complaints(self) -> list[str]:
        """What the browser has to say about the page, since this was asked last."""
        return [entry["message"] for entry in self.driver.get_log("browser")]


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver") or "chromedriver"))
    started.set_page_load_timeout(PATIENCE)
    try:
        yield started
    finally:
        started.quit()


@pytest.fixture
def page(driver: webdriver.Chrome) -> Iterator[Page]:
    page = Page(driver)
    page.look(1600)
    yield page
    for handle in driver.window_handles[1:]:
        driver.switch_to.window(handle)
        driver.close()
    driver.switch_to.window(driver.window_handles[0])
    driver.get("about:blank")
    driver.get_log("browser")


@pytest.fixture
def stub() -> StubCluster:
    return StubCluster()


@pytest.fixture
def server(stub: StubCluster) -> Iterator[UiServer]:
    with UiServer({"stub": stub}) as server:
        yield server


@pytest.fixture
def screenshot(page: Page, tmp_path: Path) -> Callable[[str], Path]:
    """Keep what is seen, for a person who wants to look: below pytest's --basetemp."""

    def keep(name: str) -> Path:
        height = page.script("return Math.min(document.documentElement.scrollHeight, 3000)")
        width = page.script("return innerWidth")
        size = {"width": width, "height": max(height, 600), "deviceScaleFactor": 1, "mobile": width < 600}
        page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        path = tmp_path / f"{name}.png"
        path.write_bytes(page.driver.get_screenshot_as_png())
        return path

    return keep
