"""A browser, and what a person sees and does in it."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from fray.backend import UiServer

PATIENCE = 30.0


def start_browser(profile: Path) -> webdriver.Chrome:
    """Start one without a window; the caller quits it."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        f"--user-data-dir={profile}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(
        options, webdriver.ChromeService(shutil.which("chromedriver") or "chromedriver")
    )
    started.set_page_load_timeout(PATIENCE)
    return started


class Page:
    """What a person sees and does."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver
        self.base = ""

    def open(self, server: UiServer, path: str = "") -> None:
        """Open the link that the server prints, and then a page."""
        self.open_link(server.link)
        if path:
            self.driver.get(self.base + path)

    def open_link(self, link: str) -> None:
        """Open a link with a token, as its user does."""
        self.base = link.partition("?")[0]
        self.driver.get(link)

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
            except (WebDriverException, LookupError):  # it is not there yet, or was there a moment ago
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
        self.click(lambda: self._button("main", title))
        self.until(lambda: self.find("#confirm").is_displayed(), "the question")
        self._button("#confirm", title).click()

    def click(self, find: Callable[[], WebElement]) -> None:
        """Click what may be replaced while it is looked for."""

        def done() -> bool:
            find().click()
            return True

        self.until(done, "a click")

    def _button(self, inside: str, title: str) -> WebElement:
        found = [button for button in self.all(f"{inside} button") if button.text == title]
        if not found:  # not yet, perhaps: the notice of a change comes before the page shows it
            raise LookupError(f"no button {title!r} in {inside}")
        return found[0]

    def complaints(self) -> list[str]:
        """What the browser has to say about the page, since this was asked last."""
        entries: list[dict[str, str]] = cast(Any, self.driver).get_log("browser")
        return [entry["message"] for entry in entries]
