"""One browser for all tests, without a window; each test has a server, a port and so a cookie of its own."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from selenium import webdriver

from fray.backend import UiServer

sys.path.insert(0, str(Path(__file__).parent / "helpers"))
from browser import Page, start_browser
from clusters import StubCluster
from program import SPEC, Started, started_ui


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    started = start_browser(tmp_path_factory.mktemp("profile"))
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
    page.complaints()


@pytest.fixture
def stub() -> StubCluster:
    return StubCluster()


@pytest.fixture
def server(stub: StubCluster) -> Iterator[UiServer]:
    with UiServer({"stub": stub}) as server:
        yield server


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this machine's own cluster keeps its records in a test."""
    state = tmp_path / "state"
    monkeypatch.setenv("FRAY_STATE_DIR", os.fspath(state))
    monkeypatch.setenv("XDG_CONFIG_HOME", os.fspath(tmp_path / "config"))
    return state


@pytest.fixture
def command(state: Path) -> Iterator[Started]:
    """A running `fray ui` on this machine's own cluster, which has no jobs yet."""
    assert not state.exists()
    with started_ui(SPEC) as started:
        yield started


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
