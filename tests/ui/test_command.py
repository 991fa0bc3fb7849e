"""`fray ui` as a user starts it, on real jobs of this machine."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Page

from fray import Entrypoint, JobRequest, create_cluster

SPEC = "local?overcommit=true"
WORKS = "import time\nfor step in range(10**6): print('step', step, flush=True); time.sleep(0.2)"
_MAIN = "import sys; from fray._cli.main import main; sys.exit(main(sys.argv[1:]))"
pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    state = tmp_path / "state"
    monkeypatch.setenv("FRAY_STATE_DIR", os.fspath(state))
    monkeypatch.setenv("XDG_CONFIG_HOME", os.fspath(tmp_path / "config"))
    return state


@pytest.fixture
def link(state: Path) -> Iterator[str]:
    """The link that a running `fray ui` has printed; Ctrl-C ends it well."""
    assert not state.exists()
    command = [sys.executable, "-c", _MAIN, "ui", "--cluster", SPEC]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def test_a_job_is_followed_from_its_launch_to_its_end(page: Page, link: str) -> None:
    page.driver.get(link)
    page.base = link.partition("?")[0]
    assert "token" not in page.driver.current_url
    page.shows("No jobs yet")
    cluster = create_cluster(SPEC)
    job_id = cluster.launch(JobRequest("works", Entrypoint.from_binary("python", ["-c", WORKS])))
    page.shows("running", f"[data-key='{job_id}']")
    page.find(f"[data-key='{job_id}'] a").click()
    page.shows("step 3", ".log")
    page.until(lambda: len(page.all(".chart polyline")) == 2, "pictures of memory and CPU")
    assert "replica 0" in page.text(".timeline-box")
    page.press("Stop")
    page.shows(f"{job_id} was stopped", "#notice")
    page.shows("stopped", "[data-part='part/job'] .badge")
    assert cluster.poll(job_id).status == "stopped"
    page.press("Retry")
    page.shows("running", "[data-part='part/job'] .badge")
    cluster.terminate(job_id)
    assert page.complaints() == []


def test_without_a_server_of_queues_there_is_no_page_of_them(state: Path) -> None:
    for wrong in ("file:/tmp", "x"):
        command = [sys.executable, "-c", _MAIN, "ui", "--queues", wrong]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 2
        assert "http://HOST:PORT" in done.stderr
    assert not (state / "jobs").exists()
