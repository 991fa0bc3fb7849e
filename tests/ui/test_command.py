"""`fray ui` as a user starts it, on real jobs of this machine."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from browser import Page
from clusters import StubCluster
from program import FRAY, SPEC, Started

from fray import Entrypoint, JobRequest, create_cluster
from fray.backend import UiServer
from fray.cluster import JobInfo, UsageSample
from fray.testing.gates import until

WORKS = "import time\nfor step in range(10**6): print('step', step, flush=True); time.sleep(0.2)"
pytestmark = pytest.mark.timeout(180)


def test_a_job_is_followed_from_its_launch_to_its_end(page: Page, command: Started) -> None:
    page.open_link(command.link)
    assert "token" not in page.driver.current_url
    page.shows("No jobs yet")
    cluster = create_cluster(command.spec)
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


FAILS = """
import time
held = bytearray(b"x") * (64 << 20)
time.sleep(2.5)
print("<b>step 1</b>")
raise SystemExit("the loss is not a number")
"""


def test_nothing_is_on_the_page_that_json_does_not_have(command: Started, stub: StubCluster) -> None:
    """A cluster that knows no more than the verbs print looks the same as the real one."""
    cluster = create_cluster(command.spec)
    request = JobRequest("fails", Entrypoint.from_binary("python", ["-c", FAILS]), labels={"seed": "7"})
    job_id = cluster.launch(request)
    cluster.wait(job_id)
    (known,) = printed("list")
    told = printed("status", job_id)
    stub.add(JobInfo.from_dict(known))
    stub.samples = [UsageSample(**sample) for sample in printed("usage", job_id)]
    stub.lines = subprocess.check_output(
        [*FRAY, "logs", "--cluster", command.spec, job_id], text=True
    ).splitlines()
    assert stub.samples
    assert stub.lines
    with UiServer({command.spec: stub}, token=command.token) as other:
        seen = [shown(url, command.token, "part/jobs") for url in (command.url, other.url)]
        assert seen[0] == seen[1]
        stub.add(JobInfo.from_dict(told))
        for part in ("job", "about", "usage", "log"):
            path = f"part/{part}?id={job_id}"
            seen = [shown(url, command.token, path) for url in (command.url, other.url)]
            assert seen[0] == seen[1], part
            assert "cannot be read" not in seen[0]


def printed(*words: str) -> Any:
    """What a verb prints for programs."""
    verb, *rest = words
    text = subprocess.check_output([*FRAY, verb, "--cluster", SPEC, "--json", *rest], text=True)
    return json.loads(text)


def shown(url: str, token: str, path: str) -> str:
    """A part of the page once it is loaded; how long ago something was is another word a second later."""
    asked = Request(f"{url}{path}", headers={"Authorization": f"Bearer {token}"})
    found: list[str] = []

    def loaded() -> bool:
        with urlopen(asked, timeout=30) as answer:
            found[:] = [answer.read().decode()]
        return 'data-state="loading"' not in found[0]

    until(loaded, f"{path} is loaded", 60.0)
    return re.sub(r"\b\w+ ago|just now", "AGO", found[0])


def test_without_a_server_of_queues_there_is_no_page_of_them(state: Path) -> None:
    for wrong in ("file:/tmp", "x"):
        command = [*FRAY, "ui", "--queues", wrong]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 2
        assert "http://HOST:PORT" in done.stderr
    assert not (state / "jobs").exists()


def test_a_refused_url_is_shown_without_its_password(state: Path) -> None:
    command = [*FRAY, "ui", "--queues", "redis://me:hunter2@127.0.0.1/0/tasks?token=hunter2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "127.0.0.1/0/tasks" in done.stderr
    assert "hunter2" not in done.stderr


def test_a_token_file_that_is_no_text_is_one_clear_line(state: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(b"\xff\xfe")
    command = [*FRAY, "ui", "--queues", "http://127.0.0.1:9", "--token-file", str(tmp_path / "token")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert done.stderr.endswith(f"Error: {tmp_path}/token is no text: it is to hold a token\n")


AT_THE_LAST_MOMENT = """
import signal, sys
from fray.testing.command_line import main
lines = 0
def trace(frame, event, _argument):
    global lines
    if frame.f_code.co_name != "wait":
        return None
    if event == "line" and callable(signal.getsignal(signal.SIGTERM)):
        lines += 1
        if lines == 2:
            signal.raise_signal(signal.SIGTERM)
    return trace
sys.settrace(trace)
sys.exit(main(sys.argv[1:]))
"""


def test_a_signal_that_comes_as_it_begins_to_wait_for_one_ends_it(state: Path) -> None:
    command = [sys.executable, "-c", AT_THE_LAST_MOMENT, "ui", "--cluster", SPEC]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("http://")
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()


BROWSER = """
import json, os, sys, time
with open(sys.argv[1] + ".part", "w") as file:
    json.dump({"pid": os.getpid(), "words": sys.argv}, file)
os.rename(sys.argv[1] + ".part", sys.argv[1])
time.sleep(600)
"""


def test_open_shows_the_token_to_no_other_user_and_leaves_ctrl_c(
    page: Page, state: Path, tmp_path: Path
) -> None:
    """Others can read the command line of a browser, and one in the foreground returns when it is closed."""
    program, noted = tmp_path / "browser.py", tmp_path / "noted.json"
    program.write_text(BROWSER)
    environment = {**os.environ, "BROWSER": f"{sys.executable} {program} {noted} %s"}
    command = [*FRAY, "ui", "--cluster", SPEC, "--open"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        link = process.stdout.readline().strip()
        until(noted.exists, "a browser is started")
        browser = json.loads(noted.read_text())
        try:
            token, address = link.partition("token=")[2], browser["words"][-1]
            assert not any(token in word for word in browser["words"])
            file = Path(address.removeprefix("file://"))
            assert file.stat().st_mode & 0o777 == 0o600
            page.driver.get(address)
            page.shows("No jobs yet")
        finally:
            process.send_signal(signal.SIGINT)
            try:
                assert process.wait(30) == 0
            finally:
                os.kill(browser["pid"], signal.SIGKILL)
        assert not file.exists()
